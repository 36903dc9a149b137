//! The channel that a node follows by itself.

use std::path::PathBuf;

use clap::Subcommand;

/// Actions on the channel that a node follows.
#[derive(Debug, Subcommand)]
pub(crate) enum Follow {
    /// Show the channel, the release that the node goes to, and why not to each other one
    Status,
    /// Have the node ask for the channel's list at once
    Check,
    /// Bring the channel's list to a node that reaches no server of it
    Bring {
        /// The folder of the channel, with releases-v1.json, its signature, and approvals if there are any
        folder: PathBuf,
    },
    /// Approve the release that the node goes to
    Approve {
        /// Its version or digest
        release: String,
    },
    /// Hold a release: the node does not go to it
    Hold {
        /// Its version or digest
        release: String,
    },
    /// Take a hold back; a release that failed may then be tried again
    Release {
        /// Its version or digest
        release: String,
    },
}
