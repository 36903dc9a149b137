//! Requests to machines.

use serde::{Deserialize, Serialize};

use crate::entry::Step;
use crate::machine::MachineName;

/// Something to ask of a machine. Asking twice does no harm: a machine that does it already refuses, or has nothing to do.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(tag = "is", content = "machine", rename_all = "lowercase")]
pub enum Action {
    /// Fetch the image.
    Prepare(MachineName),
    /// Upgrade.
    Switch(MachineName),
    /// Go back to the version before.
    Return(MachineName),
}

impl Action {
    /// The machine.
    pub fn machine(&self) -> &MachineName {
        match self {
            Action::Prepare(name) | Action::Switch(name) | Action::Return(name) => name,
        }
    }

    /// Whether a machine that was asked for it is at this step.
    pub(crate) fn is_intent_of(&self, step: &Step) -> bool {
        matches!(
            (self, step),
            (Action::Prepare(_), Step::Preparing { .. })
                | (Action::Switch(_), Step::Switching { .. })
                | (Action::Return(_), Step::Returning { .. })
        )
    }
}
