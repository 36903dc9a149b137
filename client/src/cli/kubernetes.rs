//! The commands for a cluster whose control plane is on the node.

use std::path::PathBuf;

use clap::Subcommand;

/// Things to do with etcd.
#[derive(Debug, Subcommand)]
pub(crate) enum Etcd {
    /// List the members
    Members,
    /// Write a snapshot of all data of the cluster to a file
    Snapshot {
        /// File to write
        file: PathBuf,
        /// Replace an existing file
        #[arg(short, long)]
        force: bool,
    },
}
