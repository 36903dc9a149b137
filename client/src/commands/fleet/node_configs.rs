//! The configs of nodes before a change and after it, in the folder of the rollout: the way back, and the proof that a node has the change.

use instar_base::whole_file;
use instar_client::{Failure, FailureKind};
use instar_rollout::MachineName;
use instar_rollout_driver::{NodeConfigStore, NodeConfigs};

use super::store::Folder;

/// The folder, within that of the rollout, with the configs of nodes that were asked to change.
const CONFIGS: &str = "configs";

fn file_of(folder: &Folder, node: &MachineName) -> std::path::PathBuf {
    // A name may be an address with its port; nothing that names a file has a slash.
    let name = node.as_str().replace('/', "%2F");
    folder.file(CONFIGS).join(format!("{name}.json"))
}

impl NodeConfigStore for Folder {
    async fn known(&self, node: &MachineName) -> Result<Option<NodeConfigs>, Failure> {
        let read = whole_file::read_json(&file_of(self, node));
        read.map_err(|error| {
            Failure::new(
                FailureKind::Failed,
                format!("cannot read the config of {node} before the change"),
            )
            .because(error)
        })
    }

    /// Readable for their owner alone: they hold secrets.
    async fn keep(&self, node: &MachineName, configs: &NodeConfigs) -> Result<(), Failure> {
        let made = std::fs::create_dir_all(self.file(CONFIGS));
        made.map_err(|error| Failure::io("cannot make a folder for configs", error))?;
        let kept = whole_file::replace_json(&file_of(self, node), 0o600, configs);
        kept.map_err(|error| {
            Failure::new(
                FailureKind::Failed,
                format!("cannot keep the config of {node} before the change"),
            )
            .because(error)
        })
    }
}

/// Forgets those of the rollout before.
pub(super) fn forget(folder: &Folder) -> Result<(), Failure> {
    match std::fs::remove_dir_all(folder.file(CONFIGS)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Failure::io(
            "cannot remove the configs of the rollout before",
            error,
        )),
        _ => Ok(()),
    }
}
