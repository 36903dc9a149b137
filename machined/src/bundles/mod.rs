//! Bundles of images on their way into the machine: where they lie, how far they are, and which images came by them.
//!
//! The work on a bundle is a sequence (`sequences/bundles`); this room has its parts: the states as a value ([`Phase`]), the file of
//! an upload ([`Uploads`]), the decisions about an image ([`approve`]) and about an upgrade ([`upgrade::plan`]), what is said about it all
//! ([`sentences`]), and the images that stay because a bundle brought them ([`Kept`]).

mod approval;
mod contents;
mod file_use;
mod kept;
mod phase;
mod question;
mod sentences;
mod stick;
mod turn;
pub mod upgrade;
mod upload;

pub use approval::{Approvals, NotApproved, Origin, all_approved, approve};
pub use contents::{Approval, FoundImage, FoundList, Support, UseOfList};
pub use file_use::{FileFacts, FoundFile, UseOfFile};
pub use kept::{Kept, Taken};
pub use phase::{Event, Phase, next};
pub use question::{Answer, Question};
pub use sentences::{Kind, Sentence, news, sentences};
pub use stick::{FileSystem, LABELS, Stick, Uevents, Word, plugged_in};
pub use turn::Turn;
pub use upgrade::Upgrade;
pub use upload::{FORGOTTEN, SILENCE, TakenUpload, UploadError, Uploads};

use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use tokio::sync::Semaphore;

use crate::store::Resource;

/// The origin of bundles that callers of the API bring.
pub const UPLOAD: &str = "upload";

/// A bundle that was found or uploaded, as `get bundles` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BundleFact {
    /// Where it lies: `upload`, or the stick's device.
    pub origin: String,
    /// The kind of that place.
    pub place: Place,
    /// Its digest, once that is known.
    pub digest: Option<String>,
    /// Its images, once they are known.
    pub images: Vec<FoundImage>,
    /// Its files of extensions, once they are known.
    pub files: Vec<FoundFile>,
    /// The lists of channels in it, once it is known what is done with them.
    pub lists: Vec<FoundList>,
    /// How far it is.
    pub phase: Phase,
    /// Whether it upgrades the machine, once that is decided.
    pub upgrade: Option<Upgrade>,
    /// Support data for the stick, if it asks for them.
    pub support: Option<Support>,
}

/// The place of a bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Place {
    /// An upload by a caller of the API.
    Upload,
    /// A stick.
    Stick {
        /// Its label.
        label: String,
    },
    /// A stick or disk without the label.
    Folder {
        /// The directory that says that there is a bundle.
        directory: String,
    },
}

impl BundleFact {
    /// A bundle of which nothing is known yet.
    pub fn new(origin: String, place: Place, phase: Phase) -> Self {
        BundleFact {
            origin,
            place,
            digest: None,
            images: Vec::new(),
            files: Vec::new(),
            lists: Vec::new(),
            phase,
            upgrade: None,
            support: None,
        }
    }

    /// Whether nothing more is read from its place or written there.
    pub fn is_over(&self) -> bool {
        self.phase.is_over() && self.support != Some(Support::Writing)
    }
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
    pub turn: Turn,
    /// Held while a bundle of images of the store is sent to a caller: one at a time.
    pub sending: Arc<Semaphore>,
}

impl Bundles {
    /// The bundles below the directory of images.
    pub fn new(images: &Path) -> Self {
        Bundles {
            uploads: Uploads::new(images.join("bundle-upload")),
            kept: Kept::new(images.join("bundles.json")),
            turn: Turn::default(),
            sending: Arc::new(Semaphore::new(1)),
        }
    }
}
