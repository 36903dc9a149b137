//! Requests to machines.

use crate::machine::MachineName;

/// Something to ask of a machine. Asking twice does no harm: a machine that does it already refuses, or has nothing to do.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
}
