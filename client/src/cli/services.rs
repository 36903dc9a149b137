//! Services.

use clap::ValueEnum;

/// Actions on a service.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum ServiceAction {
    /// Show the service
    Status,
    /// Start the service
    Start,
    /// Stop the service
    Stop,
    /// Restart the service
    Restart,
}
