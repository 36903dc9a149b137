//! A registry that asks for certificates and a password.

use std::fs;
use std::path::Path;

use instar_base::error_chain::chain;
use instar_http_client::Trust;
use instar_values::{ClientIdentity, HostTls, RegistryAuth, Secret};
use serde_json::json;

use super::credentials::scripted;
use super::pulling::puller;
use super::registry::{Registry, mirrored};
use crate::Registries;

/// A registry that asks for a client certificate and a password, and a test authority with a certificate for each side.
struct LockedRegistry {
    registry: Registry,
    /// The settings of an accepted client: the authority and the client's certificate.
    tls: HostTls,
    _files: tempfile::TempDir,
}

impl LockedRegistry {
    fn new() -> Self {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut ca = rcgen::CertificateParams::new(Vec::<String>::new()).unwrap();
        ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let ca = rcgen::CertifiedIssuer::self_signed(ca, key).unwrap();
        let leaf = |name: &str, usage| {
            let key = rcgen::KeyPair::generate().unwrap();
            let mut params = rcgen::CertificateParams::new([name.to_owned()]).unwrap();
            params.extended_key_usages = vec![usage];
            let certificate = params.signed_by(&key, &ca).unwrap();
            (certificate.pem(), key.serialize_pem())
        };
        let server = leaf("127.0.0.1", rcgen::ExtendedKeyUsagePurpose::ServerAuth);
        let client = leaf("node", rcgen::ExtendedKeyUsagePurpose::ClientAuth);
        let files = tempfile::tempdir().unwrap();
        let registry = Self::start(files.path(), &ca.pem(), &server);
        let (certificate, key) = client;
        let tls = HostTls {
            ca: Some(ca.pem()),
            client_identity: Some(ClientIdentity {
                certificate,
                key: Secret::new(key),
            }),
            insecure_skip_verify: false,
        };
        Self {
            registry,
            tls,
            _files: files,
        }
    }

    fn start(directory: &Path, ca: &str, (certificate, key): &(String, String)) -> Registry {
        let put = |name: &str, content: &str| {
            let path = directory.join(name);
            fs::write(&path, content).unwrap();
            path
        };
        // bcrypt of "hunter2", as `htpasswd -B` writes it.
        let htpasswd = put(
            "htpasswd",
            "bob:$2b$05$abcdefghijklmnopqrstuuoXuKqgZXLiJqzfmMXDDhSFPIvxV7t8.\n",
        );
        let certificate = put("server.pem", certificate);
        let key = put("server.key", key);
        let authority = put("ca.pem", ca);
        let tls = json!({"certificate": certificate, "key": key, "clientcas": [authority]});
        Registry::with(json!({ "tls": tls }), Some(&htpasswd))
    }

    /// The error for a client with these settings.
    async fn refusal(&self, tls: HostTls, password: Option<&str>) -> String {
        let host = self.registry.host();
        let auth = password.map(|password| RegistryAuth::Password {
            username: "bob".into(),
            password: Secret::new(password),
        });
        let settings = Registries {
            trust: Trust {
                hosts: [(host.clone(), tls)].into(),
                ..Trust::default()
            },
            auth: auth.map(|auth| (host, auth)).into_iter().collect(),
            ..Registries::default()
        };
        let reference = self.registry.reference(":v1");
        chain(&puller(settings).resolve(&reference).await.unwrap_err())
    }
}

#[tokio::test]
async fn tls_client_certificates_and_passwords() {
    let locked = LockedRegistry::new();
    let tls = || locked.tls.clone();
    // All credentials are right: the registry looks for the image, which it does not have.
    let said = locked.refusal(tls(), Some("hunter2")).await;
    assert!(said.contains("MANIFEST_UNKNOWN"), "{said}");
    let said = locked.refusal(tls(), Some("wrong")).await;
    assert!(said.contains("it refuses access (UNAUTHORIZED"), "{said}");
    let said = locked.refusal(tls(), None).await;
    assert!(said.contains("it refuses access"), "{said}");
    let unknown_authority = HostTls { ca: None, ..tls() };
    let said = locked.refusal(unknown_authority, None).await;
    assert!(
        said.contains("certificate") || said.contains("no certificate authority"),
        "{said}"
    );
    let anybody = HostTls {
        ca: None,
        insecure_skip_verify: true,
        ..tls()
    };
    let said = locked.refusal(anybody, Some("hunter2")).await;
    assert!(said.contains("MANIFEST_UNKNOWN"), "{said}");
    let unknown_client = HostTls {
        client_identity: None,
        ..tls()
    };
    let said = locked.refusal(unknown_client, Some("hunter2")).await;
    assert!(
        said.contains("broke") || said.contains("handshake"),
        "{said}"
    );
}

/// The store of blobs behind a registry refuses a link that is too old: no credentials of the config help.
#[tokio::test]
async fn a_refusal_is_told_from_that_of_the_server_behind_the_registry() {
    let forbidden = "403 Forbidden\r\nContent-Length: 0";
    let (blobs, _) = scripted(|_, _| forbidden.to_owned());
    let to = blobs.clone();
    let (redirecting, _) = scripted(move |_, _| {
        format!("307 Temporary Redirect\r\nContent-Length: 0\r\nLocation: http://{to}/blob")
    });
    let (refusing, _) = scripted(|_, _| forbidden.to_owned());
    let elsewhere = format!("it redirects to {blobs}, which refuses access");
    for (host, expected, is_its_own) in [
        (redirecting, elsewhere.as_str(), false),
        (refusing, "it refuses access", true),
    ] {
        let puller = puller(mirrored("r.example", &[&format!("http://{host}")]));
        let error = puller.resolve(&"r.example/app:v1".parse().unwrap()).await;
        let said = chain(&error.unwrap_err());
        assert!(said.contains(expected), "{said}");
        assert_eq!(said.contains("RegistryAuthConfig"), is_its_own, "{said}");
    }
}
