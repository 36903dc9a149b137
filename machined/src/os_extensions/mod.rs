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
//! The mounts are of the generation: its end takes them, and the next one lays the same images over its own /usr.

mod check;
mod fact;
mod layers;
mod record;

pub use check::checked;
pub use fact::{OsExtensionFact, OsExtensionState};
pub use layers::Layers;
pub use record::{HOME, OsRecord};

/// The extensions of the machine: what lies over /usr, and the record of the images in force.
#[derive(Debug, Clone, Default)]
pub struct OsExtensions {
    /// What lies over /usr.
    pub layers: Layers,
    /// The images in force.
    pub record: OsRecord,
}
