//! Kinds for keys and tokens, which only administrators may see.

use std::net::IpAddr;

use instar_pki::CertificateAuthority;

use super::{Item, Kind, Namespace, Record, Sensitivity, Source, Value};
use crate::config::{MachineConfig, Trust};

/// The API's authority, and the authorities that it accepts. Absent if the config lacks the authority's key: such a node signs nothing.
pub(super) const OS_ROOT_SECRETS: Kind = Kind {
    name: "OSRootSecrets.secrets.talos.dev",
    singular: "OSRootSecret",
    namespace: Namespace::Secrets,
    aliases: &[],
    columns: &[],
    sensitivity: Sensitivity::Secret,
    sources: &[Source::Config],
    read: |machine| {
        let configured = machine.config();
        let item = configured.and_then(|configured| os_root(&configured.config));
        Ok(item.into_iter().collect())
    },
};

fn os_root(config: &MachineConfig) -> Option<Item> {
    let trust: &Trust = &config.trust;
    let key = trust.ca_key.as_ref()?.expose();
    // The key gets the PEM label that other tools write, and some insist on.
    let key = match CertificateAuthority::from_pem(&trust.ca, key) {
        Ok(authority) => authority.key_pem(),
        Err(_) => key.to_owned(),
    };
    let pem = |text: &str| Value::Encoded(text.as_bytes().to_vec());
    let certificate = |text: &String| Record::default().with("crt", 1, pem(text));
    let accepted = trust.accepted_cas.iter().chain([&trust.ca]);
    let (addresses, names): (Vec<_>, Vec<_>) = trust
        .cert_sans
        .iter()
        .map(|name| name.parse::<IpAddr>().map_err(|_| name.as_str()))
        .partition(Result::is_ok);
    let token = config.token.as_ref().map_or("", |token| token.expose());
    let spec = Record::default()
        .with(
            "issuingCA",
            1,
            certificate(&trust.ca).with("key", 2, pem(&key)),
        )
        .with(
            "acceptedCAs",
            5,
            accepted.map(certificate).collect::<Value>(),
        )
        .with(
            "certSANIPs",
            2,
            addresses.into_iter().flatten().collect::<Value>(),
        )
        .with(
            "certSANDNSNames",
            3,
            names.into_iter().filter_map(Result::err).collect::<Value>(),
        )
        .with("token", 4, token);
    Some(Item::new("os", spec))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use instar_api::definitions::secrets::OsRootSpec;
    use prost::Message as _;

    use super::*;
    use crate::config;

    const CONFIG: &str = include_str!("../../../../../config/tests/data/served-1.14.yaml");

    #[test]
    fn both_encodings_are_those_of_the_contract() {
        let config = config::parse(CONFIG.as_bytes()).unwrap().config;
        let item = os_root(&config).unwrap();
        assert_eq!(item.id, "os");
        let spec = OsRootSpec::decode(item.spec.protobuf().as_slice()).unwrap();
        let issuing = spec.issuing_ca.unwrap();
        assert_eq!(issuing.crt, config.trust.ca.as_bytes());
        assert!(
            issuing
                .key
                .starts_with(b"-----BEGIN ED25519 PRIVATE KEY-----\n")
        );
        assert_eq!(spec.accepted_c_as.len(), 1);
        assert_eq!(spec.accepted_c_as[0].crt, issuing.crt);
        assert_eq!(spec.cert_sani_ps[0].ip, [10, 0, 2, 15]);
        assert_eq!(spec.cert_sandns_names, ["node-1.local"]);
        assert_eq!(spec.token, "s3cret");
        let yaml: serde_json::Value = serde_saphyr::from_str(&item.spec.yaml()).unwrap();
        // The value is base64 of PEM, as in a machine config.
        let certificate = yaml["issuingCA"]["crt"].as_str().unwrap();
        assert!(CONFIG.contains(certificate), "{certificate}");
        assert_eq!(yaml["certSANIPs"][0], "10.0.2.15");
    }

    #[test]
    fn a_node_without_the_key_has_none() {
        let mut config = config::parse(CONFIG.as_bytes()).unwrap().config;
        config.trust.ca_key = None;
        assert!(os_root(&config).is_none());
    }
}
