//! The commands for a node's internals.

use clap::Subcommand;

/// What to look into.
#[derive(Clone, Copy, Debug, Subcommand)]
pub(crate) enum Inspect {
    /// Show which parts of the daemon depend on which
    Dependencies,
}
