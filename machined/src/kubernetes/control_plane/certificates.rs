//! The certificates of the programs. Each is issued by a key of the config, kept on disk, and issued again when it was made from something
//! else or a third of its time is left.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use instar_pki::{
    CertificateAuthority, IssuedCertificate, PrivateKey, SubjectName, certificate_from_pem,
    fingerprint_of, public_key_fingerprint, validity,
};

use super::super::control;
use super::place::Place;
use crate::base::whole_file;
use crate::config::{ClientIdentity, ControlPlane, Secret};

/// The lifetime of a certificate: a year, as elsewhere in Kubernetes.
pub(super) const LIFETIME: Duration = Duration::from_secs(365 * 24 * 3600);
/// The time that is left when a certificate is issued again.
const RENEWED_BEFORE_END: Duration = Duration::from_secs(LIFETIME.as_secs() / 3);
/// The group whose members may do everything.
pub(super) const ADMINISTRATORS: &str = "system:masters";
/// The names and authorities that each certificate was made from, by the paths of their files.
const RECORD: &str = "certificates.json";

/// A certificate that is to be there.
pub(super) struct Wanted<'a> {
    /// Its files, without `.crt` and `.key`, below the directory of certificates.
    pub(super) file: &'static str,
    authority: &'a ClientIdentity,
    common_name: String,
    group: Option<&'static str>,
    /// The names of a server.
    names: Vec<SubjectName>,
}

/// Returns all certificates of the programs.
fn wanted<'a>(plane: &'a ControlPlane, place: &Place) -> Vec<Wanted<'a>> {
    let keys = &plane.keys;
    let client = |file, authority, name: &str, group| Wanted {
        file,
        authority,
        common_name: name.to_owned(),
        group,
        names: Vec::new(),
    };
    let server = |file, authority, name: &str, names| Wanted {
        names,
        ..client(file, authority, name, None)
    };
    let own = ["localhost", "127.0.0.1", &place.node].map(SubjectName::from);
    vec![
        server(
            "apiserver",
            &keys.cluster,
            "kube-apiserver",
            names_of_api(plane, place),
        ),
        client(
            "apiserver-kubelet-client",
            &keys.cluster,
            "kube-apiserver-kubelet-client",
            Some(ADMINISTRATORS),
        ),
        client(
            "apiserver-etcd-client",
            &keys.etcd,
            "kube-apiserver-etcd-client",
            None,
        ),
        client(
            "front-proxy-client",
            &keys.aggregator,
            "front-proxy-client",
            None,
        ),
        server("etcd", &keys.etcd, &place.node, own.to_vec()),
        client(
            "controller-manager",
            &keys.cluster,
            "system:kube-controller-manager",
            None,
        ),
        client("scheduler", &keys.cluster, "system:kube-scheduler", None),
        client("kube-proxy", &keys.cluster, "system:kube-proxy", None),
    ]
}

/// Returns the names by which the API server is reached: from the machine, from pods, and as the config says.
fn names_of_api(plane: &ControlPlane, place: &Place) -> Vec<SubjectName> {
    let domain = &place.domain;
    let mut names: Vec<String> = [
        "localhost",
        "127.0.0.1",
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
    ]
    .map(str::to_owned)
    .into();
    names.push(format!("kubernetes.default.svc.{domain}"));
    names.push(place.node.clone());
    names.extend(place.addresses.iter().map(ToString::to_string));
    names.extend(
        plane
            .service_subnets
            .iter()
            .map(|it| it.first().to_string()),
    );
    names.extend(plane.endpoint.host().map(str::to_owned));
    names.extend(plane.names.iter().cloned());
    names.sort();
    names.dedup();
    names
        .iter()
        .map(|it| SubjectName::from(it.as_str()))
        .collect()
}

/// Certificates with their keys, PEM, by the names of their files.
pub(super) type Issued = BTreeMap<&'static str, ClientIdentity>;

/// Has all certificates in this directory; returns them.
///
/// # Errors
/// A key of the config cannot be used, or a file cannot be written.
pub(super) fn have_all(
    plane: &ControlPlane,
    place: &Place,
    directory: &Path,
) -> anyhow::Result<Issued> {
    have_all_by(plane, place, directory, &control().join(RECORD))
}

fn have_all_by(
    plane: &ControlPlane,
    place: &Place,
    directory: &Path,
    record: &Path,
) -> anyhow::Result<Issued> {
    // A record that cannot be read is that of no certificate: all are issued again.
    let mut made_from: BTreeMap<String, String> = whole_file::read_json(record)
        .unwrap_or_default()
        .unwrap_or_default();
    let mut issued = Issued::new();
    for wanted in wanted(plane, place) {
        let origin = wanted.origin();
        let file = wanted.file;
        let known = made_from.get(file) == Some(&origin);
        let kept = known.then(|| read(directory, file)).flatten();
        let identity = match kept {
            Some(kept) => kept,
            None => {
                let identity = wanted.issue()?;
                let write = |suffix, content: &str| {
                    let path = directory.join(format!("{file}.{suffix}"));
                    whole_file::replace(&path, 0o600, content.as_bytes())
                };
                write("crt", &identity.certificate)?;
                write("key", identity.key.expose())?;
                made_from.insert(file.to_owned(), origin);
                whole_file::replace_json(record, 0o600, &made_from)?;
                identity
            }
        };
        issued.insert(file, identity);
    }
    Ok(issued)
}

/// Reads a certificate that lasts, with its key. A renewal that was cut off between the two files has left a pair that no program can use.
fn read(directory: &Path, file: &str) -> Option<ClientIdentity> {
    let certificate = fs::read_to_string(directory.join(format!("{file}.crt"))).ok()?;
    let key = fs::read_to_string(directory.join(format!("{file}.key"))).ok()?;
    let can_be_used = lasts(&certificate, RENEWED_BEFORE_END) && is_pair(&certificate, &key);
    can_be_used.then(|| ClientIdentity {
        certificate,
        key: Secret::new(key),
    })
}

/// Whether a key belongs to a certificate, both PEM.
fn is_pair(certificate: &str, key: &str) -> bool {
    let certificate = certificate_from_pem(certificate).ok();
    let certified = certificate.and_then(|it| public_key_fingerprint(&it).ok());
    let key = PrivateKey::from_pem(key).ok();
    let own = key.map(|it| fingerprint_of(&it.public_key_info()));
    certified.is_some() && certified == own
}

/// Whether a certificate is valid now, and will be for this time.
pub(super) fn lasts(certificate: &str, time: Duration) -> bool {
    let now = SystemTime::now();
    let certificate = certificate_from_pem(certificate).ok();
    let validity = certificate.and_then(|certificate| validity(&certificate).ok());
    validity.is_some_and(|(from, until)| from <= now && now + time < until)
}

impl Wanted<'_> {
    /// Returns a digest of all that decides about the certificate, but for the time.
    fn origin(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        let mut add = |text: &str| {
            hasher.update(&text.len().to_le_bytes());
            hasher.update(text.as_bytes());
        };
        add(&self.authority.certificate);
        add(&self.common_name);
        add(self.group.unwrap_or_default());
        for name in &self.names {
            add(&format!("{name:?}"));
        }
        hasher.finalize().to_hex().to_string()
    }

    fn issue(&self) -> anyhow::Result<ClientIdentity> {
        let group = self.group.as_slice();
        issue(
            self.authority,
            &self.common_name,
            group,
            &self.names,
            LIFETIME,
        )
    }
}

/// Issues a certificate by an authority of the config.
pub(super) fn issue(
    authority: &ClientIdentity,
    common_name: &str,
    groups: &[&str],
    names: &[SubjectName],
    lifetime: Duration,
) -> anyhow::Result<ClientIdentity> {
    let authority = CertificateAuthority::from_pem(&authority.certificate, authority.key.expose())
        .with_context(|| format!("use the authority for the certificate of {common_name}"))?;
    let now = SystemTime::now();
    let issued: IssuedCertificate = authority
        .issue_for_cluster(common_name, groups, names, now, lifetime)
        .with_context(|| format!("issue the certificate of {common_name}"))?;
    Ok(ClientIdentity {
        certificate: issued.pem(),
        key: Secret::new(issued.key_pem()),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::super::a_node::plane;
    use super::*;

    #[test]
    fn a_certificate_stays_until_it_is_to_be_another_one() {
        let directory = tempfile::tempdir().unwrap();
        let record = directory.path().join("record");
        let mut place = Place {
            node: "cp-1".to_owned(),
            domain: "cluster.local".to_owned(),
            addresses: vec!["10.0.2.15".parse().unwrap()],
        };
        let all = |place: &Place| have_all_by(&plane(), place, directory.path(), &record).unwrap();
        let first = all(&place);
        assert_eq!(all(&place), first);
        // Another address is another name of the API server alone.
        place.addresses.push("10.0.2.16".parse().unwrap());
        let second = all(&place);
        let changed = first.iter().filter(|(file, it)| second[*file] != **it);
        let changed: Vec<_> = changed.map(|(file, _)| *file).collect();
        assert_eq!(changed, ["apiserver"]);
        let names = |issued: &Issued| {
            let certificate = certificate_from_pem(&issued["apiserver"].certificate).unwrap();
            instar_pki::server_names(&certificate).unwrap()
        };
        for name in [
            "10.0.2.16",
            "10.96.0.1",
            "cluster.example.com",
            "api.example.com",
        ] {
            assert!(names(&second).contains(&SubjectName::from(name)), "{name}");
        }
        // One that is damaged is made anew.
        fs::write(directory.path().join("etcd.crt"), "no certificate").unwrap();
        assert_ne!(all(&place)["etcd"], second["etcd"]);
    }

    #[test]
    fn a_renewal_that_was_cut_off_between_its_files_is_made_anew() {
        let directory = tempfile::tempdir().unwrap();
        let record = directory.path().join("record");
        let place = Place {
            node: "cp-1".to_owned(),
            domain: "cluster.local".to_owned(),
            addresses: Vec::new(),
        };
        let all = || have_all_by(&plane(), &place, directory.path(), &record).unwrap();
        let first = all();
        assert!(
            first
                .values()
                .all(|it| is_pair(&it.certificate, it.key.expose()))
        );
        // Another certificate of the same name and authority is there, beside the previous key.
        let key = fs::read(directory.path().join("etcd.key")).unwrap();
        fs::remove_file(directory.path().join("etcd.crt")).unwrap();
        all();
        fs::write(directory.path().join("etcd.key"), key).unwrap();
        let etcd = &all()["etcd"];
        assert!(is_pair(&etcd.certificate, etcd.key.expose()));
        let written = fs::read_to_string(directory.path().join("etcd.key")).unwrap();
        assert_eq!(written, etcd.key.expose());
        assert_eq!(all()["scheduler"], first["scheduler"]);
    }
}
