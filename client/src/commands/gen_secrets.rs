//! `gen secrets`: the values that all machine configs of a fleet share, in the file that `talosctl gen secrets` writes and reads.
//!
//! Instar itself uses `certs.os` and `trustdinfo`. The rest belongs to Kubernetes and etcd: made so that the file is complete for talosctl,
//! and kept so that it stays complete.

use std::path::Path;
use std::time::SystemTime;

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE};
use instar_client::{Failure, FailureKind};
use instar_pki::{CertificateAuthority, PrivateKey};
use ring::rand::{SecureRandom as _, SystemRandom};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::cli::{GenSecrets, Global};
use crate::output::print_bytes;
use crate::talos_version::TalosVersion;
use crate::{patch, private_file};

mod kubernetes_pki;

/// The file. Keys are lower case throughout, values base64 of PEM or text.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Secrets {
    cluster: Cluster,
    secrets: Kubernetes,
    trustdinfo: Trustd,
    certs: Certs,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Cluster {
    id: Option<String>,
    secret: Option<String>,
}

/// Kubernetes' secrets. There are two ways to encrypt etcd's content; a file has one of them.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Kubernetes {
    bootstraptoken: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    aescbcencryptionsecret: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    secretboxencryptionsecret: Option<String>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Trustd {
    token: Option<String>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Certs {
    etcd: Option<Pair>,
    k8s: Option<Pair>,
    k8saggregator: Option<Pair>,
    k8sserviceaccount: Option<Key>,
    os: Option<Pair>,
}

/// A certificate and its key.
#[derive(Debug, Serialize, Deserialize)]
struct Pair {
    crt: String,
    key: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct Key {
    key: String,
}

pub(super) fn run(global: &Global, arguments: &GenSecrets) -> Result<(), Failure> {
    let token = arguments.kubernetes_bootstrap_token.as_deref();
    let (origin, found) = match (
        &arguments.from_kubernetes_pki,
        &arguments.from_controlplane_config,
    ) {
        (Some(directory), _) => (
            Some("Kubernetes PKI"),
            Secrets::of_kubernetes_pki(directory, token)?,
        ),
        (None, Some(path)) => (Some("machine config"), Secrets::of_config(path)?),
        (None, None) => (None, Secrets::default()),
    };
    let version = arguments.talos_version.unwrap_or_default();
    let lacking = found.lacking(version);
    let secrets = found.completed(version, SystemTime::now())?;
    if let Some(origin) = origin.filter(|_| !lacking.is_empty()) {
        eprintln!(
            "the {origin} lacks, and so made anew: {}",
            lacking.join(", ")
        );
    }
    let path = &arguments.output_file;
    if path.as_os_str() == "-" {
        return print_bytes(secrets.text()?.as_bytes());
    }
    let name = path.display().to_string();
    if !arguments.force && path.symlink_metadata().is_ok() {
        return Err(Failure::new(FailureKind::Refused, format!("{name} exists"))
            .advise("its keys cannot be made again: choose another --output-file, or replace it with --force"));
    }
    secrets.write(path)?;
    global.output.show(
        || format!("wrote {name} (holds the keys of a fleet: keep it secret)\nnext: instarctl gen config NAME ENDPOINT --with-secrets {name}"),
        || json!({ "secrets": name }),
    )
}

impl Secrets {
    /// Reads a file that we or talosctl wrote.
    pub(super) fn read(path: &Path) -> Result<Self, Failure> {
        serde_saphyr::from_str(&read(path)?).map_err(|error| not_secrets(path).because(error))
    }

    /// The values for a machine config: the authority of the API, and the token.
    pub(super) fn of_machines(
        mut self,
        path: &Path,
    ) -> Result<(CertificateAuthority, String), Failure> {
        let token = self.trustdinfo.token.take();
        let token = token.filter(|token| !token.is_empty());
        let authority = self.authority(path)?;
        let lacks = || not_secrets(path).because("it has no trustdinfo.token");
        Ok((authority, token.ok_or_else(lacks)?))
    }

    /// Gives the file another authority of the API.
    pub(super) fn replace_authority(
        path: &Path,
        authority: &CertificateAuthority,
    ) -> Result<(), Failure> {
        let mut secrets = Self::read(path)?;
        secrets.certs.os = Some(Pair::of(authority));
        secrets.write(path)
    }

    fn write(&self, path: &Path) -> Result<(), Failure> {
        let name = path.display();
        private_file::replace(path, &self.text()?)
            .map_err(|error| Failure::io(format!("cannot write {name}"), error))
    }

    fn text(&self) -> Result<String, Failure> {
        serde_saphyr::to_string(self).map_err(|error| {
            Failure::new(FailureKind::Failed, "cannot write secrets").because(error)
        })
    }

    /// The authority of the API.
    pub(super) fn authority(self, path: &Path) -> Result<CertificateAuthority, Failure> {
        let lacks = || not_secrets(path).because("it has no certs.os");
        let pair = self.certs.os.ok_or_else(lacks)?;
        let decoded = |text: &str| {
            let bare: String = text.split_ascii_whitespace().collect();
            let bytes = BASE64_STANDARD.decode(bare).ok();
            bytes.and_then(|bytes| String::from_utf8(bytes).ok())
        };
        let (certificate, key) = decoded(&pair.crt).zip(decoded(&pair.key)).ok_or_else(|| {
            not_secrets(path).because("certs.os.crt and certs.os.key must be base64 of PEM")
        })?;
        CertificateAuthority::from_pem(&certificate, &key)
            .map_err(|error| not_secrets(path).because(error))
    }

    /// Reads the secrets from a machine config, in either shape.
    pub(super) fn of_config(path: &Path) -> Result<Self, Failure> {
        let documents = patch::documents(&read(path)?).map_err(|error| {
            let name = path.display();
            Failure::new(
                FailureKind::Usage,
                format!("cannot read the machine config {name}"),
            )
            .because(error)
        })?;
        let config = Config(&documents);
        let secrets = Secrets::of(&config);
        if secrets.certs.os.is_none() {
            let name = path.display();
            return Err(Failure::new(
                FailureKind::Usage,
                format!(
                    "{name} is no machine config of a control plane node: it lacks the authority's key (machine.ca.key)"
                ),
            ));
        }
        Ok(secrets)
    }

    fn of(config: &Config<'_>) -> Self {
        Secrets {
            cluster: Cluster {
                id: config.either("/cluster/id", "DiscoveryIdentityConfig", "/clusterID"),
                secret: config.either(
                    "/cluster/secret",
                    "DiscoveryIdentityConfig",
                    "/clusterSecret",
                ),
            },
            secrets: Kubernetes {
                bootstraptoken: config.main("/cluster/token"),
                aescbcencryptionsecret: config.main("/cluster/aescbcEncryptionSecret"),
                secretboxencryptionsecret: config
                    .main("/cluster/secretboxEncryptionSecret")
                    .or_else(|| config.secretbox()),
            },
            trustdinfo: Trustd {
                token: config.main("/machine/token"),
            },
            certs: Certs {
                etcd: config.pair("/cluster/etcd/ca"),
                k8s: config
                    .pair("/cluster/ca")
                    .or_else(|| config.issuing("KubeAPIServerCAConfig")),
                k8saggregator: config
                    .pair("/cluster/aggregatorCA")
                    .or_else(|| config.issuing("KubeAggregatorCAConfig")),
                k8sserviceaccount: config
                    .main("/cluster/serviceAccount/key")
                    .or_else(|| config.encoded("KubeServiceAccountConfig", "/issuer/privateKey"))
                    .map(|key| Key { key }),
                os: config.pair("/machine/ca"),
            },
        }
    }

    /// The paths that a file of this version needs and that are missing.
    fn lacking(&self, version: TalosVersion) -> Vec<&'static str> {
        let has_encryption = self.secrets.aescbcencryptionsecret.is_some()
            || self.secrets.secretboxencryptionsecret.is_some();
        let encryption = match version.encrypts_by_secretbox() {
            true => "secrets.secretboxencryptionsecret",
            false => "secrets.aescbcencryptionsecret",
        };
        let lacking = [
            ("cluster.id", self.cluster.id.is_none()),
            ("cluster.secret", self.cluster.secret.is_none()),
            (
                "secrets.bootstraptoken",
                self.secrets.bootstraptoken.is_none(),
            ),
            (encryption, !has_encryption),
            ("trustdinfo.token", self.trustdinfo.token.is_none()),
            ("certs.etcd", self.certs.etcd.is_none()),
            ("certs.k8s", self.certs.k8s.is_none()),
            ("certs.k8saggregator", self.certs.k8saggregator.is_none()),
            (
                "certs.k8sserviceaccount",
                self.certs.k8sserviceaccount.is_none(),
            ),
            ("certs.os", self.certs.os.is_none()),
        ];
        let lacking = lacking.into_iter().filter(|(_, lacks)| *lacks);
        lacking.map(|(name, _)| name).collect()
    }

    /// Adds everything that talosctl's file has.
    fn completed(mut self, version: TalosVersion, now: SystemTime) -> Result<Self, Failure> {
        for lacking in self.lacking(version) {
            match lacking {
                "cluster.id" => self.cluster.id = Some(BASE64_URL_SAFE.encode(random::<32>()?)),
                "cluster.secret" => {
                    self.cluster.secret = Some(BASE64_STANDARD.encode(random::<32>()?))
                }
                "secrets.bootstraptoken" => self.secrets.bootstraptoken = Some(token()?),
                "secrets.secretboxencryptionsecret" => {
                    self.secrets.secretboxencryptionsecret =
                        Some(BASE64_STANDARD.encode(random::<32>()?));
                }
                "secrets.aescbcencryptionsecret" => {
                    self.secrets.aescbcencryptionsecret =
                        Some(BASE64_STANDARD.encode(random::<32>()?));
                }
                "trustdinfo.token" => self.trustdinfo.token = Some(token()?),
                "certs.etcd" => self.certs.etcd = Some(authority(&["etcd"], None, now)?),
                "certs.k8s" => self.certs.k8s = Some(authority(&["kubernetes"], None, now)?),
                "certs.k8saggregator" => {
                    self.certs.k8saggregator = Some(authority(&[], Some("front-proxy"), now)?);
                }
                "certs.k8sserviceaccount" => {
                    let key = PrivateKey::generate_p256_sec1()
                        .map_err(|error| cannot_make("a key").because(error))?;
                    let key = BASE64_STANDARD.encode(key.to_pem());
                    self.certs.k8sserviceaccount = Some(Key { key });
                }
                _ => {
                    let authority = CertificateAuthority::generate(now)
                        .map_err(|error| cannot_make("an authority").because(error))?;
                    self.certs.os = Some(Pair::of(&authority));
                }
            }
        }
        Ok(self)
    }
}

impl Pair {
    fn of(authority: &CertificateAuthority) -> Self {
        Pair {
            crt: BASE64_STANDARD.encode(authority.certificate_pem()),
            key: BASE64_STANDARD.encode(authority.key_pem()),
        }
    }
}

/// The documents of a machine config.
struct Config<'a>(&'a [Value]);

impl Config<'_> {
    fn document(&self, kind: Option<&str>) -> Option<&Value> {
        let mut documents = self.0.iter();
        documents.find(|document| document.get("kind").and_then(Value::as_str) == kind)
    }

    fn text(&self, kind: Option<&str>, path: &str) -> Option<String> {
        let text = self.document(kind)?.pointer(path)?.as_str()?;
        (!text.is_empty()).then(|| text.to_owned())
    }

    /// A text in the large document, which has no kind.
    fn main(&self, path: &str) -> Option<String> {
        self.text(None, path)
    }

    /// A text in the large document, or in the one that replaced that part.
    fn either(&self, main: &str, kind: &str, path: &str) -> Option<String> {
        self.main(main).or_else(|| self.text(Some(kind), path))
    }

    /// A certificate and its key in the large document.
    fn pair(&self, path: &str) -> Option<Pair> {
        Some(Pair {
            crt: self.main(&format!("{path}/crt"))?,
            key: self.main(&format!("{path}/key"))?,
        })
    }

    /// PEM in a document of its own; the secrets have it in base64.
    fn encoded(&self, kind: &str, path: &str) -> Option<String> {
        let pem = self.text(Some(kind), path)?;
        Some(BASE64_STANDARD.encode(pem))
    }

    /// A certificate and its key in a document of its own.
    fn issuing(&self, kind: &str) -> Option<Pair> {
        Some(Pair {
            crt: self.encoded(kind, "/issuingCA/cert")?,
            key: self.encoded(kind, "/issuingCA/key")?,
        })
    }

    /// The first key with which Kubernetes encrypts its secrets, in the newer shape.
    fn secretbox(&self) -> Option<String> {
        let document = self.document(Some("KubeEtcdEncryptionConfig"))?;
        let resources = document.pointer("/config/resources")?.as_array()?;
        let providers = resources.iter().filter_map(|it| it["providers"].as_array());
        let mut keys = providers
            .flatten()
            .filter_map(|it| it.pointer("/secretbox/keys/0/secret")?.as_str());
        keys.next().map(str::to_owned)
    }
}

fn read(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path)
        .map_err(|error| Failure::io(format!("cannot read {}", path.display()), error))
}

fn not_secrets(path: &Path) -> Failure {
    let name = path.display();
    Failure::new(
        FailureKind::Usage,
        format!("cannot use the secrets in {name}"),
    )
    .advise("make such a file with: instarctl gen secrets")
}

fn cannot_make(what: &str) -> Failure {
    Failure::new(FailureKind::Failed, format!("cannot make {what}"))
}

fn authority(
    organizations: &[&str],
    common_name: Option<&str>,
    now: SystemTime,
) -> Result<Pair, Failure> {
    let made = CertificateAuthority::generate_p256(organizations, common_name, now);
    let made = made.map_err(|error| cannot_make("an authority").because(error))?;
    Ok(Pair::of(&made))
}

fn random<const N: usize>() -> Result<[u8; N], Failure> {
    let mut bytes = [0; N];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| cannot_make("secrets: the system gives no random bytes"))?;
    Ok(bytes)
}

/// A token in the format that other tools of this API check: six and sixteen characters.
pub(super) fn token() -> Result<String, Failure> {
    const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let text: String = random::<22>()?
        .iter()
        .map(|byte| char::from(LETTERS[usize::from(byte % 32)]))
        .collect();
    let (first, second) = text.split_at(6);
    Ok(format!("{first}.{second}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn data(name: &str) -> String {
        format!("{}/tests/data/{name}", env!("CARGO_MANIFEST_DIR"))
    }

    fn completed(version: &str) -> Secrets {
        let version = version.parse().unwrap();
        let made = Secrets::default().completed(version, SystemTime::now());
        made.unwrap()
    }

    fn fixture(release: &str) -> String {
        let root = env!("CARGO_MANIFEST_DIR");
        format!("{root}/../config/tests/data/{release}/controlplane.yaml")
    }

    #[test]
    fn a_token_has_the_shape_that_is_checked() {
        let token = token().unwrap();
        let (first, second) = token.split_once('.').unwrap();
        assert_eq!((first.len(), second.len()), (6, 16));
        assert!(
            token.chars().all(|letter| letter == '.'
                || letter.is_ascii_lowercase()
                || letter.is_ascii_digit())
        );
    }

    /// The file has the same keys in the same order as talosctl's, and no empty ones.
    #[test]
    fn the_file_has_the_shape_of_talosctls() {
        let keys = |text: &str| {
            let keys = text.lines().filter_map(|line| line.split_once(':'));
            keys.map(|(key, _)| key.trim().to_owned())
                .collect::<Vec<_>>()
        };
        let made = completed("v1.14");
        let text = serde_saphyr::to_string(&made).unwrap();
        let theirs = std::fs::read_to_string(data("secrets-1.13.yaml")).unwrap();
        assert_eq!(keys(&text), keys(&theirs));
        assert!(!text.contains("null"), "{text}");
        let (authority, token) = made.of_machines(Path::new("made")).unwrap();
        assert!(text.contains(&token));
        assert!(text.contains(&BASE64_STANDARD.encode(authority.key_pem())));
    }

    #[test]
    fn a_file_of_an_older_version_encrypts_as_that_version_does() {
        for (version, secretbox) in [("v1.0", false), ("v1.2", false), ("v1.3", true)] {
            let made = completed(version).secrets;
            assert_eq!(made.secretboxencryptionsecret.is_some(), secretbox);
            assert_eq!(made.aescbcencryptionsecret.is_some(), !secretbox);
        }
    }

    #[test]
    fn a_file_of_talosctls_stays_as_it_is() {
        let path = data("secrets-1.13.yaml");
        let secrets = Secrets::read(Path::new(&path)).unwrap();
        assert_eq!(secrets.lacking(TalosVersion::default()), [""; 0]);
        let text = serde_saphyr::to_string(&secrets).unwrap();
        let values = |text: &str| serde_saphyr::from_str::<Value>(text).unwrap();
        assert_eq!(
            values(&text),
            values(&std::fs::read_to_string(path).unwrap())
        );
    }

    #[test]
    fn a_config_has_them_in_either_shape() {
        for release in ["1.13", "1.14"] {
            let secrets = Secrets::of_config(Path::new(&fixture(release))).unwrap();
            assert_eq!(
                secrets.lacking(TalosVersion::default()),
                [""; 0],
                "{release}"
            );
            secrets.of_machines(Path::new(release)).unwrap();
        }
        let worker = fixture("1.13").replace("controlplane", "worker");
        let refused = Secrets::of_config(Path::new(&worker)).unwrap_err();
        assert!(format!("{refused:?}").contains("machine.ca.key"));
    }

    #[test]
    fn what_is_missing_or_broken_is_named() {
        let refused = |text: &str| {
            let secrets: Secrets = serde_saphyr::from_str(text).unwrap();
            let refused = secrets.of_machines(Path::new("f")).unwrap_err();
            format!("{:?}", refused)
        };
        assert!(refused("{}").contains("certs.os"));
        assert!(refused("certs: {os: {crt: '!', key: '!'}}").contains("base64"));
        let made = completed("v1.14");
        let os = made.certs.os.unwrap();
        let without_token = format!("certs: {{os: {{crt: {}, key: {}}}}}", os.crt, os.key);
        assert!(refused(&without_token).contains("trustdinfo.token"));
    }
}
