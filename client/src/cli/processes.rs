//! Processes of a node.

use clap::ValueEnum;

/// What processes are sorted by.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum ProcessOrder {
    /// Resident memory
    #[default]
    Rss,
    /// Processor time
    Cpu,
}
