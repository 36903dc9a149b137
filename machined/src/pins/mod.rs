//! Images that are fetched ahead and kept: which ones, on whose word, and how far each is.
//!
//! The work for them is a sequence (`sequences/image_pins.rs`); this room has its parts: the state of one image as a value ([`State`]), the
//! record of all ([`Pins`]), the upgrade that they are pinned for ([`Preparation`]), and the resource that shows them ([`PinFact`]).

mod preparation;
mod record;
mod state;
mod terms;

pub use preparation::{Preparation, PreparationFact, Progress};
pub use record::{ByCall, Meaning, PinRecord, Pins, TooMany, Wanted};
pub use state::{Event, State, Wait, after, time_until_due};
pub use terms::{Terms, permit};

use serde::Serialize;

use crate::store::Resource;

/// A pinned image, as `get pins` shows it. Its id is its name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PinFact {
    /// Whose word it is pinned by.
    pub named_by: Vec<&'static str>,
    /// How far it is.
    pub state: State,
}

impl Resource for PinFact {
    const NAMESPACE: &'static str = "runtime";
    const TYPE: &'static str = "ImagePins.instar.dev";
}
