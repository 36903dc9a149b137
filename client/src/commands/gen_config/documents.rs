//! The documents of a new machine config: those that talosctl 1.13 and 1.14 both know, so that either can show and change it.

use serde::Serialize;

const VERSION: &str = "v1alpha1";

/// The values that go into a machine config.
pub(super) struct Wanted {
    pub(super) token: String,
    /// Base64 of PEM.
    pub(super) ca_certificate: String,
    /// Base64 of PEM.
    pub(super) ca_key: String,
    /// Names and addresses for the node's certificate.
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
            install: wanted
                .disk
                .as_deref()
                .map(|disk| Install { disk, wipe: false }),
        },
    };
    let hostname = Hostname {
        api_version: VERSION,
        kind: "HostnameConfig",
        auto: wanted.hostname.is_none().then_some("stable"),
        hostname: wanted.hostname.as_deref(),
    };
    let documents = [
        serde_saphyr::to_string(&main)?,
        serde_saphyr::to_string(&hostname)?,
    ];
    Ok(documents.join("---\n"))
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
    #[serde(skip_serializing_if = "Option::is_none")]
    install: Option<Install<'a>>,
}

/// In the older shape: 1.13 does not know the document that replaced it.
#[derive(Serialize)]
struct Install<'a> {
    disk: &'a str,
    wipe: bool,
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
  install:
    disk: /dev/vda
    wipe: false
---
apiVersion: v1alpha1
kind: HostnameConfig
auto: stable
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
}
