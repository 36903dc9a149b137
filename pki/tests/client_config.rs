//! Client configurations as other tools write them, and our own.
#![allow(clippy::unwrap_used)]

use std::time::{Duration, SystemTime};

use instar_pki::client_config::{ClientConfig, ClientConfigError, Context};
use instar_pki::{CertificateAuthority, PrivateKey, Role, certificates_from_pem, client_roles};

const TALOS_1_13: &str = include_str!("data/talosconfig-1.13.yaml");
const TALOS_1_14: &str = include_str!("data/talosconfig-1.14.yaml");

#[test]
fn files_of_the_talos_tool_load() {
    for text in [TALOS_1_13, TALOS_1_14] {
        let config = ClientConfig::from_yaml(text).unwrap();
        let context = config.context(None).unwrap();
        let certificate = certificates_from_pem(&context.crt_pem().unwrap().unwrap())
            .unwrap()
            .remove(0);
        assert!(client_roles(&certificate).unwrap().contains(&Role::Admin));
        PrivateKey::from_pem(&context.key_pem().unwrap().unwrap()).unwrap();
        certificates_from_pem(&context.ca_pem().unwrap().unwrap()).unwrap();
        assert_eq!(
            ClientConfig::from_yaml(&config.to_yaml().unwrap()).unwrap(),
            config
        );
    }
}

#[test]
fn our_own_comes_back() {
    let now = SystemTime::now();
    let authority = CertificateAuthority::generate(now).unwrap();
    let identity = authority
        .issue_client(&[Role::Admin], now, Duration::from_secs(3600))
        .unwrap();
    let config = ClientConfig::single(
        "demo",
        Context::new(vec!["127.0.0.1:50000".into()], &authority, &identity),
    );
    let text = config.to_yaml().unwrap();
    assert!(!text.contains("nodes"), "absent keys are left out: {text}");
    let again = ClientConfig::from_yaml(&text).unwrap();
    assert_eq!(again, config);
    let context = again.context(Some("demo")).unwrap();
    assert_eq!(context.crt_pem().unwrap().unwrap(), identity.pem());
    assert_eq!(context.endpoints(), ["127.0.0.1:50000"]);
    assert!(
        !format!("{context:?}").contains("LS0t"),
        "no key in debug output"
    );
}

#[test]
fn missing_contexts_are_named() {
    let config = ClientConfig::from_yaml(TALOS_1_14).unwrap();
    let error = config.context(Some("other")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no context \"other\" in the client configuration; it has demo"
    );
    let error = ClientConfig::from_yaml("")
        .unwrap()
        .context(None)
        .unwrap_err();
    assert!(matches!(error, ClientConfigError::NoneChosen { known } if known.is_empty()));
}

#[test]
fn old_target_counts_as_endpoint() {
    let config =
        ClientConfig::from_yaml("context: a\ncontexts:\n  a:\n    target: 10.0.0.1\n").unwrap();
    assert_eq!(config.context(None).unwrap().endpoints(), ["10.0.0.1"]);
}

#[test]
fn broken_values_are_errors() {
    let config =
        ClientConfig::from_yaml("context: a\ncontexts:\n  a:\n    ca: '%%%'\n    crt: ''\n")
            .unwrap();
    let context = config.context(None).unwrap();
    assert!(matches!(
        context.ca_pem(),
        Err(ClientConfigError::BadBase64 { key: "ca" })
    ));
    assert_eq!(context.crt_pem().unwrap(), None);
    assert!(matches!(
        ClientConfig::from_yaml("contexts: 5"),
        Err(ClientConfigError::Parse(_))
    ));
}
