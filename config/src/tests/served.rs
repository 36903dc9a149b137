//! The model of served documents.

use std::time::Duration;

use super::{super::*, with};

fn config(documents: &str) -> MachineConfig {
    let parsed = with(documents).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(parsed.warnings, [], "{documents}");
    parsed.config
}

/// The model, whether there are warnings or not.
fn config_as_it_is(documents: &str) -> MachineConfig {
    with(documents)
        .unwrap_or_else(|errors| panic!("{errors}"))
        .config
}

fn warned(documents: &str) -> Vec<String> {
    let parsed = with(documents).unwrap_or_else(|errors| panic!("{errors}"));
    parsed
        .warnings
        .into_iter()
        .map(|warning| warning.path)
        .collect()
}

fn problems(documents: &str) -> String {
    with(documents).map(|_| ()).unwrap_err().to_string()
}

#[test]
fn hostname() {
    let policy = |document: &str| {
        config(&format!(
            "apiVersion: v1alpha1\nkind: HostnameConfig\n{document}"
        ))
        .hostname
    };
    assert_eq!(policy("auto: stable"), HostnamePolicy::Stable);
    assert_eq!(policy("auto: off"), HostnamePolicy::Off);
    assert_eq!(
        policy("hostname: node-1.example.org"),
        HostnamePolicy::Fixed("node-1.example.org".parse().unwrap())
    );
    assert_eq!(config("").hostname, HostnamePolicy::Stable);
}

/// Talos's documentation has this patch for a config that says `auto: stable`.
#[test]
fn a_hostname_with_auto_off_is_that_hostname() {
    let document = |auto: &str| {
        format!("apiVersion: v1alpha1\nkind: HostnameConfig\nhostname: node-1\nauto: {auto}")
    };
    let fixed = HostnamePolicy::Fixed("node-1".parse().unwrap());
    assert_eq!(config(&document("off")).hostname, fixed);
    let refused = problems(&document("stable"));
    assert!(refused.contains("auto: "), "{refused}");
}

/// machined would take another name: the kernel keeps no longer one.
#[test]
fn a_hostname_that_the_kernel_does_not_take_is_refused() {
    let new = |name: &str| format!("apiVersion: v1alpha1\nkind: HostnameConfig\nhostname: {name}");
    let old = |name: &str| {
        let machine = super::machine();
        parse(format!("{machine}  network:\n    hostname: {name}\n").as_bytes())
    };
    let longest = format!("{}.{}", "a".repeat(32), "b".repeat(31));
    let fixed = HostnamePolicy::Fixed(longest.parse().unwrap());
    assert_eq!(config(&new(&longest)).hostname, fixed);
    assert_eq!(old(&longest).unwrap().config.hostname, fixed);
    for (name, complaint) in [
        (
            format!("{longest}c"),
            "hostname: a machine's host name has at most 64 characters with its domain, and this one 65",
        ),
        ("a".repeat(64), "hostname: a host name has labels of"),
    ] {
        for errors in [problems(&new(&name)), old(&name).unwrap_err().to_string()] {
            assert!(errors.contains(complaint), "{errors}");
        }
    }
}

#[test]
fn install() {
    let install = |document: &str| {
        config_as_it_is(&format!(
            "apiVersion: v1alpha1\nkind: UnattendedInstallConfig\n{document}"
        ))
        .install
        .unwrap()
    };
    let selector = "provisioning:\n  diskSelector:\n    match: disk.size > 10u * GiB\n";
    let plain = install(selector);
    assert_eq!(
        plain.selector,
        DiskSelector::Cel("disk.size > 10u * GiB".into())
    );
    assert_eq!((plain.wipe, plain.reboot, plain.image), (true, false, None));
    let image = install(&format!(
        "installer: {{image: \"r.local/i:v1\"}}\n{selector}  wipe: false"
    ));
    assert_eq!((image.wipe, image.reboot), (false, true));
    assert!(
        !install(&format!(
            "installer: {{image: \"r.local/i:v1\"}}\nreboot: false\n{selector}"
        ))
        .reboot
    );
    assert_eq!(config("").install, None);
}

#[test]
fn container_defaults_are_strict() {
    let config = config("apiVersion: v1alpha1\nkind: ContainerConfig\nname: web\nimage: nginx");
    let [web] = config.containers.as_slice() else {
        panic!()
    };
    assert_eq!(web.security, Security::default());
    assert_eq!(web.security.profile, SecurityProfile::Usual);
    assert_eq!(web.network, ContainerNetwork::None);
    assert_eq!(
        (
            &web.entrypoint,
            &web.args,
            web.uid,
            web.cpu_limit,
            &web.health
        ),
        (&None, &None, None, None, &None)
    );
}

#[test]
fn a_container_has_one_of_the_profiles_of_talos_or_none() {
    let with = |profile: &str| {
        format!(
            "apiVersion: v1alpha1\nkind: ContainerConfig\nname: web\nimage: nginx\nsecurity: {{profile: {profile}}}"
        )
    };
    for (word, profile) in [
        ("restricted", SecurityProfile::Restricted),
        ("privileged", SecurityProfile::Privileged),
    ] {
        assert_eq!(config(&with(word)).containers[0].security.profile, profile);
    }
    assert!(problems(&with("baseline")).contains("security.profile"));
}

#[test]
fn nobody_runs_as_a_number_that_is_nobodys() {
    for id in ["4294967295", "65535"] {
        for field in ["uid", "gid"] {
            let document = format!(
                "apiVersion: v1alpha1\nkind: ContainerConfig\nname: web\nimage: nginx\nrunAs: {{{field}: {id}}}"
            );
            let problems = problems(&document);
            assert!(
                problems.contains(&format!("runAs.{field}")) && problems.contains(id),
                "{problems}"
            );
        }
    }
}

#[test]
fn a_number_is_text_where_text_belongs() {
    let config = config(
        "apiVersion: v1alpha1\nkind: ContainerConfig\nname: 007\nimage: nginx:1.10\nargs: [1.10, true, 0x10]",
    );
    let [web] = config.containers.as_slice() else {
        panic!()
    };
    assert_eq!(web.name.as_str(), "007");
    assert_eq!(web.image.to_string(), "docker.io/library/nginx:1.10");
    assert_eq!(web.args.as_ref().unwrap(), &["1.10", "true", "0x10"]);
}

#[test]
fn updates_of_containers() {
    let config = config_as_it_is(
        "\
apiVersion: v1alpha1
kind: ContainerConfig
name: web
image: nginx
---
apiVersion: instar.dev/v1alpha1
kind: ContainerUpdateConfig
name: web
apply: approved
interval: 10m
healthy: 90s
window:
  start: \"02:00\"
  length: 2h
  days: [Sat, Sun]
  utcOffset: \"+01:00\"
---
apiVersion: v1alpha1
kind: ContainerConfig
name: usual
image: nginx
---
apiVersion: instar.dev/v1alpha1
kind: ContainerUpdateConfig
name: usual
",
    );
    let window = Window::new(
        "02:00".parse().unwrap(),
        Duration::from_secs(7200),
        vec!["Sat".parse().unwrap(), "Sun".parse().unwrap()],
        "+01:00".parse().unwrap(),
    );
    let updates: Vec<ContainerUpdates> = config
        .containers
        .iter()
        .map(|container| container.updates.clone().unwrap())
        .collect();
    let web = ContainerUpdates {
        apply: ApplyUpdates::Approved,
        interval: Duration::from_secs(600),
        healthy: Duration::from_secs(90),
        window: window.ok(),
    };
    let usual = ContainerUpdates {
        apply: ApplyUpdates::Rebuilds,
        interval: Duration::from_secs(3600),
        healthy: Duration::from_secs(60),
        window: None,
    };
    assert_eq!(updates, [web, usual]);
}

#[test]
fn health_and_gate() {
    let config = config_as_it_is(
        "\
apiVersion: v1alpha1
kind: ContainerConfig
name: web
image: nginx
---
apiVersion: instar.dev/v1alpha1
kind: ContainerHealthConfig
name: web
exec:
  command: [/bin/true]
failureThreshold: 5
required: false
---
apiVersion: instar.dev/v1alpha1
kind: ContainerUpgradeConfig
name: web
strategy: restart
---
apiVersion: v1alpha1
kind: ContainerConfig
name: usual
image: nginx
---
apiVersion: instar.dev/v1alpha1
kind: UpgradeGateConfig
timeout: 90s
probes:
  - name: api
    tcp: {address: \"127.0.0.1:80\"}
",
    );
    let health = config.containers[0].health.as_ref().unwrap();
    assert_eq!(health.check, HealthProbe::Exec(vec!["/bin/true".into()]));
    assert_eq!(
        (health.interval, health.timeout),
        (Duration::from_secs(10), Duration::from_secs(5))
    );
    assert_eq!((health.failure_threshold, health.required), (5, false));
    let strategies: Vec<UpgradeStrategy> = config
        .containers
        .iter()
        .map(|container| container.upgrade_strategy)
        .collect();
    assert_eq!(
        strategies,
        [UpgradeStrategy::Restart, UpgradeStrategy::Keep]
    );
    assert_eq!(config.upgrade_gate.timeout, Duration::from_secs(90));
    assert_eq!(
        config.upgrade_gate.probes[0].target,
        CheckTarget::Tcp("127.0.0.1:80".parse().unwrap())
    );
}

/// The kernel would drop such a source, and the route never be the one that is wanted.
#[test]
fn a_route_and_its_source_are_of_one_family() {
    let link = |route: &str| {
        format!("apiVersion: v1alpha1\nkind: LinkConfig\nname: eth0\nroutes: [{{{route}}}]")
    };
    for route in [
        "destination: 10.0.0.0/8, source: fd00::7",
        "gateway: fe80::1, source: 10.0.0.7",
    ] {
        let text = link(route);
        let refused = problems(&text);
        assert!(refused.contains("routes[0].source: "), "{refused}");
        // A machine that has it already keeps the route, and its address.
        let taken = parse_taken(format!("{}---\n{text}", super::machine()).as_bytes());
        let taken = taken.unwrap_or_else(|errors| panic!("{errors}"));
        let routes = &taken.config.network.links[0].routes;
        assert!(matches!(routes.as_slice(), [route] if route.source.is_none()));
        assert_eq!(taken.warnings.len(), 1, "{:?}", taken.warnings);
    }
    let source = "10.0.0.7".parse().ok();
    let taken = config(&link("gateway: 10.0.0.1, source: 10.0.0.7"));
    assert_eq!(taken.network.links[0].routes[0].source, source);
}

#[test]
fn a_default_route_is_a_gateway_alone_or_to_everywhere() {
    let config = config(
        "\
apiVersion: v1alpha1
kind: LinkConfig
name: eth0
routes:
  - gateway: 10.0.0.1
  - destination: 0.0.0.0/0
    gateway: 10.0.0.1
  - destination: 10.1.0.0/16
  - destination: \"::/0\"
",
    );
    let to: Vec<_> = config.network.links[0]
        .routes
        .iter()
        .map(|route| route.destination)
        .collect();
    let [there, everywhere] = ["10.1.0.0/16", "::/0"].map(|to| to.parse().ok());
    assert_eq!(to, [None, None, there, everywhere]);
}

/// The time servers of a config, and its warnings.
fn clock(servers: &str) -> (Vec<String>, Vec<String>) {
    let text = format!("{}  time:\n    servers: {servers}\n", super::machine());
    let parsed = parse(text.as_bytes()).unwrap_or_else(|errors| panic!("{errors}"));
    let servers = parsed.config.time.servers.iter().map(ToString::to_string);
    let warnings = parsed.warnings.iter().map(|warning| warning.path.clone());
    (servers.collect(), warnings.collect())
}

#[test]
fn a_clock_device_among_time_servers_is_a_warning_and_the_servers_are_asked() {
    let (servers, warnings) = clock("[/dev/ptp0, a.b, /dev/ptp_kvm]");
    assert_eq!(servers, ["a.b"]);
    assert_eq!(
        warnings,
        ["machine.time.servers[0]", "machine.time.servers[2]"]
    );
    assert_eq!(clock("[/dev/ptp0]").0, Vec::<String>::new());
    for wrong in ["/dev/sda", "/dev/ptp/0", "/etc/ptp0", "/dev/"] {
        let text = format!("{}  time:\n    servers: [{wrong}]\n", super::machine());
        let errors = parse(text.as_bytes()).unwrap_err().to_string();
        assert!(
            errors.contains("machine.time.servers[0]: a time server"),
            "{errors}"
        );
    }
}

#[test]
fn an_mtu_of_zero_is_none() {
    let link = |mtu: &str| {
        format!(
            "apiVersion: v1alpha1\nkind: LinkConfig\nname: eth0\nmtu: {mtu}\nroutes: [{{gateway: 10.0.0.1, mtu: {mtu}}}]"
        )
    };
    let old = |mtu: &str| {
        let interface = format!(
            "{{interface: eth0, mtu: {mtu}, routes: [{{network: 0.0.0.0/0, gateway: 10.0.0.1, mtu: {mtu}}}]}}"
        );
        let network = format!("  network:\n    interfaces: [{interface}]\n");
        parse(format!("{}{network}", super::machine()).as_bytes())
    };
    assert_eq!(config(&link("0")).network.links[0].mtu, None);
    let parsed = old("0").unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(parsed.warnings, []);
    assert_eq!(parsed.config.network.links[0].mtu, None);
    for mtu in ["1", "67", "65537", "-1"] {
        for errors in [problems(&link(mtu)), old(mtu).unwrap_err().to_string()] {
            assert_eq!(
                errors.matches("is not within 68 and 65536").count(),
                2,
                "{errors}"
            );
        }
    }
}

#[test]
fn names_of_volumes_are_those_of_talos() {
    let volume = |name: &str| {
        format!("apiVersion: v1alpha1\nkind: UserVolumeConfig\nname: {name}\nvolumeType: directory")
    };
    let mounted = format!(
        "{}\n---\n{}\n---\napiVersion: v1alpha1\nkind: ContainerConfig\nname: web\nimage: nginx\n\
         mounts: [{{userVolume: {{name: Data-1, destination: /data}}}}]",
        volume("Data-1"),
        volume("data-1"),
    );
    let config = config(&mounted);
    let paths = config.user_volumes.iter().map(|volume| volume.name.path());
    let paths: Vec<_> = paths.collect();
    assert_eq!(
        paths,
        ["/var/mnt/Data-1", "/var/mnt/data-1"].map(Into::into) as [std::path::PathBuf; 2]
    );
    for name in ["a_b", "\u{e4}", "a/b", &"a".repeat(35)] {
        assert!(
            problems(&volume(name)).contains("1 to 34 characters"),
            "{name}"
        );
    }
}

#[test]
fn a_name_server_for_tls_is_not_asked_in_the_clear() {
    let documents = "apiVersion: v1alpha1\nkind: ResolverConfig\nnameservers:\n  - address: 1.1.1.1\n    protocol: DoT\n  - address: 9.9.9.9\n    protocol: Do53";
    assert_eq!(
        warned(documents),
        ["ResolverConfig.nameservers[0].protocol"]
    );
    assert_eq!(
        with(documents).unwrap().config.network.nameservers,
        ["9.9.9.9:53".parse().unwrap()]
    );
}

#[test]
fn warnings_name_what_is_not_served() {
    assert_eq!(
        warned("apiVersion: v1alpha1\nkind: KubePrismConfig\nport: 7445"),
        ["KubePrismConfig"]
    );
    assert_eq!(
        warned(
            "apiVersion: v1alpha1\nkind: TimeSyncConfig\nntp:\n  servers: [a.b]\n  useNTS: true\nptp:\n  devices: [/dev/ptp0]"
        ),
        ["TimeSyncConfig.ntp.useNTS", "TimeSyncConfig.ptp.devices"]
    );
    assert_eq!(
        warned("apiVersion: v1alpha1\nkind: UserVolumeConfig\nname: data\nvolumeType: partition"),
        ["UserVolumeConfig.volumeType"]
    );
    assert_eq!(
        warned(
            "apiVersion: v1alpha1\nkind: UserVolumeConfig\nname: data\nprovisioning: {minSize: 1GiB}"
        ),
        ["UserVolumeConfig.volumeType"]
    );
    assert_eq!(
        warned(
            "apiVersion: v1alpha1\nkind: UserVolumeConfig\nname: data\nvolumeType: directory\nencryption: {provider: luks2}"
        ),
        ["UserVolumeConfig.encryption.provider"]
    );
    // These values ask for nothing.
    assert_eq!(
        warned(
            "apiVersion: v1alpha1\nkind: TimeSyncConfig\nntp: {useNTS: false}\nptp: {devices: []}"
        ),
        Vec::<String>::new()
    );
}

/// Kinds that the published schema lacks or names differently; Talos writes and accepts the first name of each.
#[test]
fn kinds_that_the_schema_lacks_load() {
    for kind in ["KubeSpanEndpointsConfig", "KubeSpanEndpoints"] {
        assert_eq!(
            warned(&format!(
                "apiVersion: v1alpha1\nkind: {kind}\nextraAnnouncedEndpoints: [\"192.0.2.1:51820\"]"
            )),
            ["KubeSpanEndpointsConfig"]
        );
    }
}

#[test]
fn a_pattern_that_matches_nothing_is_a_warning() {
    let parsed = with(
        "\
apiVersion: v1alpha1
kind: ImageVerificationConfig
rules:
  - {image: \"*\", skip: true}
  - {image: \"registry.local:5000/*\", skip: true}
  - {image: \"*/installer\", skip: true}
  - {image: \"r.io/a@sha256:*\", skip: true}
  - {image: \"r.io/a:v1\", skip: true}
  - {image: nginx, skip: true}
",
    )
    .unwrap();
    let warnings: Vec<_> = parsed
        .warnings
        .iter()
        .map(|warning| (warning.path.as_str(), warning.message.as_str()))
        .collect();
    let expected = [
        (3, "a pattern is compared without digest: with `@` it matches no image"),
        (4, "a pattern is compared without tag: with `:` in its path it matches no image"),
        (5, "a pattern is compared with registry and repository: without `/` it may match nothing, `nginx` is `docker.io/library/nginx`"),
    ]
    .map(|(rule, message)| (format!("ImageVerificationConfig.rules[{rule}].image"), message));
    let expected: Vec<_> = expected
        .iter()
        .map(|(path, message)| (path.as_str(), *message))
        .collect();
    assert_eq!(warnings, expected);
    assert_eq!(parsed.config.image_rules.len(), 6);
}

#[test]
fn keys_for_root_filesystems_are_public_keys_and_at_least_one() {
    let document = |keys: &str| {
        format!("apiVersion: instar.dev/v1alpha1\nkind: UpgradeTrustConfig\nkeys: {keys}\n")
    };
    assert!(config("").upgrade_keys.is_empty());
    let key = "-----BEGIN PUBLIC KEY-----\\nMCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\\n-----END PUBLIC KEY-----\\n";
    let trusting = config(&document(&format!("[\"{key}\"]")));
    assert_eq!(trusting.upgrade_keys.len(), 1);
    for (keys, complaint) in [
        ("[]", "keys: at least one key"),
        (
            "[\"no key\"]",
            "keys[0]: this must be one public key in PEM",
        ),
    ] {
        let errors = with(&document(keys)).unwrap_err().to_string();
        assert!(errors.contains(complaint), "{errors}");
    }
}

#[test]
fn the_mirror_of_everything_is_the_last_resort() {
    let registries = config(
        "apiVersion: v1alpha1\nkind: RegistryMirrorConfig\nname: \"*\"\nendpoints: [{url: \"http://all/\"}]\n---\napiVersion: v1alpha1\nkind: RegistryMirrorConfig\nname: docker.io\nendpoints: [{url: \"http://hub/\", overridePath: true}]\nskipFallback: true",
    )
    .registries;
    let hub = registries.mirror("docker.io").unwrap();
    assert_eq!(
        (
            hub.endpoints[0].url.to_string().as_str(),
            hub.endpoints[0].override_path,
            hub.skip_fallback
        ),
        ("http://hub", true, true)
    );
    assert_eq!(
        registries.mirror("ghcr.io").unwrap().endpoints[0]
            .url
            .to_string(),
        "http://all"
    );
}

/// Both puller and containerd look credentials up by the host that asks for them.
#[test]
fn credentials_of_docker_io_are_those_of_the_host_that_serves_it() {
    let auth = |name: &str, user: &str| {
        format!(
            "apiVersion: v1alpha1\nkind: RegistryAuthConfig\nname: {name}\nusername: {user}\npassword: x"
        )
    };
    let own = "registry-1.docker.io";
    let table = [
        (auth("docker.io", "a"), Some("a")),
        (auth("index.docker.io", "a"), Some("a")),
        (auth(own, "b"), Some("b")),
        (
            auth("docker.io", "a") + "\n---\n" + &auth(own, "b"),
            Some("b"),
        ),
        (auth("r.io", "a"), None),
    ];
    for (text, expected) in table {
        let auth = config(&text).registries.auth;
        let found = auth.iter().find(|(host, _)| host.to_string() == own);
        let found = found.map(|(_, auth)| format!("{auth:?}"));
        let is_there = |user: &str| {
            found
                .as_ref()
                .is_some_and(|it| it.contains(&format!("{user:?}")))
        };
        assert_eq!(found.is_some(), expected.is_some(), "{text}");
        assert!(expected.is_none_or(is_there), "{text}: {found:?}");
    }
}

#[test]
fn aliases_are_what_they_refer_to() {
    let config = config(
        "apiVersion: v1alpha1\nkind: ContainerConfig\nname: a\nimage: &image nginx\nargs: &args [x]\nenvironment: [A=b]\nentrypoint: *args\nworkingDir: /srv",
    );
    assert_eq!(config.containers[0].entrypoint.as_ref().unwrap(), &["x"]);
}

#[test]
fn where_images_come_from_is_read_without_a_machine_document() {
    let text = "apiVersion: v1alpha1\nkind: RegistryMirrorConfig\nname: r.io\nendpoints: [{url: \"http://r.io/\"}]\nskipFallback: true";
    let sources = parse_image_sources(text.as_bytes()).unwrap();
    let mirror = sources.registries.mirror("r.io").unwrap();
    assert!(mirror.skip_fallback && !mirror.endpoints[0].url.https);
    let error =
        parse_image_sources(b"apiVersion: v1alpha1\nkind: RegistryMirrorConfig\nnames: r.io");
    assert!(error.unwrap_err().to_string().contains("names"));
}

#[test]
fn bundles_are_approved_by_their_digest() {
    let document =
        |fields: &str| format!("apiVersion: instar.dev/v1alpha1\nkind: BundleConfig\n{fields}\n");
    assert_eq!(config("").bundles, BundleRules::default());
    let digest = Digest::of(b"bundle");
    let rules = config(&document(&format!(
        "approved: [\"{digest}\"]\nsticks: ignore"
    )))
    .bundles;
    assert_eq!(
        (rules.approved, rules.sticks),
        ([digest].into(), Sticks::Ignore)
    );
    let rules = config(&document("sticks: accept")).bundles;
    assert_eq!(rules, BundleRules::default());
    let rules = config(&document("askAt: [serial, screen]\nupgrade: true")).bundles;
    assert_eq!(rules.ask_at, [AskAt::Screen, AskAt::Serial].into());
    assert!(rules.upgrade && !rules.support);
    assert!(config(&document("support: true")).bundles.support);
    for (fields, complaint) in [
        ("approved: [sha512:00]", "approved[0]: "),
        ("sticks: maybe", "sticks: "),
        ("askAt: [door]", "askAt[0]: expected `screen` or `serial`"),
    ] {
        let errors = with(&document(fields)).unwrap_err().to_string();
        assert!(errors.contains(complaint), "{errors}");
    }
}

#[test]
fn images_are_pinned_in_a_window_and_with_a_bandwidth() {
    let document =
        |fields: &str| format!("apiVersion: instar.dev/v1alpha1\nkind: ImagePinConfig\n{fields}\n");
    assert_eq!(config("").image_pins, ImagePins::default());
    let pins = config(&document(
        "images: [r.io/web:v2, r.io/os]\nwindow: {start: \"02:00\", length: 3h}\nbandwidth: 2MiB/s",
    ))
    .image_pins;
    let images = ["r.io/web:v2", "r.io/os:latest"];
    assert_eq!(pins.images, images.map(|name| name.parse().unwrap()));
    assert_eq!(pins.window, "02:00-05:00".parse().ok());
    assert_eq!(pins.bandwidth, "2MiB/s".parse().ok());
    let pins = config(&document("images: [r.io/web]")).image_pins;
    assert_eq!((pins.window, pins.bandwidth), (None, None));
    for (fields, complaint) in [
        ("bandwidth: 2MiB/s", "images"),
        ("images: [R.io/Web]", "images[0]: "),
        (
            "images: [r.io/a, \"r.io/a:latest\"]",
            "images: r.io/a:latest is named twice",
        ),
        ("images: [r.io/a]\nbandwidth: 2MiB", "bandwidth: "),
        (
            "images: [r.io/a]\nwindow: {start: \"02:00\", length: 3s}",
            "window.length: ",
        ),
    ] {
        let errors = with(&document(fields)).unwrap_err().to_string();
        assert!(errors.contains(complaint), "{errors}");
    }
}

/// A key for documents that need one.
const KEY: &str = "|\n  -----BEGIN PUBLIC KEY-----\n  MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\n  -----END PUBLIC KEY-----";

#[test]
fn a_channel_is_followed_with_a_policy() {
    let document = |fields: &str| {
        format!(
            "apiVersion: instar.dev/v1alpha1\nkind: UpgradeFollowConfig\npublicKey: {KEY}\n{fields}\n"
        )
    };
    assert_eq!(config("").upgrade_follow, None);
    let least = config(&document("channel: stable")).upgrade_follow.unwrap();
    assert_eq!(least.interval.as_secs(), 3600);
    assert_eq!((least.jitter.as_secs(), least.hold_for), (0, None));
    assert_eq!(least.healthy_for.as_secs(), 300);
    assert_eq!((least.urls.len(), least.approval), (0, Approval::NotNeeded));
    let full = document(&format!(
        "channel: stable\nurls: [https://a.example/channels, http://b.example]\ninterval: 15m\njitter: 10m\nlabels: [canary=yes]\n\
         download: {{window: {{start: \"01:00\", length: 1h}}, bandwidth: 2MiB/s}}\nswitch: {{window: {{start: \"02:00\", length: 3h}}}}\n\
         approval: key\napprovalKey: {KEY}\nhealthyFor: 30m\nholdFor: 24h\nreport: https://a.example/report\n\
         fleetLock: {{url: \"http://lock.example\", group: drawer}}"
    ));
    let follow = config(&full).upgrade_follow.unwrap();
    assert_eq!(follow.channel.as_str(), "stable");
    assert_eq!(follow.urls.len(), 2);
    assert_eq!(follow.download_window, "01:00-02:00".parse().ok());
    assert_eq!(follow.switch_window, "02:00-05:00".parse().ok());
    assert_eq!(follow.bandwidth, "2MiB/s".parse().ok());
    assert!(matches!(follow.approval, Approval::ByKey(_)));
    assert_eq!(follow.hold_for.unwrap().as_secs(), 24 * 3600);
    assert_eq!(follow.fleet_lock.unwrap().group.as_str(), "drawer");
    for (fields, complaint) in [
        ("interval: 15m", "channel"),
        ("channel: Stable", "channel: "),
        ("channel: stable\ninterval: 1s", "interval: "),
        ("channel: stable\nurls: [ftp://a]", "urls[0]: "),
        ("channel: stable\nlabels: [canary]", "labels[0]: "),
        ("channel: stable\napproval: key", "approvalKey: "),
        (
            &format!("channel: stable\napprovalKey: {KEY}"),
            "approvalKey: ",
        ),
        (
            "channel: stable\njitter: 3h\nswitch: {window: {start: \"02:00\", length: 3h}}",
            "jitter: ",
        ),
        (
            "channel: stable\nfleetLock: {url: \"http://a\", group: a_b}",
            "fleetLock.group: ",
        ),
    ] {
        let errors = with(&document(fields)).unwrap_err().to_string();
        assert!(errors.contains(complaint), "{fields}: {errors}");
    }
}

/// The last one would win, and the address of the first one would be lost.
#[test]
fn an_interface_has_one_entry() {
    let with = |entries: &str| {
        let machine = super::machine();
        let network = format!("  network:\n    interfaces: [{entries}]\n");
        parse(format!("{machine}{network}").as_bytes())
    };
    let first = "{interface: eth0, addresses: [10.0.0.1/24]}";
    assert!(with(&format!("{first}, {{interface: eth1, mtu: 1400}}")).is_ok());
    let errors = with(&format!("{first}, {{interface: eth0, mtu: 1400}}")).unwrap_err();
    let problem = "machine.network.interfaces[1].interface: `eth0` has an entry above";
    assert!(errors.to_string().contains(problem), "{errors}");
}

#[test]
fn name_servers_that_are_never_asked_are_named() {
    let servers = |count: u8| (1..=count).map(|it| format!("192.0.2.{it}"));
    let old = |count: u8| {
        let list = servers(count).collect::<Vec<_>>().join(", ");
        let network = format!("  network: {{nameservers: [{list}]}}\n");
        parse(format!("{}{network}", super::machine()).as_bytes()).unwrap()
    };
    let new = |more: &str, count: u8| {
        let list: String = servers(count)
            .map(|it| format!("  - address: {it}\n"))
            .collect();
        let document = "apiVersion: v1alpha1\nkind: ResolverConfig\nnameservers:\n";
        with(&format!("{document}{more}{list}")).unwrap()
    };
    let warned = |parsed: Parsed| {
        let warnings = parsed.warnings.into_iter();
        let mut warnings = warnings.filter(|it| it.message.contains("never asked"));
        warnings.next().map(|it| it.path)
    };
    assert_eq!(warned(old(3)), None);
    assert_eq!(warned(old(5)).unwrap(), "machine.network.nameservers[3]");
    assert_eq!(warned(new("", 3)), None);
    assert_eq!(warned(new("", 4)).unwrap(), "ResolverConfig.nameservers[3]");
    // One of another protocol is not asked anyway.
    let other = "  - {address: 192.0.2.9, protocol: DoT}\n";
    assert_eq!(warned(new(other, 3)), None);
}
