//! Processes of a node.

use clap::ValueEnum;

/// Sort orders of processes.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum ProcessOrder {
    /// Resident memory
    #[default]
    Rss,
    /// Processor time
    Cpu,
}
