//! The commands for a node's internals.

use clap::Subcommand;

/// Things to inspect.
#[derive(Clone, Copy, Debug, Subcommand)]
pub(crate) enum Inspect {
    /// Show how the parts of the daemon depend on each other
    Dependencies,
}
