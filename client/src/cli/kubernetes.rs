//! The commands for a cluster whose control plane is on the node.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// How the cluster begins.
#[derive(Debug, Args)]
pub(crate) struct Bootstrap {
    /// Snapshot of etcd to begin with
    #[arg(long, value_name = "FILE")]
    pub(crate) recover_from: Option<PathBuf>,
    /// Take a file without the digest of a snapshot, such as one of a data directory
    #[arg(long, requires = "recover_from")]
    pub(crate) recover_skip_hash_check: bool,
}

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
