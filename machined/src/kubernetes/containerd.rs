//! containerd's configuration, and the machine's registries as containerd reads them (`hosts.toml`, one folder for each registry).

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::NodeFile;
use crate::config::{Mirror, Registries, RegistryAuth};
use crate::values::server_of;

/// The directory of registries, as the container sees it.
const HOSTS: &str = "/instar/hosts";
/// The same, below the directory that the container sees as /instar.
pub(super) const HOSTS_FOLDER: &str = "hosts";

/// The address at which the machine serves its own images to containerd.
pub const PODS_REGISTRY: &str = "127.0.0.1:50005";

/// Returns containerd's configuration, version 3. Without `image_pull_with_sync_fs`, which containerd's transfer service does not know, an image may be
/// complete for containerd after a power cut while its files are empty.
pub(super) fn configuration(registries: &Registries) -> String {
    let mut text = format!(
        "version = 3
root = \"/var/lib/containerd\"
state = \"/run/containerd\"
[grpc]
address = \"/run/containerd/containerd.sock\"
[plugins.'io.containerd.cri.v1.images']
image_pull_with_sync_fs = true
use_local_image_pull = true
[plugins.'io.containerd.cri.v1.images'.registry]
config_path = \"{HOSTS}\"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = \"io.containerd.runc.v2\"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
SystemdCgroup = false
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = [\"/opt/cni/bin\", \"/usr/local/bin/cni\"]
conf_dir = \"/etc/cni/net.d\"
"
    );
    for (host, auth) in &registries.auth {
        let table = format!(
            "[plugins.'io.containerd.cri.v1.images'.registry.configs.{}.auth]\n",
            quoted(&host.to_string())
        );
        text += &table;
        text += &match auth {
            RegistryAuth::Password { username, password } => format!(
                "username = {}\npassword = {}\n",
                quoted(username),
                quoted(password.expose())
            ),
            RegistryAuth::IdentityToken(token) => {
                format!("identitytoken = {}\n", quoted(token.expose()))
            }
        };
    }
    text
}

/// Returns the files of registries: for each one with a mirror or with TLS settings its folder, and for each one that the machine has images
/// of (`here`).
pub(super) fn hosts(registries: &Registries, here: &BTreeSet<String>) -> Vec<NodeFile> {
    let mirrors = registries.mirrors.iter();
    let mirrors: BTreeMap<String, &Mirror> = mirrors
        .map(|(host, mirror)| (host.to_string(), mirror))
        .collect();
    let with_tls: BTreeSet<String> = registries.tls.keys().map(ToString::to_string).collect();
    let none = Mirror::default();
    // A folder of its own hides that of all registries.
    let of_all = mirrors.get("*").copied().unwrap_or(&none);
    let named: BTreeSet<&String> = mirrors.keys().chain(&with_tls).chain(here).collect();
    let folder = |host: &String| {
        let without = if with_tls.contains(host) {
            &none
        } else {
            of_all
        };
        let mirror = mirrors.get(host).copied().unwrap_or(without);
        hosts_toml(host, mirror, registries, here)
    };
    let mut files: Vec<NodeFile> = named.into_iter().map(folder).collect();
    for (host, tls) in &registries.tls {
        let mut part = |name: &str, content: &str| {
            files.push(NodeFile::of_control(
                &format!("hosts/{host}/{name}"),
                content,
            ));
        };
        if let Some(authority) = &tls.ca {
            part("ca.crt", authority);
        }
        if let Some(identity) = &tls.client_identity {
            part("client.crt", &identity.certificate);
            part("client.key", identity.key.expose());
        }
    }
    files
}

fn hosts_toml(
    host: &str,
    mirror: &Mirror,
    registries: &Registries,
    here: &BTreeSet<String>,
) -> NodeFile {
    let directory = if host == "*" { "_default" } else { host };
    let mut text = String::new();
    // The server is asked last, by the settings at the top. Without it, containerd takes the registry itself, and no settings for TLS.
    let has_tls = registries.tls.keys().any(|it| it.to_string() == host);
    match mirror.endpoints.last() {
        Some(last) if mirror.skip_fallback => {
            text += &format!("server = {}\n", quoted(&last.url.to_string()));
            if last.override_path {
                text += "override_path = true\n";
            }
            text += &tls_settings(&last.url.authority, registries);
        }
        _ if has_tls && host != "*" => {
            text += &format!(
                "server = {}\n",
                quoted(&format!("https://{}", server_of(host)))
            );
            text += &tls_settings(host, registries);
        }
        _ => {}
    }
    if here.contains(host) {
        text += &format!(
            "[host.{}]\ncapabilities = [\"pull\", \"resolve\"]\noverride_path = true\n",
            quoted(&format!("http://{PODS_REGISTRY}/v2/{host}"))
        );
    }
    let mut asked = BTreeSet::new();
    for endpoint in &mirror.endpoints {
        let url = endpoint.url.to_string();
        let table = format!(
            "[host.{}]\ncapabilities = [\"pull\", \"resolve\"]\n",
            quoted(&url)
        );
        // Two tables of one name are no TOML: containerd would pull nothing of this registry.
        if !asked.insert(url) {
            continue;
        }
        text += &table;
        if endpoint.override_path {
            text += "override_path = true\n";
        }
        text += &tls_settings(&endpoint.url.authority, registries);
    }
    NodeFile::of_control(&format!("hosts/{directory}/hosts.toml"), &text)
}

/// Returns the TLS settings for the host that is asked.
fn tls_settings(host: &str, registries: &Registries) -> String {
    let mut of_host = registries.tls.iter();
    let Some((_, tls)) = of_host.find(|(name, _)| name.to_string() == host) else {
        return String::new();
    };
    let path = |name: &str| quoted(&format!("{HOSTS}/{host}/{name}"));
    let mut text = String::new();
    if tls.ca.is_some() {
        text += &format!("ca = {}\n", path("ca.crt"));
    }
    if tls.client_identity.is_some() {
        text += &format!(
            "client = [[{}, {}]]\n",
            path("client.crt"),
            path("client.key")
        );
    }
    if tls.insecure_skip_verify {
        text += "skip_verify = true\n";
    }
    text
}

/// Returns a text as TOML has it: JSON's escapes are among those of a basic string.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::config::{HostTls, MirrorEndpoint, RegistryHost, Secret};

    fn host(name: &str) -> RegistryHost {
        name.parse().unwrap()
    }

    #[test]
    fn mirrors_are_asked_in_their_order_and_the_registry_last() {
        let endpoint = |url: &str, override_path| MirrorEndpoint {
            url: url.parse().unwrap(),
            override_path,
        };
        let mirror = Mirror {
            endpoints: vec![
                endpoint("http://10.0.2.2:5000", false),
                endpoint("https://mirror.example.com/v2/k8s", true),
            ],
            skip_fallback: false,
        };
        let tls = HostTls {
            ca: Some("PEM".to_owned()),
            insecure_skip_verify: true,
            ..HostTls::default()
        };
        let registries = Registries {
            mirrors: [(host("registry.k8s.io"), mirror)].into(),
            tls: [(host("mirror.example.com"), tls)].into(),
            auth: [].into(),
        };
        let files = hosts(&registries, &BTreeSet::new());
        let text = |name: &str| {
            let file = files.iter().find(|file| file.path.ends_with(name));
            file.unwrap().content.clone()
        };
        assert_eq!(
            text("hosts/registry.k8s.io/hosts.toml"),
            "[host.\"http://10.0.2.2:5000\"]\ncapabilities = [\"pull\", \"resolve\"]\n\
             [host.\"https://mirror.example.com/v2/k8s\"]\ncapabilities = [\"pull\", \"resolve\"]\noverride_path = true\n\
             ca = \"/instar/hosts/mirror.example.com/ca.crt\"\nskip_verify = true\n"
        );
        assert_eq!(text("hosts/mirror.example.com/ca.crt"), "PEM");
        assert_eq!(files.len(), 3);
    }

    #[test]
    fn a_mirror_that_is_named_twice_is_asked_once() {
        let endpoint = |url: &str| MirrorEndpoint {
            url: url.parse().unwrap(),
            override_path: false,
        };
        let mirror = Mirror {
            endpoints: ["http://a:5000", "http://b:5000", "http://a:5000/"]
                .map(endpoint)
                .into(),
            skip_fallback: false,
        };
        let registries = Registries::default();
        let file = hosts_toml("docker.io", &mirror, &registries, &BTreeSet::new());
        let tables = file.content.lines().filter(|line| line.starts_with('['));
        let tables: Vec<_> = tables.collect();
        assert_eq!(
            tables,
            ["[host.\"http://a:5000\"]", "[host.\"http://b:5000\"]"]
        );
    }

    /// What the config says of a registry's TLS holds also behind mirrors, which may all be away.
    #[test]
    fn the_last_server_has_its_own_settings() {
        let mirror = |skip_fallback| Mirror {
            endpoints: vec![MirrorEndpoint {
                url: "https://m.example.com/v2/k8s".parse().unwrap(),
                override_path: true,
            }],
            skip_fallback,
        };
        let none = Mirror::default();
        let own = "skip_verify = true\n";
        let of_mirror = format!(
            "[host.\"https://m.example.com/v2/k8s\"]\ncapabilities = [\"pull\", \"resolve\"]\noverride_path = true\n{own}"
        );
        // the registry, its mirror → what its file says
        let table = [
            (
                "r.example.com",
                &none,
                format!("server = \"https://r.example.com\"\n{own}"),
            ),
            (
                "docker.io",
                &none,
                format!("server = \"https://registry-1.docker.io\"\n{own}"),
            ),
            (
                "r.example.com",
                &mirror(false),
                format!("server = \"https://r.example.com\"\n{own}{of_mirror}"),
            ),
            (
                "r.example.com",
                &mirror(true),
                format!(
                    "server = \"https://m.example.com/v2/k8s\"\noverride_path = true\n{own}{of_mirror}"
                ),
            ),
        ];
        for (name, mirror, expected) in table {
            let tls = HostTls {
                insecure_skip_verify: true,
                ..HostTls::default()
            };
            let registries = Registries {
                tls: [name, "m.example.com"]
                    .map(|it| (host(it), tls.clone()))
                    .into(),
                ..Registries::default()
            };
            let file = hosts_toml(name, mirror, &registries, &BTreeSet::new());
            assert_eq!(file.content, expected, "{name} {mirror:?}");
        }
    }

    /// The machine's own images come first: they are there when no registry is.
    #[test]
    fn images_of_the_machine_are_asked_for_before_their_registry() {
        let here = BTreeSet::from(["docker.io".to_owned(), "r.example.com:5000".to_owned()]);
        let text = |registries: &Registries, name: &str| {
            let files = hosts(registries, &here);
            let file = files.iter().find(|file| file.path.ends_with(name));
            file.unwrap().content.clone()
        };
        let own = |host: &str| {
            format!(
                "[host.\"http://127.0.0.1:50005/v2/{host}\"]\ncapabilities = [\"pull\", \"resolve\"]\noverride_path = true\n"
            )
        };
        let mut registries = Registries::default();
        let docker = "hosts/docker.io/hosts.toml";
        assert_eq!(text(&registries, docker), own("docker.io"));
        let mirror = Mirror {
            endpoints: vec![MirrorEndpoint {
                url: "http://10.0.2.2:5000".parse().unwrap(),
                override_path: false,
            }],
            skip_fallback: true,
        };
        let of_mirror = "[host.\"http://10.0.2.2:5000\"]\ncapabilities = [\"pull\", \"resolve\"]\n";
        let last = "server = \"http://10.0.2.2:5000\"\n";
        registries.mirrors.insert(host("*"), mirror);
        let expected = format!("{last}{}{of_mirror}", own("docker.io"));
        assert_eq!(text(&registries, docker), expected);
        let all = text(&registries, "hosts/_default/hosts.toml");
        assert_eq!(all, format!("{last}{of_mirror}"));
    }

    #[test]
    fn credentials_are_in_the_configuration() {
        let auth = RegistryAuth::Password {
            username: "me".to_owned(),
            password: Secret::new("a\"b"),
        };
        let registries = Registries {
            auth: [(host("r.example.com:5000"), auth)].into(),
            ..Registries::default()
        };
        let text = configuration(&registries);
        assert!(
            text.ends_with(
                "[plugins.'io.containerd.cri.v1.images'.registry.configs.\"r.example.com:5000\".auth]\n\
                 username = \"me\"\npassword = \"a\\\"b\"\n"
            ),
            "{text}"
        );
    }
}
