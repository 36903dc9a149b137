//! Manifests and CoreDNS, which a machine that is a cluster gives to its cluster.

use super::{super::*, data, kubernetes::OURS};

/// The control plane of the config that talosctl writes, with other text in the place of a part of it.
fn with(release: &str, part: &str, instead: &str) -> Result<Box<ControlPlane>, ConfigErrors> {
    let talos = std::fs::read_to_string(data(&format!("{release}/controlplane.yaml"))).unwrap();
    assert!(talos.contains(part), "{release}: {part}");
    let talos = talos.replacen(part, instead, 1);
    let parsed = parse(format!("{talos}{OURS}").as_bytes())?;
    Ok(parsed.config.kubernetes.unwrap().control_plane.unwrap())
}

/// The same with fields in the section `cluster` of the large document.
fn with_fields(fields: &str) -> Result<Box<ControlPlane>, ConfigErrors> {
    with("1.13", "\ncluster:\n", &format!("\ncluster:\n{fields}"))
}

/// The same with a document in the place of the one for CoreDNS.
fn with_document(document: &str) -> Result<Box<ControlPlane>, ConfigErrors> {
    let core_dns = "apiVersion: v1alpha1\nkind: KubeCoreDNSConfig\nenabled: true";
    with("1.14", core_dns, document)
}

/// The same with a manifest in a document of its own.
fn with_manifest(manifest: &str) -> Result<Box<ControlPlane>, ConfigErrors> {
    let lines = manifest.lines().map(|line| format!("  {line}\n"));
    let lines: String = lines.collect();
    with_document(&format!(
        "apiVersion: v1alpha1\nkind: KubeInlineManifestConfig\nname: notes\nmanifest: |\n{lines}"
    ))
}

const NOTES: &str = "\
# This document has no object.
---
apiVersion: v1
kind: ConfigMap
metadata: {name: note, namespace: notes}
data: {a: '1'}
---
apiVersion: v1
kind: List
items:
  - {apiVersion: apps/v1, kind: Deployment, metadata: {name: d}, spec: {replicas: 2, paused: false}}
  - {apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: 'system:x y'}}
";

#[test]
fn a_manifest_is_its_objects() {
    let manifests = with_manifest(NOTES).unwrap().manifests;
    let [manifest] = manifests.as_slice() else {
        panic!("{manifests:?}");
    };
    assert_eq!(manifest.name, "notes");
    let of = |it: &ManifestObject| {
        let namespace = it.namespace.as_deref().unwrap_or("-");
        format!("{} {} {namespace} {}", it.api_version, it.kind, it.name)
    };
    let found: Vec<_> = manifest.objects.iter().map(of).collect();
    let expected = [
        "v1 ConfigMap notes note",
        "apps/v1 Deployment - d",
        "rbac.authorization.k8s.io/v1 ClusterRole - system:x y",
    ];
    assert_eq!(found, expected);
    assert_eq!(manifest.objects[0].content["data"]["a"], "1");
    let spec = &manifest.objects[1].content["spec"];
    assert_eq!(spec.to_string(), r#"{"paused":false,"replicas":2}"#);
    // The content may be a Secret's.
    assert!(!format!("{manifest:?}").contains("replicas"));
}

#[test]
fn both_shapes_have_manifests() {
    let contents: String = NOTES
        .lines()
        .map(|line| format!("        {line}\n"))
        .collect();
    let fields = format!("    inlineManifests:\n    - name: notes\n      contents: |\n{contents}");
    let old = with_fields(&fields).unwrap().manifests;
    assert_eq!(old, with_manifest(NOTES).unwrap().manifests);
}

#[test]
fn what_is_no_object_is_named_with_its_manifest_and_document() {
    let good = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}";
    let second = |object: &str| format!("{good}\n---\n{object}");
    let named = |metadata: &str| second(&good.replace("{name: a}", metadata));
    for (manifest, fault) in [
        (second("- a"), "document 2: an object is a map of fields"),
        (
            second("kind: A"),
            "document 2: the object has no `apiVersion`",
        ),
        (
            second("apiVersion: v1"),
            "document 2: the object has no `kind`",
        ),
        (named("{}"), "document 2: the object has no `metadata.name`"),
        (
            named("{name: 7}"),
            "document 2: `metadata.name` must be text",
        ),
        (
            named("{name: ''}"),
            "document 2: `metadata.name` is a part of",
        ),
        (
            named("{name: ..}"),
            "document 2: `metadata.name` is a part of",
        ),
        (
            named("{name: a/b}"),
            "document 2: `metadata.name` is a part of",
        ),
        (
            named("{name: a, namespace: .}"),
            "document 2: `metadata.namespace` is a part of",
        ),
        (
            named("{name: a, namespace: a%2f}"),
            "document 2: `metadata.namespace` is a part of",
        ),
        (
            good.replace("v1", "a/b/c"),
            "document 1: `apiVersion` is a part of",
        ),
        (
            "kind: List".to_owned(),
            "document 1: a `List` has the field `items`",
        ),
        (
            "kind: List\nitems: [{kind: A}]".to_owned(),
            "document 1: items[0]: the object has no `apiVersion`",
        ),
        (
            second("a: [b"),
            "line 5, column 4 of the manifest: this is not well-formed YAML",
        ),
    ] {
        let errors = with_manifest(&manifest).unwrap_err().to_string();
        let expected = format!("manifest: the manifest `notes`: {fault}");
        assert!(errors.contains(&expected), "{errors}");
        assert!(
            errors.contains("KubeInlineManifestConfig notes"),
            "{errors}"
        );
    }
}

#[test]
fn manifests_with_aliases_do_not_grow_without_limit() {
    let list = |of: &str, times: usize| format!("[{}]", vec![of; times].join(", "));
    let (a, b, c) = (list("x", 40), list("*a", 40), list("*b", 10));
    let lines = ["apiVersion: v1", "kind: A", "metadata: {name: a}"].map(str::to_owned);
    let grown = [
        format!("a: &a {a}"),
        format!("b: &b {b}"),
        format!("c: {c}"),
    ];
    let lines = lines.iter().chain(&grown);
    let lines: String = lines.map(|line| format!("        {line}\n")).collect();
    let one = format!("    - name: grown\n      contents: |\n{lines}");
    let errors = with_fields(&format!("    inlineManifests:\n{}", one.repeat(100)));
    let errors = errors.unwrap_err().to_string();
    assert!(
        errors.contains("the objects of all manifests have more than"),
        "{errors}"
    );
}

#[test]
fn core_dns_runs_where_the_config_names_it_or_turns_it_on() {
    let usual = Some("registry.k8s.io/coredns/coredns:v1.14.2");
    let of_cluster = |fields: &str| with_fields(&format!("    coreDNS: {{{fields}}}\n"));
    let own = |fields: &str| {
        with_document(&format!(
            "apiVersion: v1alpha1\nkind: KubeCoreDNSConfig\n{fields}\n"
        ))
    };
    for (plane, expected) in [
        (with_fields(""), None),
        (
            of_cluster("image: r.io/coredns:v1"),
            Some("r.io/coredns:v1"),
        ),
        (of_cluster("image: 'r.io/coredns:v1', disabled: true"), None),
        (own("enabled: true"), usual),
        (of_cluster("disabled: false"), usual),
        (of_cluster("disabled: true"), None),
        (
            own("enabled: true\nimage: r.io/coredns:v1"),
            Some("r.io/coredns:v1"),
        ),
        (own("enabled: false\nimage: r.io/coredns:v1"), None),
    ] {
        let plane = plane.unwrap();
        let image = plane.core_dns.as_ref().map(ToString::to_string);
        assert_eq!(image.as_deref(), expected);
        if image.is_some() {
            assert_eq!(plane.core_dns_is_named, expected != usual);
        }
    }
    let errors = of_cluster("image: 'R.io/a b'").unwrap_err().to_string();
    assert!(errors.contains("cluster.coreDNS.image"), "{errors}");
}

/// The warnings of a control plane with a manifest and another document.
fn warnings_beside(document: &str) -> Vec<String> {
    let core_dns = "apiVersion: v1alpha1\nkind: KubeCoreDNSConfig\nenabled: true";
    let talos = std::fs::read_to_string(data("1.14/controlplane.yaml")).unwrap();
    let manifest = "\
apiVersion: v1alpha1
kind: KubeInlineManifestConfig
name: network
manifest: |
  apiVersion: apps/v1
  kind: DaemonSet
  metadata: {name: net, namespace: kube-system}
  spec:
    template:
      spec:
        containers:
          - {name: one, image: 'r.io/one:v1', imagePullPolicy: Always}
          - {name: two, image: r.io/two}
          - {name: three, image: 'r.io/three:v1'}
";
    let talos = talos.replacen(core_dns, manifest, 1);
    let parsed = parse(format!("{talos}{OURS}{document}").as_bytes()).unwrap();
    let warnings = parsed.warnings.iter().map(ToString::to_string);
    warnings.filter(|it| it.contains("DaemonSet")).collect()
}

#[test]
fn a_machine_with_images_of_its_own_warns_of_containers_that_need_a_registry() {
    let pins =
        "---\napiVersion: instar.dev/v1alpha1\nkind: ImagePinConfig\nimages:\n  - r.io/other:v1\n";
    let found = warnings_beside(pins);
    assert_eq!(found.len(), 2, "{found:?}");
    for (warning, container) in found.iter().zip(["one", "two"]) {
        let begin = format!(
            "KubeInlineManifestConfig.manifest: DaemonSet kube-system/net, container {container}: each start asks"
        );
        assert!(warning.starts_with(&begin), "{warning}");
    }
    assert!(
        found[1].contains("the default for the tag `latest`"),
        "{}",
        found[1]
    );
    // Whoever pins the images is right, and whoever has a registry at hand anyway.
    let all = format!("{pins}  - r.io/one:v1\n  - r.io/two:latest\n");
    assert_eq!(warnings_beside(&all), Vec::<String>::new());
    assert_eq!(warnings_beside(""), Vec::<String>::new());
    let bundles = "---\napiVersion: instar.dev/v1alpha1\nkind: BundleConfig\nsticks: ignore\n";
    assert_eq!(warnings_beside(bundles).len(), 2);
}
