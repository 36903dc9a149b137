//! Extensions of the machine itself.

use super::{super::*, with};

fn document(fields: &str) -> String {
    format!("apiVersion: instar.dev/v1alpha1\nkind: ExtensionConfig\n{fields}")
}

fn problems(documents: &str) -> String {
    with(documents).map(|_| ()).unwrap_err().to_string()
}

#[test]
fn an_extension_of_the_machine_itself_needs_no_kubernetes() {
    let (site, data) = (
        document(&format!(
            "name: site\ntarget: os\nurl: https://example.com/site.raw\nsha256: {}\n",
            "a".repeat(64)
        )),
        document("name: data\ntarget: os\nimage: r.io/data:v1\n"),
    );
    let parsed = with(&format!("{site}---\n{data}")).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(parsed.warnings, []);
    let extensions = parsed.config.os_extensions.iter();
    let shown: Vec<_> = extensions
        .map(|it| (it.name.as_str(), it.source.to_string()))
        .collect();
    let address = "https://example.com/site.raw".to_owned();
    let image = "r.io/data:v1".to_owned();
    assert_eq!(shown, [("data", image), ("site", address)]);
    assert!(parsed.config.kubernetes.is_none());
}

#[test]
fn an_extension_is_for_kubernetes_unless_it_says_otherwise() {
    for fields in ["", "target: kubernetes\n"] {
        let found = problems(&document(&format!("name: x\nimage: r.io/x\n{fields}")));
        assert!(found.contains("there is no `KubernetesConfig`"), "{found}");
    }
    let found = problems(&document("name: x\nimage: r.io/x\ntarget: machine\n"));
    assert!(found.contains("target: "), "{found}");
}

#[test]
fn the_machine_itself_follows_no_publisher() {
    let key = "publicKey: |\n  -----BEGIN PUBLIC KEY-----\n  MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\n  -----END PUBLIC KEY-----\n";
    let folder = "url: https://example.com/extensions/\nmatch: x-@v-%a.raw\n";
    let found = problems(&document(&format!("name: x\ntarget: os\n{folder}{key}")));
    assert!(found.contains("follows no publisher"), "{found}");
}

#[test]
fn a_change_of_an_extension_of_the_machine_is_one_of_no_other_setting() {
    let of = |image: &str| {
        let fields = format!("name: x\ntarget: os\nimage: {image}\n");
        with(&document(&fields)).unwrap().config
    };
    let changed = settings::differing(&of("r.io/x:1"), &of("r.io/x:2"));
    let changed: Vec<_> = changed.iter().map(|row| row.setting).collect();
    assert_eq!(changed, [settings::Setting::OsExtensions]);
}
