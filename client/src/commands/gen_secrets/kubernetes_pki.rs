//! The secrets of a cluster that kubeadm made, from the PKI directory of its control plane nodes. The cluster keeps them while machines of
//! Talos replace its nodes.

use std::path::Path;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use instar_client::{Failure, FailureKind};
use instar_pki::{AuthorityError, CertificateAuthority, PrivateKey, certificate_from_pem};

use super::{Certs, Key, Kubernetes, Pair, Secrets, read};

/// Paths of the authorities below the directory, without `.crt` and `.key`.
const KUBERNETES: &str = "ca";
const ETCD: &str = "etcd/ca";
const AGGREGATOR: &str = "front-proxy-ca";
const SERVICE_ACCOUNT: &str = "sa.key";

impl Secrets {
    /// The secrets in the directory, and the token with which new nodes join the cluster.
    pub(super) fn of_kubernetes_pki(
        directory: &Path,
        token: Option<&str>,
    ) -> Result<Self, Failure> {
        let bootstraptoken = token.map(bootstrap_token).transpose()?;
        Ok(Secrets {
            secrets: Kubernetes {
                bootstraptoken,
                ..Kubernetes::default()
            },
            certs: Certs {
                etcd: Some(authority(directory, ETCD)?),
                k8s: Some(authority(directory, KUBERNETES)?),
                k8saggregator: Some(authority(directory, AGGREGATOR)?),
                k8sserviceaccount: Some(service_account(directory)?),
                os: None,
            },
            ..Secrets::default()
        })
    }
}

/// A certificate and its key, as they are in their files: a node of Talos will use these very bytes.
fn authority(directory: &Path, name: &str) -> Result<Pair, Failure> {
    let certificate_path = directory.join(format!("{name}.crt"));
    let key_path = directory.join(format!("{name}.key"));
    let certificate = text_of(&certificate_path)?;
    let key = text_of(&key_path)?;
    certificate_from_pem(&certificate).map_err(|error| unusable(&certificate_path, error))?;
    PrivateKey::from_pem(&key).map_err(|error| unusable(&key_path, error))?;
    CertificateAuthority::from_pem(&certificate, &key).map_err(|error| match error {
        AuthorityError::KeyMismatch => {
            let (key, certificate) = (key_path.display(), certificate_path.display());
            Failure::new(
                FailureKind::Usage,
                format!("{key} is not the key of {certificate}"),
            )
            .advise("copy both again from one control plane node")
        }
        error => unusable(&certificate_path, error),
    })?;
    Ok(Pair {
        crt: BASE64_STANDARD.encode(certificate),
        key: BASE64_STANDARD.encode(key),
    })
}

/// The key that signs the tokens of service accounts.
fn service_account(directory: &Path) -> Result<Key, Failure> {
    let path = directory.join(SERVICE_ACCOUNT);
    let key = text_of(&path)?;
    PrivateKey::from_pem(&key).map_err(|error| unusable(&path, error))?;
    Ok(Key {
        key: BASE64_STANDARD.encode(key),
    })
}

fn text_of(path: &Path) -> Result<String, Failure> {
    read(path).map_err(whole_directory)
}

fn unusable(path: &Path, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Failure {
    let name = path.display();
    whole_directory(Failure::new(FailureKind::Usage, format!("cannot use {name}")).because(error))
}

fn whole_directory(failure: Failure) -> Failure {
    failure.advise(
        "name a whole copy of /etc/kubernetes/pki of a control plane node: ca, etcd/ca and front-proxy-ca, each .crt and .key, and sa.key",
    )
}

/// Checks a token by Kubernetes' format. The error does not repeat it: most of it may be a secret.
fn bootstrap_token(text: &str) -> Result<String, Failure> {
    let shape = |part: &str, length: usize| {
        let letters = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        part.len() == length && part.bytes().all(letters)
    };
    match text.split_once('.') {
        Some((id, secret)) if shape(id, 6) && shape(secret, 16) => Ok(text.to_owned()),
        _ => Err(Failure::new(
            FailureKind::Usage,
            "--kubernetes-bootstrap-token is no bootstrap token: 6 small letters or digits, a point, and 16 more",
        )
        .advise("make one on a control plane node with: kubeadm token create --ttl 0")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::fs;
    use std::time::SystemTime;

    use tempfile::TempDir;

    use super::*;
    use crate::talos_version::TalosVersion;

    const TOKEN: &str = "znzio1.1ifu15frz7jd59pv";

    /// A directory as kubeadm makes it, and the text of each file.
    fn pki() -> TempDir {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path();
        fs::create_dir(place.join("etcd")).unwrap();
        for (name, common_name) in [
            (KUBERNETES, "kubernetes"),
            (ETCD, "etcd-ca"),
            (AGGREGATOR, "front-proxy-ca"),
        ] {
            let made =
                CertificateAuthority::generate_p256(&[], Some(common_name), SystemTime::now());
            let made = made.unwrap();
            fs::write(place.join(format!("{name}.crt")), made.certificate_pem()).unwrap();
            fs::write(place.join(format!("{name}.key")), made.key_pem()).unwrap();
        }
        fs::write(place.join(SERVICE_ACCOUNT), rsa_key()).unwrap();
        directory
    }

    /// An RSA key, which is kubeadm's default. The file of talosctl has one.
    fn rsa_key() -> Vec<u8> {
        let file = format!(
            "{}/tests/data/secrets-1.13.yaml",
            env!("CARGO_MANIFEST_DIR")
        );
        let secrets = Secrets::read(Path::new(&file)).unwrap();
        let key = secrets.certs.k8sserviceaccount.unwrap().key;
        BASE64_STANDARD.decode(key).unwrap()
    }

    fn refused(directory: &TempDir) -> Failure {
        Secrets::of_kubernetes_pki(directory.path(), None).unwrap_err()
    }

    #[test]
    fn each_file_has_its_place_and_keeps_its_bytes() {
        let directory = pki();
        let secrets = Secrets::of_kubernetes_pki(directory.path(), Some(TOKEN)).unwrap();
        let rest = [
            "cluster.id",
            "cluster.secret",
            "secrets.secretboxencryptionsecret",
            "trustdinfo.token",
            "certs.os",
        ];
        assert_eq!(secrets.lacking(TalosVersion::default()), rest);
        assert_eq!(secrets.secrets.bootstraptoken.as_deref(), Some(TOKEN));
        let certs = secrets.certs;
        let (kubernetes, etcd) = (certs.k8s.unwrap(), certs.etcd.unwrap());
        let aggregator = certs.k8saggregator.unwrap();
        for (encoded, file) in [
            (kubernetes.crt, "ca.crt"),
            (kubernetes.key, "ca.key"),
            (etcd.crt, "etcd/ca.crt"),
            (etcd.key, "etcd/ca.key"),
            (aggregator.crt, "front-proxy-ca.crt"),
            (aggregator.key, "front-proxy-ca.key"),
            (certs.k8sserviceaccount.unwrap().key, "sa.key"),
        ] {
            let bytes = fs::read(directory.path().join(file)).unwrap();
            assert_eq!(BASE64_STANDARD.decode(encoded).unwrap(), bytes, "{file}");
        }
    }

    #[test]
    fn each_missing_file_is_named() {
        for file in [
            "ca.crt",
            "ca.key",
            "etcd/ca.crt",
            "etcd/ca.key",
            "front-proxy-ca.crt",
            "front-proxy-ca.key",
            "sa.key",
        ] {
            let directory = pki();
            fs::remove_file(directory.path().join(file)).unwrap();
            let refused = refused(&directory);
            assert!(
                refused.chain().contains(&format!("/{file}: No such file")),
                "{}",
                refused.chain()
            );
            assert!(refused.advice().unwrap().contains("a whole copy"));
        }
    }

    #[test]
    fn a_key_of_another_certificate_is_refused() {
        let directory = pki();
        let place = directory.path();
        fs::copy(place.join("ca.key"), place.join("etcd/ca.key")).unwrap();
        let refused = refused(&directory);
        let name = |file: &str| place.join(file).display().to_string();
        assert_eq!(
            refused.chain(),
            format!(
                "{} is not the key of {}",
                name("etcd/ca.key"),
                name("etcd/ca.crt")
            )
        );
        assert_eq!(refused.kind(), FailureKind::Usage);
        assert!(refused.advice().is_some());
    }

    #[test]
    fn what_is_no_certificate_or_key_is_named() {
        let directory = pki();
        let place = directory.path();
        let swap = |name: &str, text: &str| {
            let path = place.join(name);
            let before = fs::read(&path).unwrap();
            fs::write(&path, text).unwrap();
            let refused = refused(&directory).chain();
            fs::write(&path, before).unwrap();
            refused
        };
        for file in ["ca.crt", "front-proxy-ca.key", "sa.key"] {
            let refused = swap(file, "not PEM");
            let start = format!("cannot use {}: ", place.join(file).display());
            assert!(refused.starts_with(&start), "{refused}");
        }
        let leaf = leaf_certificate(place);
        let refused = swap("ca.crt", &leaf);
        assert!(
            refused.contains("not the certificate of an authority"),
            "{refused}"
        );
    }

    /// A certificate that may not sign others.
    fn leaf_certificate(place: &Path) -> String {
        let text = |name: &str| fs::read_to_string(place.join(name)).unwrap();
        let authority = CertificateAuthority::from_pem(&text("ca.crt"), &text("ca.key")).unwrap();
        let lifetime = std::time::Duration::from_secs(3600);
        let issued = authority.issue_client(&[], SystemTime::now(), lifetime);
        issued.unwrap().pem()
    }

    #[test]
    fn tokens_have_the_shape_of_kubernetes() {
        assert_eq!(bootstrap_token(TOKEN).unwrap(), TOKEN);
        for bad in [
            "",
            "znzio1",
            "znzio1.1ifu15frz7jd59p",
            "znzio.1ifu15frz7jd59pvx",
            "ZNZIO1.1ifu15frz7jd59pv",
            "znzio1.1ifu15frz7jd59pv\n",
            "znzio1.1ifu15frz7.d59pv",
        ] {
            let refused = bootstrap_token(bad).unwrap_err();
            assert!(refused.chain().contains("no bootstrap token"), "{bad:?}");
            assert!(bad.is_empty() || !refused.chain().contains(bad), "{bad:?}");
            assert!(refused.advice().unwrap().contains("kubeadm token create"));
        }
    }
}
