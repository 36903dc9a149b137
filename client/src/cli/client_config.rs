//! The command for client configurations that a node makes.

use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;

use super::durations::duration;

/// Client configurations.
#[derive(Debug, Subcommand)]
pub(crate) enum Config {
    /// Have the node's authority make one
    New {
        /// File for it; - is standard output
        #[arg(default_value = "talosconfig")]
        file: PathBuf,
        /// What the new client may do
        #[arg(
            long,
            value_name = "ROLE",
            value_delimiter = ',',
            default_value = "os:admin"
        )]
        roles: Vec<String>,
        /// How long its certificate is good for: seconds, or with a unit (12h)
        #[arg(long, value_name = "TIME", default_value = "8760h", value_parser = duration)]
        crt_ttl: Duration,
    },
}
