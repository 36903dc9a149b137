//! The logs of the node's services: kubernetes-init writes each to a file; the newest lines are in memory, where `logs` reads them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use crate::base::lock::Lock as _;
use crate::services::LogRing;

/// The part of a file that is read at first: the lines before it are in the container's own log.
const AT_FIRST: u64 = 64 << 10;
/// Limit on what is read of one file at once; the rest comes with the next look.
const AT_ONCE: u64 = 256 << 10;

/// The logs; clones share them.
#[derive(Clone, Default)]
pub struct NodeLogs {
    logs: Arc<Mutex<BTreeMap<String, Followed>>>,
}

#[derive(Default)]
struct Followed {
    ring: LogRing,
    /// The file that was read last, and how far.
    inode: u64,
    position: u64,
}

impl NodeLogs {
    /// Returns the log of a service.
    pub fn get(&self, service: &str) -> Option<LogRing> {
        self.logs.locked().get(service).map(|it| it.ring.clone())
    }

    /// Lists the services that have a log.
    pub fn names(&self) -> Vec<String> {
        self.logs.locked().keys().cloned().collect()
    }

    /// Reads the lines that these services have written since the last look, from the files `NAME.log` of the directory, and forgets all others.
    pub fn follow(&self, directory: &Path, services: &[String]) {
        let mut logs = self.logs.locked();
        logs.retain(|name, _| services.contains(name));
        for name in services {
            let followed = logs.entry(name.clone()).or_default();
            let file = directory.join(format!("{name}.log"));
            if let Err(error) = followed.read(&file)
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::debug!("the log of {name} cannot be read: {error}");
            }
        }
    }
}

impl Followed {
    fn read(&mut self, path: &PathBuf) -> io::Result<()> {
        let mut file = File::open(path)?;
        let metadata = file.metadata()?;
        if metadata.ino() != self.inode {
            // The first file, or the one that took the place of a full one.
            let is_first = self.inode == 0;
            self.inode = metadata.ino();
            self.position = match is_first {
                true => metadata.len().saturating_sub(AT_FIRST),
                false => 0,
            };
        }
        if metadata.len() <= self.position {
            return Ok(());
        }
        file.seek(SeekFrom::Start(self.position))?;
        let mut chunk = Vec::new();
        file.take(AT_ONCE).read_to_end(&mut chunk)?;
        self.position += chunk.len() as u64;
        self.ring.write(&chunk);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::fs;
    use std::io::Write as _;

    #[test]
    fn a_log_goes_on_in_the_next_file() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("kubelet.log");
        let logs = NodeLogs::default();
        let services = ["kubelet".to_owned()];
        logs.follow(directory.path(), &services);
        fs::write(&file, "one\n").unwrap();
        logs.follow(directory.path(), &services);
        let mut open = fs::OpenOptions::new().append(true).open(&file).unwrap();
        open.write_all(b"two\n").unwrap();
        logs.follow(directory.path(), &services);
        logs.follow(directory.path(), &services);
        fs::rename(&file, file.with_extension("log.1")).unwrap();
        fs::write(&file, "three\n").unwrap();
        logs.follow(directory.path(), &services);
        let log = logs.get("kubelet").unwrap();
        assert_eq!(log.contents(), b"one\ntwo\nthree\n");
        logs.follow(directory.path(), &[]);
        assert!(logs.get("kubelet").is_none() && logs.names().is_empty());
    }

    #[test]
    fn of_a_long_file_the_end_is_read_first() {
        let directory = tempfile::tempdir().unwrap();
        let long = "x".repeat(1023) + "\n";
        fs::write(directory.path().join("kubelet.log"), long.repeat(1000)).unwrap();
        let logs = NodeLogs::default();
        logs.follow(directory.path(), &["kubelet".to_owned()]);
        let log = logs.get("kubelet").unwrap();
        assert!(log.contents().len() as u64 <= AT_FIRST);
    }
}
