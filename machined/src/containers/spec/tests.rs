#![allow(clippy::unwrap_used)]

use super::*;

fn image() -> ImageConfig {
    ImageConfig {
        architecture: "amd64".into(),
        os: "linux".into(),
        entrypoint: vec!["/server".into()],
        command: vec!["--port".into(), "80".into()],
        environment: vec!["PATH=/bin".into(), "MODE=a=b".into()],
        ..ImageConfig::default()
    }
}

fn spec() -> ContainerSpec {
    ContainerSpec::new("web".parse().unwrap(), "/generation.1/web".into())
}

fn config(spec: &ContainerSpec, image: &ImageConfig) -> Value {
    runtime_config(
        spec,
        image,
        Path::new("/nonexistent"),
        Path::new("/merged"),
        &HostView::default(),
    )
    .unwrap()
}

fn strings(value: &Value) -> Vec<&str> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item.as_str().unwrap())
        .collect()
}

/// The fields that the runtime specification calls REQUIRED, and their types.
#[test]
fn the_runtime_specification_is_met() {
    let config = config(&spec(), &image());
    assert!(config["ociVersion"].is_string());
    assert!(config["root"]["path"].is_string());
    assert!(config["process"]["cwd"].as_str().unwrap().starts_with('/'));
    assert!(config["process"]["user"]["uid"].is_u64() && config["process"]["user"]["gid"].is_u64());
    for mount in config["mounts"].as_array().unwrap() {
        assert!(
            mount["destination"].as_str().unwrap().starts_with('/'),
            "{mount}"
        );
        assert!(mount["type"].is_string() && mount["source"].is_string());
        strings(&mount["options"]);
    }
    for namespace in config["linux"]["namespaces"].as_array().unwrap() {
        assert!(namespace["type"].is_string());
    }
    for rlimit in config["process"]["rlimits"].as_array().unwrap() {
        assert!(rlimit["type"].is_string() && rlimit["soft"].is_u64() && rlimit["hard"].is_u64());
    }
    for rule in config["linux"]["seccomp"]["syscalls"].as_array().unwrap() {
        assert!(!strings(&rule["names"]).is_empty() && rule["action"].is_string());
    }
    for device in config["linux"]["resources"]["devices"].as_array().unwrap() {
        assert!(device["allow"].is_boolean());
    }
}

#[test]
fn a_container_is_confined_by_default() {
    let config = config(&spec(), &image());
    assert_eq!(config["process"]["noNewPrivileges"], true);
    let namespaces: Vec<_> = config["linux"]["namespaces"]
        .as_array()
        .unwrap()
        .iter()
        .map(|n| n["type"].as_str().unwrap())
        .collect();
    assert_eq!(
        namespaces,
        ["pid", "mount", "ipc", "uts", "cgroup", "network"]
    );
    assert!(!strings(&config["process"]["capabilities"]["bounding"]).contains(&"CAP_SYS_ADMIN"));
    assert_eq!(config["linux"]["cgroupsPath"], "/generation.1/web");
    assert_eq!(config["linux"]["resources"]["devices"][0]["allow"], false);
    let sys = config["mounts"]
        .as_array()
        .unwrap()
        .iter()
        .find(|mount| mount["destination"] == "/sys")
        .unwrap();
    assert!(strings(&sys["options"]).contains(&"ro"));
    assert!(strings(&config["linux"]["maskedPaths"]).contains(&"/proc/kcore"));
    assert!(config.get("hooks").is_none());
}

#[test]
fn the_machines_network_is_asked_for() {
    let spec = ContainerSpec {
        network: ContainerNetwork::Host,
        ..spec()
    };
    let namespaces = config(&spec, &image())["linux"]["namespaces"].to_string();
    assert!(!namespaces.contains("network"), "{namespaces}");
}

#[test]
fn config_overrides_the_image() {
    let mut spec = spec();
    assert_eq!(
        strings(&config(&spec, &image())["process"]["args"]),
        ["/server", "--port", "80"]
    );
    spec.args = vec!["--help".into()];
    assert_eq!(
        strings(&config(&spec, &image())["process"]["args"]),
        ["/server", "--help"]
    );
    spec.entrypoint = vec!["/bin/sh".into(), "-c".into()];
    assert_eq!(
        strings(&config(&spec, &image())["process"]["args"]),
        ["/bin/sh", "-c", "--help"]
    );
    spec.args.clear();
    assert_eq!(
        strings(&config(&spec, &image())["process"]["args"]),
        ["/bin/sh", "-c"]
    );
    spec.environment = vec!["MODE=c".into(), "NEW=".into()];
    spec.working_dir = Some("/srv".into());
    let config = config(&spec, &image());
    assert_eq!(
        strings(&config["process"]["env"]),
        ["PATH=/bin", "MODE=c", "NEW="]
    );
    assert_eq!(config["process"]["cwd"], "/srv");
    // The runtime resolves this path below the container's root, where it follows the container's links.
    spec.working_dir = Some("/link/./sub/../sub/".into());
    let config = self::config(&spec, &image());
    assert_eq!(config["process"]["cwd"], "/link/./sub/../sub/");
    let bare = runtime_config(
        &self::spec(),
        &ImageConfig::default(),
        Path::new("/nonexistent"),
        Path::new("/merged"),
        &HostView::default(),
    );
    assert_eq!(bare, Err(SpecError::NoProgram));
}

#[test]
fn other_users_keep_only_the_capabilities_that_were_asked_for() {
    let mut spec = spec();
    spec.run_as = Some(RunAs {
        uid: Some(1000),
        gid: None,
    });
    let config_of =
        |spec: &ContainerSpec| config(spec, &image())["process"]["capabilities"].clone();
    assert_eq!(strings(&config_of(&spec)["effective"]), [""; 0]);
    spec.capabilities.add = vec!["NET_BIND_SERVICE".into()];
    assert_eq!(
        strings(&config_of(&spec)["ambient"]),
        ["CAP_NET_BIND_SERVICE"]
    );
    spec.run_as = None;
    assert_eq!(strings(&config_of(&spec)["ambient"]), [""; 0]);
    assert!(strings(&config_of(&spec)["effective"]).contains(&"CAP_CHOWN"));
}

#[test]
fn mounts_are_read_only_unless_said_otherwise() {
    let mut spec = spec();
    let mount = |source, destination: &str, options: &[MountOption]| Mount {
        source,
        destination: destination.parse().unwrap(),
        options: options.to_vec(),
    };
    spec.mounts = vec![
        mount(
            MountSource::HostPath("/var/log".parse().unwrap()),
            "/log",
            &[],
        ),
        mount(
            MountSource::HostPath("/var/data".parse().unwrap()),
            "/data",
            &[MountOption::ReadWrite, MountOption::Rbind],
        ),
        mount(
            MountSource::HostPath("/proc".parse().unwrap()),
            "/proc-of-host",
            &[],
        ),
        mount(MountSource::UserVolume("a".parse().unwrap()), "/a", &[]),
        mount(
            MountSource::UserVolume("b".parse().unwrap()),
            "/b",
            &[MountOption::ReadWrite],
        ),
        mount(
            MountSource::Tmpfs {
                size: Some(ByteSize(1 << 20)),
            },
            "/tmp",
            &[MountOption::NoExec],
        ),
    ];
    let host = HostView {
        hostname: Some("node-1".into()),
        files: vec![("/run/etc/hosts".into(), "/etc/hosts".into())],
        ..HostView::default()
    };
    let config = runtime_config(
        &spec,
        &image(),
        Path::new("/nonexistent"),
        Path::new("/merged"),
        &host,
    )
    .unwrap();
    let options = |destination: &str| {
        let mounts = config["mounts"].as_array().unwrap();
        strings(
            &mounts
                .iter()
                .find(|mount| mount["destination"] == destination)
                .unwrap()["options"],
        )
        .join(",")
    };
    assert_eq!(options("/log"), "rbind,ro");
    // The boot id that is mounted in it belongs to the generation.
    assert_eq!(options("/proc-of-host"), "bind,ro");
    assert_eq!(options("/data"), "rw,rbind");
    assert_eq!(
        (options("/a"), options("/b")),
        ("rbind,ro".into(), "rw,rbind".into())
    );
    let writable: Vec<_> = spec.writable_volumes().collect();
    assert_eq!(writable, [Path::new("/var/mnt/b")]);
    assert_eq!(options("/tmp"), "noexec,nosuid,nodev,size=1048576");
    assert!(options("/etc/hosts").contains("ro"));
    assert_eq!(config["hostname"], "node-1");
}

#[test]
fn limits_become_cgroup_settings() {
    let mut spec = spec();
    spec.limits = ResourceLimits {
        cpu: Some(Millicores(1500)),
        memory: Some(ByteSize(64 << 20)),
    };
    let resources = config(&spec, &image())["linux"]["resources"].clone();
    assert_eq!(resources["cpu"]["quota"], 150_000);
    assert_eq!(
        resources["memory"],
        json!({"limit": 64 << 20, "swap": 64 << 20})
    );
    spec.limits = ResourceLimits {
        cpu: Some(Millicores(1)),
        memory: None,
    };
    let resources = config(&spec, &image())["linux"]["resources"].clone();
    assert_eq!(resources["cpu"]["quota"], 1000);
    assert!(resources.get("memory").is_none());
}

#[test]
fn the_machines_devices_are_given_to_containers_that_get_all() {
    let tun = json!({"type": "c", "path": "/dev/net/tun", "major": 10, "minor": 200});
    let host = HostView {
        devices: vec![tun.clone()],
        ..HostView::default()
    };
    let devices = |profile| {
        let mut spec = spec();
        spec.profile = profile;
        let (image, files) = (image(), Path::new("/nonexistent"));
        let config = runtime_config(&spec, &image, files, Path::new("/merged"), &host);
        config.unwrap()["linux"]["devices"].clone()
    };
    for profile in [SecurityProfile::Privileged, SecurityProfile::Node] {
        assert_eq!(devices(profile), json!([tun]));
    }
    for profile in [SecurityProfile::Usual, SecurityProfile::Restricted] {
        assert_eq!(devices(profile), json!([]));
    }
}

#[test]
fn hostile_values_are_refused() {
    let refuse = |change: &dyn Fn(&mut ContainerSpec)| {
        let mut spec = spec();
        change(&mut spec);
        runtime_config(
            &spec,
            &image(),
            Path::new("/nonexistent"),
            Path::new("/merged"),
            &HostView::default(),
        )
        .unwrap_err()
    };
    assert!(matches!(
        refuse(&|spec| spec.environment = vec!["=x".into()]),
        SpecError::Environment(_)
    ));
    assert!(matches!(
        refuse(&|spec| spec.environment = vec!["x".into()]),
        SpecError::Environment(_)
    ));
    assert!(matches!(
        refuse(&|spec| spec.environment = vec!["x=\0".into()]),
        SpecError::ZeroByte(_)
    ));
    assert!(matches!(
        refuse(&|spec| spec.args = vec!["\0".into()]),
        SpecError::ZeroByte(_)
    ));
    assert!(matches!(
        refuse(&|spec| spec.working_dir = Some("srv".into())),
        SpecError::RelativeDirectory(_)
    ));
    assert!(matches!(
        refuse(&|spec| spec.working_dir = Some("/a\0b".into())),
        SpecError::ZeroByte(_)
    ));
    assert!(matches!(
        refuse(&|spec| spec.capabilities.add = vec!["ROOT".into()]),
        SpecError::Capability(_)
    ));
}
