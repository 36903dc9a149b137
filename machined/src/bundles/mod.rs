//! Bundles of images on their way into the machine: where they lie, how far they are, and which images came by them.
//!
//! What is done with a bundle is a sequence (`sequences/bundles`); this room has its parts: the states as a value ([`Phase`]), the file of
//! an upload ([`Uploads`]), the decision about an image ([`approve`]), and the images that stay because a bundle brought them ([`Kept`]).

mod approval;
mod kept;
mod phase;
mod stick;
mod upload;

pub use approval::{NotApproved, Origin, approve};
pub use kept::Kept;
pub use phase::{Event, Phase, next};
pub use stick::{FileSystem, LABELS, Stick, Uevents, Word, plugged_in};
pub use upload::{UploadError, Uploads};

use std::path::Path;

use serde::Serialize;
use tokio::sync::Semaphore;

use crate::store::Resource;

/// A bundle that was found or uploaded, as `get bundles` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BundleFact {
    /// Where it lies.
    pub origin: String,
    /// Its digest, once that is known.
    pub digest: Option<String>,
    /// How far it is.
    pub phase: Phase,
}

impl Resource for BundleFact {
    const NAMESPACE: &'static str = "runtime";
    const TYPE: &'static str = "Bundles.instar.dev";
}

/// The bundles of this machine.
#[derive(Debug)]
pub struct Bundles {
    /// The file that is being uploaded.
    pub uploads: Uploads,
    /// The images that stay because a bundle brought them.
    pub kept: Kept,
    /// Held while a bundle is verified and imported: one at a time.
    pub turn: Semaphore,
}

impl Bundles {
    /// The bundles below the directory of images.
    pub fn new(images: &Path) -> Self {
        Bundles {
            uploads: Uploads::new(images.join("bundle-upload")),
            kept: Kept::new(images.join("bundles.json")),
            turn: Semaphore::new(1),
        }
    }
}
