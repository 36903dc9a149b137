//! Machines that are nodes of a Kubernetes cluster.

use super::{super::*, data, fixture_certificate, with};

pub(super) const OURS: &str = "
---
apiVersion: instar.dev/v1alpha1
kind: KubernetesConfig
image: r.example.com/kubernetes:v0.1.0
---
apiVersion: instar.dev/v1alpha1
kind: ExtensionConfig
name: kubernetes
image: r.example.com/ext/kubernetes:v1.36.3
---
apiVersion: instar.dev/v1alpha1
kind: ExtensionConfig
name: containerd
image: r.example.com/ext/containerd:v2.4.2
";

/// The config that `talosctl gen config` writes for a worker, with our documents.
fn worker(release: &str) -> Parsed {
    let talos = std::fs::read_to_string(data(&format!("{release}/worker.yaml"))).unwrap();
    parse(format!("{talos}{OURS}").as_bytes()).unwrap_or_else(|errors| panic!("{errors}"))
}

#[test]
fn a_node_forwards_packets_of_pods_unless_its_config_says_otherwise() {
    let of = |documents: &str| {
        let talos = std::fs::read_to_string(data("1.14/worker.yaml")).unwrap();
        let parsed = parse(format!("{talos}{documents}").as_bytes()).unwrap();
        let mut sysctls = parsed.config.sysctls.into_iter();
        sysctls.find_map(|(name, value)| name.to_string().contains("ip_forward").then_some(value))
    };
    assert_eq!(of(""), None);
    assert_eq!(of(OURS).as_deref(), Some("1"));
    let own =
        "---\napiVersion: v1alpha1\nkind: SysctlConfig\nparams: {net.ipv4.ip_forward: \"0\"}\n";
    assert_eq!(of(&format!("{OURS}{own}")).as_deref(), Some("0"));
}

#[test]
fn a_worker_of_talosctl_joins_its_cluster() {
    for release in ["1.13", "1.14"] {
        let parsed = worker(release);
        let kubernetes = parsed.config.kubernetes.unwrap();
        let cluster = &kubernetes.cluster;
        assert_eq!(cluster.endpoint.to_string(), "https://10.0.2.15:6443");
        assert_eq!(cluster.domain, "cluster.local");
        assert_eq!(
            cluster.dns,
            ["10.96.0.10".parse::<std::net::IpAddr>().unwrap()]
        );
        assert!(
            cluster
                .authorities
                .starts_with("-----BEGIN CERTIFICATE-----")
        );
        assert!(cluster.token.expose().contains('.'));
        let names = kubernetes.extensions.iter().map(|it| it.name.as_str());
        assert_eq!(names.collect::<Vec<_>>(), ["containerd", "kubernetes"]);
        assert!(kubernetes.node.default_seccomp);
        assert_eq!(kubernetes.prism, Some(7445));
        let container = parsed.config.containers.last().unwrap();
        assert_eq!(container.name.as_str(), "kubernetes");
        assert_eq!(container.security.profile, SecurityProfile::Node);
        // The image of kubelet is not used: it comes with an extension.
        let warned = parsed.warnings.iter().map(|warning| warning.path.as_str());
        let of_kubelet: Vec<_> = warned.filter(|path| path.contains("ubelet")).collect();
        assert!(
            of_kubelet.iter().all(|path| path.ends_with(".image") || path.ends_with("disableManifestsDirectory")),
            "{of_kubelet:?}"
        );
    }
}

#[test]
fn a_control_plane_of_talosctl_is_a_cluster() {
    for release in ["1.13", "1.14"] {
        let talos = std::fs::read_to_string(data(&format!("{release}/controlplane.yaml"))).unwrap();
        let parsed = parse(format!("{talos}{OURS}").as_bytes());
        let parsed = parsed.unwrap_or_else(|errors| panic!("{errors}"));
        let kubernetes = parsed.config.kubernetes.unwrap();
        let plane = kubernetes.control_plane.unwrap();
        // The node reaches its own API by the loopback, and users as the config says.
        let own = kubernetes.cluster.endpoint.to_string();
        assert_eq!(own, "https://127.0.0.1:6443");
        assert_eq!(plane.endpoint.to_string(), "https://10.0.2.15:6443");
        assert_eq!((plane.cluster_name.as_str(), plane.port), ("demo", 6443));
        let subnets = [plane.pod_subnets[0], plane.service_subnets[0]];
        let subnets = subnets.map(|subnet| subnet.to_string());
        assert_eq!(subnets, ["10.244.0.0/16", "10.96.0.0/12"]);
        let image = plane.api_server.image.unwrap();
        assert_eq!(image.repository(), "kube-apiserver");
        assert_eq!(plane.names, ["127.0.0.1"]);
        assert!(plane.admission.contains_key("PodSecurity"));
        assert!(plane.audit_policy.is_some() && plane.proxy.is_some());
        let encryption = plane.encryption.unwrap();
        assert!(encryption.expose().contains(r#""name":"key2""#));
        let key = plane.keys.service_accounts;
        assert!(key.expose().contains("RSA PRIVATE KEY"));
        let role = "node-role.kubernetes.io/control-plane";
        assert!(kubernetes.node.labels.contains_key(role));
        assert_eq!(
            kubernetes.node.taints[role].effect,
            TaintEffect::NoSchedule,
            "{release}"
        );
    }
}

#[test]
fn a_control_plane_needs_its_keys_and_may_run_pods() {
    let talos = std::fs::read_to_string(data("1.13/controlplane.yaml")).unwrap();
    let allowing = talos.replace(
        "    clusterName: demo\n",
        "    clusterName: demo\n    allowSchedulingOnControlPlanes: true\n",
    );
    let parsed = parse(format!("{allowing}{OURS}").as_bytes()).unwrap();
    assert!(parsed.config.kubernetes.unwrap().node.taints.is_empty());
    let worker = std::fs::read_to_string(data("1.13/worker.yaml")).unwrap();
    let without = worker.replace("type: worker", "type: controlplane");
    let errors = parse(format!("{without}{OURS}").as_bytes()).unwrap_err();
    for lack in [
        "`cluster.ca` with its key",
        "`cluster.aggregatorCA` with its key",
        "`cluster.etcd.ca` with its key",
        "`cluster.serviceAccount.key`",
    ] {
        assert!(errors.to_string().contains(lack), "{errors}");
    }
}

#[test]
fn settings_of_a_node() {
    let certificate = fixture_certificate();
    let main = format!(
        "version: v1alpha1
machine:
  type: worker
  ca: {{crt: {certificate}}}
  nodeLabels: {{disk: fast}}
  nodeAnnotations: {{rack: 7 b}}
  nodeTaints: {{dedicated: 'db:NoSchedule', down: NoExecute}}
  kubelet:
    clusterDNS: [10.3.0.1]
    extraArgs: {{v: 4, feature-gates: [A=true, B=false]}}
    extraConfig: {{maxPods: 7, evictionHard: {{memory.available: '5%'}}, serializeImagePulls: false}}
cluster:
  controlPlane: {{endpoint: 'https://10.0.0.1:6443'}}
  token: abcdef.0123456789abcdef
  ca: {{crt: {certificate}}}
  network: {{dnsDomain: site.local, serviceSubnets: [10.3.0.0/16, 'fd00:3::/108']}}
"
    );
    let parsed =
        parse(format!("{main}{OURS}").as_bytes()).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(parsed.warnings, []);
    let Kubernetes { cluster, node, .. } = parsed.config.kubernetes.unwrap();
    assert_eq!(
        cluster.dns,
        ["10.3.0.1".parse::<std::net::IpAddr>().unwrap()]
    );
    assert_eq!(cluster.domain, "site.local");
    assert_eq!(node.labels["disk"], "fast");
    assert_eq!(node.annotations["rack"], "7 b");
    assert_eq!(node.taints["dedicated"].value, "db");
    assert_eq!(node.taints["down"].effect, TaintEffect::NoExecute);
    assert_eq!(node.kubelet_arguments["v"], ["4"]);
    assert_eq!(
        node.kubelet_arguments["feature-gates"],
        ["A=true", "B=false"]
    );
    assert_eq!(
        serde_json::Value::from(node.kubelet_config).to_string(),
        r#"{"evictionHard":{"memory.available":"5%"},"maxPods":7,"serializeImagePulls":false}"#
    );
    let without = main.replace("    clusterDNS: [10.3.0.1]\n", "");
    let parsed =
        parse(format!("{without}{OURS}").as_bytes()).unwrap_or_else(|errors| panic!("{errors}"));
    let dns = parsed.config.kubernetes.unwrap().cluster.dns;
    let dns: Vec<_> = dns.iter().map(ToString::to_string).collect();
    assert_eq!(dns, ["10.3.0.10", "fd00:3::a"]);
}

#[test]
fn pods_find_the_api_at_the_machine_where_the_config_asks_for_it() {
    let talos = std::fs::read_to_string(data("1.13/worker.yaml")).unwrap();
    let of_talos = "            enabled: true\n            port: 7445\n";
    assert!(talos.contains(of_talos));
    for (fields, expected) in [
        ("            enabled: true\n", Some(7445)),
        (
            "            enabled: true\n            port: 7000\n",
            Some(7000),
        ),
        (
            "            enabled: true\n            port: 0\n",
            Some(7445),
        ),
        ("            enabled: false\n            port: 7445\n", None),
        ("            port: 7445\n", None),
    ] {
        let talos = talos.replacen(of_talos, fields, 1);
        let parsed = parse(format!("{talos}{OURS}").as_bytes()).unwrap();
        assert_eq!(
            parsed.config.kubernetes.unwrap().prism,
            expected,
            "{fields}"
        );
    }
    let wrong = talos.replacen("port: 7445", "port: 70000", 1);
    let errors = parse(format!("{wrong}{OURS}").as_bytes()).unwrap_err();
    assert!(errors.to_string().contains("kubePrism.port"), "{errors}");
}

/// Each of them would keep the node out of its cluster, or its kubelet from starting.
#[test]
fn metadata_that_a_cluster_refuses_is_refused() {
    let talos = std::fs::read_to_string(data("1.13/worker.yaml")).unwrap();
    for (field, wrong, complaint) in [
        (
            "nodeLabels",
            "{disk: very fast}",
            "nodeLabels.disk: the value has",
        ),
        ("nodeLabels", "{'my disk': fast}", "the name has"),
        ("nodeAnnotations", "{'my rack': x}", "the name has"),
        (
            "nodeTaints",
            "{dedicated: 'a b:NoSchedule'}",
            "nodeTaints.dedicated: the value has",
        ),
        ("nodeTaints", "{'a/b/c': NoSchedule}", "the name has"),
    ] {
        let machine = format!("machine:\n    {field}: {wrong}\n");
        let talos = talos.replacen("machine:\n", &machine, 1);
        let errors = parse(format!("{talos}{OURS}").as_bytes()).unwrap_err();
        assert!(errors.to_string().contains(complaint), "{errors}");
    }
}

/// A version without the check has taken it, and without a config the machine would be out of reach.
#[test]
fn metadata_that_a_machine_has_already_is_left_out() {
    let talos = std::fs::read_to_string(data("1.13/worker.yaml")).unwrap();
    let machine = "machine:\n    nodeLabels: {disk: very fast, rack: b}\n    nodeTaints: {'a/b/c': NoSchedule}\n";
    let text = format!("{}{OURS}", talos.replacen("machine:\n", machine, 1));
    parse(text.as_bytes()).unwrap_err();
    let taken = parse_taken(text.as_bytes()).unwrap_or_else(|errors| panic!("{errors}"));
    let warnings = taken.warnings.iter();
    let left_out = warnings.filter(|it| it.message.ends_with("; this is left out"));
    let left_out: Vec<_> = left_out.map(|it| it.path.as_str()).collect();
    assert_eq!(
        left_out,
        ["machine.nodeLabels.disk", "machine.nodeTaints.a/b/c"]
    );
    let node = taken.config.kubernetes.unwrap().node;
    let labels: Vec<_> = node.labels.into_iter().collect();
    assert_eq!(labels, [("rack".to_owned(), "b".to_owned())]);
    assert!(node.taints.is_empty());
    // All that was refused before is refused also here.
    let wrong = text.replacen("a/b/c': NoSchedule", "a': Sometimes", 1);
    parse_taken(wrong.as_bytes()).unwrap_err();
}

/// Fields for kubelet are JSON, which has finite numbers alone: `null` would take a field away.
#[test]
fn words_that_other_languages_take_for_numbers_are_text() {
    let talos = std::fs::read_to_string(data("1.13/worker.yaml")).unwrap();
    let with = |value: &str| {
        let config = format!("        extraConfig: {{value: {value}}}\n");
        let talos = talos.replacen("    kubelet:\n", &format!("    kubelet:\n{config}"), 1);
        let parsed = parse(format!("{talos}{OURS}").as_bytes());
        let parsed = parsed.unwrap_or_else(|errors| panic!("{errors}"));
        parsed.config.kubernetes.unwrap().node.kubelet_config["value"].clone()
    };
    for word in ["nan", "NaN", "inf", "-inf", "infinity", "Infinity", "1e999"] {
        assert_eq!(with(word), word);
    }
    assert_eq!(with("1.5"), 1.5);
    assert_eq!(with("1e3"), 1000.0);
    assert_eq!(with("'1.5'"), "1.5");
}

#[test]
fn what_is_missing_is_named() {
    let problems = |documents: &str| with(documents).map(|_| ()).unwrap_err().to_string();
    let ours = OURS.trim_start().trim_start_matches("---\n");
    let alone = problems(ours);
    for lack in [
        "cluster.controlPlane.endpoint",
        "cluster.token",
        "cluster.ca.crt",
    ] {
        assert!(alone.contains(lack), "{alone}");
    }
    let (node, _) = ours.split_once("---\n").unwrap();
    assert!(problems(node).contains("add an `ExtensionConfig` for each"));
    let extension =
        "apiVersion: instar.dev/v1alpha1\nkind: ExtensionConfig\nname: ../x\nimage: r.io/x\n";
    let found = problems(extension);
    assert!(found.contains("there is no `KubernetesConfig`"), "{found}");
    assert!(found.contains("the name of an extension begins"), "{found}");
}

#[test]
fn an_extension_is_an_image_or_a_file_with_its_digest() {
    let talos = std::fs::read_to_string(data("1.13/worker.yaml")).unwrap();
    let with = |fields: &str| {
        let (ours, _) = OURS.split_once("name: containerd").unwrap();
        parse(format!("{talos}{ours}name: containerd\n{fields}").as_bytes())
    };
    let hex = "a".repeat(64);
    let file = "url: https://example.com/containerd-v2.4.2-x86-64.raw\n";
    for digest in [hex.clone(), format!("sha256:{hex}")] {
        let parsed = with(&format!("{file}sha256: {digest}\n")).unwrap();
        let kubernetes = parsed.config.kubernetes.unwrap();
        let ExtensionSource::File(found) = &kubernetes.extensions[0].source else {
            panic!("{kubernetes:?}");
        };
        assert_eq!(found.sha256.hex(), hex);
    }
    for (fields, problem) in [
        (file.to_owned(), "comes from an `image`, from a file"),
        (format!("{file}sha256: abc\n"), "64 hexadecimal digits"),
        (
            format!("{file}image: r.io/x\n"),
            "comes from an `image`, from a file",
        ),
        (String::new(), "comes from an `image`, from a file"),
    ] {
        let errors = with(&fields).unwrap_err().to_string();
        assert!(errors.contains(problem), "{errors}");
    }
}

#[test]
fn an_extension_follows_a_publisher_by_a_pattern_and_a_key() {
    let talos = std::fs::read_to_string(data("1.13/worker.yaml")).unwrap();
    let with = |fields: &str| {
        let (ours, _) = OURS.split_once("name: containerd").unwrap();
        let folder = "url: https://example.com/extensions/\n";
        parse(format!("{talos}{ours}name: containerd\n{folder}{fields}").as_bytes())
    };
    let key = "publicKey: |\n  -----BEGIN PUBLIC KEY-----\n  MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\n  -----END PUBLIC KEY-----\n";
    let pattern = "match: containerd-@v-%a.raw\n";
    let window = "window: {start: '02:00', length: 2h}\n";
    let parsed = with(&format!("{pattern}{key}{window}interval: 30m\n"));
    let parsed = parsed.unwrap_or_else(|errors| panic!("{errors}"));
    let kubernetes = parsed.config.kubernetes.unwrap();
    let source = &kubernetes.extensions[0].source;
    assert_eq!(
        source.to_string(),
        "https://example.com/extensions/containerd-@v-%a.raw"
    );
    let ExtensionSource::Published(published) = source else {
        panic!("{source:?}");
    };
    assert!(published.window.is_some());
    assert_eq!(published.interval.as_secs(), 1800);
    for (fields, problem) in [
        (pattern.to_owned(), "publicKey"),
        (format!("match: '@v'\n{key}"), "no pattern"),
        (format!("{pattern}{key}interval: 1s\n"), "interval"),
        (
            format!("sha256: {}\n{key}", "a".repeat(64)),
            "are for an extension with `match`",
        ),
    ] {
        let errors = with(&fields).unwrap_err().to_string();
        assert!(errors.contains(problem), "{errors}");
    }
}

#[test]
fn the_container_of_kubernetes_has_its_name_alone() {
    let talos = std::fs::read_to_string(data("1.13/worker.yaml")).unwrap();
    let container =
        "---\napiVersion: v1alpha1\nkind: ContainerConfig\nname: kubernetes\nimage: r.io/x\n";
    let errors = parse(format!("{talos}{OURS}{container}").as_bytes()).unwrap_err();
    assert!(
        errors
            .to_string()
            .contains("Kubernetes runs in a container of this name"),
        "{errors}"
    );
}

#[test]
fn a_cluster_has_one_subnet_of_each_family() {
    let with = |role: &str, pods: &str, services: &str| {
        let talos = std::fs::read_to_string(data(&format!("1.14/{role}.yaml"))).unwrap();
        let pods = format!("podSubnets: {pods}\nserviceSubnets: {services}\n");
        let own = "podSubnets:\n    - 10.244.0.0/16\nserviceSubnets:\n    - 10.96.0.0/12\n";
        assert!(talos.contains(own), "{role}");
        parse(format!("{}{OURS}", talos.replacen(own, &pods, 1)).as_bytes())
    };
    let (two, dual) = (
        "[10.244.0.0/16, 10.245.0.0/16]",
        "[10.96.0.0/12, 'fd00:3::/108']",
    );
    for role in ["controlplane", "worker"] {
        with(role, dual, dual).unwrap_or_else(|errors| panic!("{errors}"));
        for (pods, services, path) in [
            (two, dual, "podSubnets[1]"),
            (dual, two, "serviceSubnets[1]"),
            (
                "['fd00:1::/64', 10.1.0.0/16, 'fd00:2::/64']",
                dual,
                "podSubnets[2]",
            ),
        ] {
            let errors = with(role, pods, services).unwrap_err();
            let errors = errors.to_string();
            assert!(errors.contains(&format!("{path}: ")), "{role}: {errors}");
            assert!(errors.contains("one of each family"), "{errors}");
            assert_eq!(errors.lines().count(), 1, "said once: {errors}");
        }
    }
}

/// The config that `talosctl gen config` writes for a control plane, with further lines in sections of `cluster`.
fn control_plane_with(additions: &[(&str, &str)]) -> Result<Parsed, ConfigErrors> {
    let mut talos = std::fs::read_to_string(data("1.13/controlplane.yaml")).unwrap();
    for (section, lines) in additions {
        let begin = format!("    {section}:\n");
        assert!(talos.contains(&begin), "{section}");
        talos = talos.replacen(&begin, &format!("{begin}{lines}"), 1);
    }
    parse(format!("{talos}{OURS}").as_bytes())
}

fn warned_of(parsed: &Parsed) -> Vec<String> {
    let warnings = parsed.warnings.iter();
    warnings.map(|warning| warning.path.clone()).collect()
}

#[test]
fn what_is_not_served_of_a_program_is_named() {
    let usual = warned_of(&control_plane_with(&[]).unwrap());
    assert!(!usual.iter().any(|path| path.contains("apiServer")));
    let further = |additions: &[(&str, &str)]| {
        let mut paths = warned_of(&control_plane_with(additions).unwrap());
        paths.retain(|path| !usual.contains(path));
        paths
    };
    // The first line is what older releases of talosctl write.
    let served = "        disablePodSecurityPolicy: true\n        extraArgs: {v: 2, a: [b, c]}\n";
    let disabled = "        disabled: false\n        extraArgs: {v: 2}\n";
    let nothing: [&str; 0] = [];
    assert_eq!(
        further(&[("apiServer", served), ("proxy", disabled)]),
        nothing
    );
    let not_served = "        env: {A: b}\n        extraVolumes: [{hostPath: /a}]\n        resources: {limits: {cpu: 1}}\n        disablePodSecurityPolicy: false\n";
    assert_eq!(
        further(&[
            ("apiServer", not_served),
            ("proxy", "        mode: ipvs\n"),
            ("scheduler", "        config: {profiles: []}\n"),
        ]),
        [
            "cluster.apiServer.env",
            "cluster.apiServer.extraVolumes",
            "cluster.apiServer.resources",
            "cluster.apiServer.disablePodSecurityPolicy",
            "cluster.proxy.mode",
            "cluster.scheduler.config",
        ]
    );
}

#[test]
fn a_plugin_without_its_configuration_is_refused() {
    let talos = std::fs::read_to_string(data("1.13/controlplane.yaml")).unwrap();
    let with = |plugin: &str| {
        let list = "        admissionControl:\n";
        let talos = talos.replacen(list, &format!("{list}            - {plugin}\n"), 1);
        parse(format!("{talos}{OURS}").as_bytes())
    };
    assert!(with("{name: EventRateLimit, configuration: {limits: []}}").is_ok());
    for (plugin, problem) in [
        (
            "{name: EventRateLimit}",
            "cluster.apiServer.admissionControl[0].configuration: a plugin is named here for its configuration",
        ),
        (
            "{configuration: {limits: []}}",
            "cluster.apiServer.admissionControl[0].name: this field must not be empty",
        ),
    ] {
        let errors = with(plugin).unwrap_err().to_string();
        assert!(errors.contains(problem), "{errors}");
    }
}

/// In the newer shape the taint itself is in the config.
#[test]
fn pods_on_a_control_plane_are_allowed_in_one_place() {
    for (release, is_ignored) in [("1.13", false), ("1.14", true)] {
        let talos = std::fs::read_to_string(data(&format!("{release}/controlplane.yaml"))).unwrap();
        let allowing = "cluster:\n    allowSchedulingOnControlPlanes: true\n";
        let talos = talos.replacen("cluster:\n", allowing, 1);
        let parsed = parse(format!("{talos}{OURS}").as_bytes()).unwrap();
        let path = "cluster.allowSchedulingOnControlPlanes".to_owned();
        assert_eq!(warned_of(&parsed).contains(&path), is_ignored, "{release}");
    }
}

/// Behind /var, so that it is not covered.
#[test]
fn pods_have_user_volumes_at_their_path() {
    let config = worker("1.13").config;
    let container = config.containers.last().unwrap();
    let place = |path: &str| {
        let mut mounts = container.mounts.iter();
        mounts.position(|mount| mount.destination.as_path() == std::path::Path::new(path))
    };
    assert!(place("/var/mnt") > place("/var"));
    let mount = &container.mounts[place("/var/mnt").unwrap()];
    assert_eq!(
        mount.source,
        MountSource::HostPath("/var/mnt".parse().unwrap())
    );
    assert_eq!(mount.options, [MountOption::ReadWrite]);
}
