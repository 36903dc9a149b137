//! The authorities that containerd and kubelet believe: the root filesystem's and the config's, in one file of the node. The base of Kubernetes
//! may be older than the machine, and knows nothing of the config.

use std::fs;
use std::io;
use std::path::Path;

use crate::config::TrustedRoots;

/// The file below the directory that the container sees as /instar.
pub(super) const FILE: &str = "ca.pem";
/// The same, as the container sees it.
pub(super) const SEEN: &str = "/instar/ca.pem";

/// Returns all authorities, PEM. `bundle` is the file of the root filesystem's, which may have none.
///
/// # Errors
/// The file cannot be read.
pub fn authorities(bundle: &Path, roots: &[TrustedRoots]) -> io::Result<String> {
    let mut all = match fs::read_to_string(bundle) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        read => read?,
    };
    for root in roots {
        if !all.is_empty() && !all.ends_with('\n') {
            all.push('\n');
        }
        all.push_str(&root.certificates);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn those_of_the_config_are_beside_those_of_the_root_filesystem() {
        let directory = tempfile::tempdir().unwrap();
        let bundle = directory.path().join("bundle");
        let roots = ["one", "two\n"].map(|pem| TrustedRoots {
            name: "a".to_owned(),
            certificates: pem.to_owned(),
        });
        assert_eq!(authorities(&bundle, &roots).unwrap(), "one\ntwo\n");
        fs::write(&bundle, "system").unwrap();
        assert_eq!(authorities(&bundle, &roots).unwrap(), "system\none\ntwo\n");
        assert_eq!(authorities(&bundle, &[]).unwrap(), "system");
        authorities(directory.path(), &roots).unwrap_err();
    }
}
