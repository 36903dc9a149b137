//! The certificate by which kubelet is a member of its cluster, with its key in the same file.

use std::path::{Path, PathBuf};
use std::{fs, io};

use x509_parser::pem::Pem;

use super::var;

/// kubelet's directory of certificates, in the container's /var.
pub(super) const PKI: &str = "lib/kubelet/pki";
/// The link there to the one that it uses now.
pub(super) const CURRENT: &str = "kubelet-client-current.pem";

/// The directory, on the machine.
pub(super) fn directory() -> PathBuf {
    var().join(PKI)
}

/// Reads the certificate and the key that kubelet uses now, as PEM; `None` if it has none yet, or none any more: the link may lead to a file that a
/// power cut has left empty, and that is removed. kubelet joins anew then.
///
/// # Errors
/// The link or its file cannot be read.
pub(super) fn read() -> io::Result<Option<String>> {
    read_in(&directory())
}

fn read_in(directory: &Path) -> io::Result<Option<String>> {
    // The link leads to a file of the same directory, by its path in the container.
    let current = match fs::read_link(directory.join(CURRENT)) {
        Ok(current) => current,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let name = current.file_name().ok_or(io::ErrorKind::InvalidData)?;
    match fs::read_to_string(directory.join(name)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        read => read.map(Some),
    }
}

/// Returns the node that a certificate is for, by the name that Kubernetes gives the users of nodes.
pub(super) fn node_of(pem: &str) -> Option<String> {
    let blocks = Pem::iter_from_buffer(pem.as_bytes()).flatten();
    let mut certificates = blocks.filter(|block| block.label == "CERTIFICATE");
    let certificate = certificates.next()?;
    let certificate = certificate.parse_x509().ok()?;
    let name = certificate.subject().iter_common_name().next()?;
    let user = name.as_str().ok()?.strip_prefix("system:node:")?;
    Some(user.to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use rcgen::{CertificateParams, DnType, KeyPair};

    /// An error would keep the node without a plan, and kubelet, which makes another certificate, would never start.
    #[test]
    fn a_link_to_a_certificate_that_is_gone_is_none() {
        let directory = tempfile::tempdir().unwrap();
        let read = || read_in(directory.path()).unwrap();
        assert_eq!(read(), None);
        let in_container = "/var/lib/kubelet/pki/kubelet-client-1.pem";
        std::os::unix::fs::symlink(in_container, directory.path().join(CURRENT)).unwrap();
        assert_eq!(read(), None);
        fs::write(directory.path().join("kubelet-client-1.pem"), "PEM").unwrap();
        assert_eq!(read().as_deref(), Some("PEM"));
    }

    #[test]
    fn a_certificate_names_its_node() {
        let pem = |user: &str| {
            let mut parameters = CertificateParams::default();
            parameters.distinguished_name.push(DnType::CommonName, user);
            let key = KeyPair::generate().unwrap();
            let certificate = parameters.self_signed(&key).unwrap();
            certificate.pem() + &key.serialize_pem()
        };
        let node = node_of(&pem("system:node:worker-1"));
        assert_eq!(node.as_deref(), Some("worker-1"));
        assert_eq!(node_of(&pem("admin")), None);
        assert_eq!(node_of("nonsense"), None);
    }
}
