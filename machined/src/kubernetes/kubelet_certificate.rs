//! The certificate by which kubelet is a member of its cluster, with its key in the same file.

use std::path::PathBuf;
use std::{fs, io};

use super::var;

/// kubelet's directory of certificates, in the container's /var.
pub(super) const PKI: &str = "lib/kubelet/pki";
/// The link there to the one that it uses now.
pub(super) const CURRENT: &str = "kubelet-client-current.pem";

/// The directory, on the machine.
pub(super) fn directory() -> PathBuf {
    var().join(PKI)
}

/// Reads the certificate and the key that kubelet uses now, as PEM; `None` if it has none yet.
///
/// # Errors
/// The link or its file cannot be read.
pub(super) fn read() -> io::Result<Option<String>> {
    // The link leads to a file of the same directory, by its path in the container.
    let current = match fs::read_link(directory().join(CURRENT)) {
        Ok(current) => current,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let name = current.file_name().ok_or(io::ErrorKind::InvalidData)?;
    fs::read_to_string(directory().join(name)).map(Some)
}
