//! The command for client configurations that a node makes.

use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;

use super::durations::duration;

/// Client configurations.
#[derive(Debug, Subcommand)]
pub(crate) enum Config {
    /// Have the node's authority sign a new client configuration
    ///
    /// Its endpoints are those that this command uses: the node's own addresses may be out of reach behind a NAT.
    New {
        /// Output file; - is standard output
        #[arg(default_value = "talosconfig")]
        file: PathBuf,
        /// Roles of the new client: os:admin, os:operator, os:reader, os:upgrader, os:etcd:backup, os:image:verifier, os:meta:writer
        #[arg(
            long,
            value_name = "ROLE",
            value_delimiter = ',',
            default_value = "os:admin"
        )]
        roles: Vec<String>,
        /// Validity of its certificate: seconds, or a number with a unit (12h, 90d)
        #[arg(long, alias = "valid-for", value_name = "TIME", default_value = "8760h", value_parser = duration)]
        crt_ttl: Duration,
        /// Replace an existing file
        #[arg(short, long)]
        force: bool,
    },
}
