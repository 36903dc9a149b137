//! Files of kubelet that a power cut has left empty. kubelet writes its certificates, keys and states without a flush, so their names may be on the disk
//! before their content is. It makes anew what is missing, but ends over an empty file at each start: for ever, as nobody can remove it by hand.

use std::fs::{self, DirEntry};
use std::io;
use std::path::Path;

/// kubelet's own files, below the container's /var: its states, and its certificates with their keys. Not those of pods, which may be empty on purpose, nor
/// the records of pulled images: without one a pod would get another one's image unasked.
const OF_KUBELET: [&str; 2] = ["lib/kubelet", "lib/kubelet/pki"];

/// Removes the empty files of a kubelet that does not run. `var`: the directory that the container has as /var.
///
/// # Errors
/// A directory cannot be read, or a file cannot be removed.
pub(super) fn remove(var: &Path) -> io::Result<()> {
    for directory in OF_KUBELET {
        let entries = match fs::read_dir(var.join(directory)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            entries => entries?,
        };
        for entry in entries {
            remove_if_empty(&entry?)?;
        }
    }
    Ok(())
}

fn remove_if_empty(entry: &DirEntry) -> io::Result<()> {
    let metadata = entry.metadata()?;
    if !metadata.is_file() || metadata.len() > 0 {
        return Ok(());
    }
    let path = entry.path();
    tracing::warn!(
        "Kubernetes: {} is empty after a power cut, and is removed: kubelet makes it anew",
        path.display()
    );
    fs::remove_file(path)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn empty_files_of_kubelet_alone_are_removed() {
        let var = tempfile::tempdir().unwrap();
        // There is no kubelet yet.
        remove(var.path()).unwrap();
        let at = |path: &str| var.path().join("lib/kubelet").join(path);
        for directory in ["pki", "pods/web/volume", "image_manager/pulled"] {
            fs::create_dir_all(at(directory)).unwrap();
        }
        let gone = ["cpu_manager_state", "pki/kubelet.crt", "pki/client-1.pem"];
        let stays = [
            "pods/web/volume/empty",
            "image_manager/pulled/sha256-1",
            "pki/kubelet.key",
        ];
        for path in gone.iter().chain(&stays) {
            fs::write(at(path), "").unwrap();
        }
        fs::write(at("pki/kubelet.key"), "key").unwrap();
        symlink("client-1.pem", at("pki/client-current.pem")).unwrap();
        remove(var.path()).unwrap();
        assert!(gone.iter().all(|path| !at(path).exists()));
        assert!(stays.iter().all(|path| at(path).exists()));
        // kubelet replaces it; by its path there is nothing.
        assert!(at("pki/client-current.pem").is_symlink());
    }
}
