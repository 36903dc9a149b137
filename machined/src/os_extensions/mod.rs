//! Extensions of the machine itself: files of `/usr` that lie over the machine's own, and files of `/etc` that join them.
//!
//! ```text
//! ExtensionConfig (target: os) ──► image in the store ──► checked ──► /usr: an overlay, read-only (layers.rs)
//!                                                            └──────► /etc: beside the config's files (etc_files.rs)
//! ```
//!
//! The decision: they are in force at once, without another start of the system. They add files and replace none (`instar_extension`), so
//! that whatever of the system runs reads the same as before, and only containers that mount the new files notice. To have each change wait
//! for a soft upgrade of the same version was the other choice: it would stop containers for a file that they do not use.
//!
//! The mounts are of the generation: its end takes them, and the next one lays the same images over its own /usr. A machined that starts
//! again in the same generation takes them over as they are ([`adopt`](OsExtensions::adopt)).

mod check;
mod checked_trees;
mod laid;
mod layers;
mod over_usr;
mod record;

pub use check::checked;
pub use checked_trees::{CheckedTree, CheckedTrees};
pub use laid::Tree;
pub use layers::Layers;
pub use record::{HOME, OsRecord};

use std::sync::Arc;

use tokio::sync::watch;

/// The extensions of the machine: the layers over /usr, and the record of the images in force.
#[derive(Debug, Clone, Default)]
pub struct OsExtensions {
    /// The layers of files over /usr.
    pub layers: Layers,
    /// The images in force.
    pub record: OsRecord,
    /// The trees of files that were checked.
    pub checked: CheckedTrees,
    begins: Arc<watch::Sender<bool>>,
}

impl OsExtensions {
    /// Takes over the layers and the checked trees of an earlier machined of this generation. Nothing changes by it.
    pub fn adopt(&self) {
        if let Err(error) = self.layers.adopt() {
            tracing::warn!("extensions over /usr are laid again: {error:#}");
        }
        if let Err(error) = self.checked.adopt() {
            tracing::warn!("extensions of the machine are checked again: {error:#}");
        }
    }

    /// Has extensions be fetched from now on, also before the boot's end: containers that its verdict waits for may mount their files.
    pub fn begin(&self) {
        self.begins.send_replace(true);
    }

    /// Returns a receiver that tells when extensions are fetched although the boot has not ended.
    pub fn watch_begins(&self) -> watch::Receiver<bool> {
        self.begins.subscribe()
    }
}
