//! The documents of a new machine config: one per concern, as tools of this interface write them from 1.14 on.

use serde::Serialize;

const VERSION: &str = "v1alpha1";

/// What goes into a machine config.
pub(super) struct Wanted {
    pub(super) token: String,
    /// Base64 of PEM.
    pub(super) ca_certificate: String,
    /// Base64 of PEM.
    pub(super) ca_key: String,
    /// Of the node's certificate.
    pub(super) names: Vec<String>,
    pub(super) hostname: Option<String>,
    /// Device path.
    pub(super) disk: Option<String>,
}

/// All documents as one YAML stream.
pub(super) fn machine_config(wanted: &Wanted) -> Result<String, serde_saphyr::ser::Error> {
    let main = Main {
        version: VERSION,
        debug: false,
        persist: true,
        machine: Machine {
            r#type: "controlplane",
            token: &wanted.token,
            ca: Authority {
                crt: &wanted.ca_certificate,
                key: &wanted.ca_key,
            },
            cert_sans: &wanted.names,
        },
    };
    let hostname = Hostname {
        api_version: VERSION,
        kind: "HostnameConfig",
        auto: wanted.hostname.is_none().then_some("stable"),
        hostname: wanted.hostname.as_deref(),
    };
    let mut documents = vec![
        serde_saphyr::to_string(&main)?,
        serde_saphyr::to_string(&hostname)?,
    ];
    if let Some(disk) = &wanted.disk {
        documents.push(serde_saphyr::to_string(&UnattendedInstall {
            api_version: VERSION,
            kind: "UnattendedInstallConfig",
            provisioning: Provisioning {
                disk_selector: Selector {
                    r#match: format!("disk.dev_path == {}", quoted(disk)),
                },
                wipe: false,
            },
        })?);
    }
    Ok(documents.join("---\n"))
}

/// A string of the expression language.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[derive(Serialize)]
struct Main<'a> {
    version: &'a str,
    debug: bool,
    persist: bool,
    machine: Machine<'a>,
}

#[derive(Serialize)]
struct Machine<'a> {
    r#type: &'a str,
    token: &'a str,
    ca: Authority<'a>,
    #[serde(rename = "certSANs")]
    cert_sans: &'a [String],
}

#[derive(Serialize)]
struct Authority<'a> {
    crt: &'a str,
    key: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Hostname<'a> {
    api_version: &'a str,
    kind: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    auto: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hostname: Option<&'a str>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct UnattendedInstall<'a> {
    api_version: &'a str,
    kind: &'a str,
    provisioning: Provisioning,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Provisioning {
    disk_selector: Selector,
    wipe: bool,
}

#[derive(Serialize)]
struct Selector {
    r#match: String,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn wanted() -> Wanted {
        Wanted {
            token: "abcdef.0123456789abcdef".into(),
            ca_certificate: "Q0E=".into(),
            ca_key: "S0VZ".into(),
            names: vec!["127.0.0.1".into()],
            hostname: None,
            disk: None,
        }
    }

    #[test]
    fn shape_of_the_documents() {
        let wanted = Wanted {
            disk: Some("/dev/vda".into()),
            ..wanted()
        };
        let expected = r#"version: v1alpha1
debug: false
persist: true
machine:
  type: controlplane
  token: abcdef.0123456789abcdef
  ca:
    crt: Q0E=
    key: S0VZ
  certSANs:
  - "127.0.0.1"
---
apiVersion: v1alpha1
kind: HostnameConfig
auto: stable
---
apiVersion: v1alpha1
kind: UnattendedInstallConfig
provisioning:
  diskSelector:
    match: disk.dev_path == "/dev/vda"
  wipe: false
"#;
        assert_eq!(machine_config(&wanted).unwrap(), expected);
    }

    #[test]
    fn a_hostname_replaces_the_made_up_one() {
        let text = machine_config(&Wanted {
            hostname: Some("node-1".into()),
            ..wanted()
        })
        .unwrap();
        assert!(text.contains("hostname: node-1"), "{text}");
        assert!(!text.contains("auto:"), "{text}");
    }

    #[test]
    fn a_disk_cannot_end_the_expression() {
        assert_eq!(quoted(r#"a" || true || "\"#), r#""a\" || true || \"\\""#);
    }
}
