//! Services.

use clap::ValueEnum;

/// What to do with a service.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum ServiceAction {
    /// Show it
    Status,
    /// Start it
    Start,
    /// Stop it
    Stop,
    /// Stop and start it
    Restart,
}
