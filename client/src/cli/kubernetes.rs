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
    /// Show version, size and state
    Status,
    /// List or end alarms
    #[command(subcommand)]
    Alarm(Alarm),
    /// Give back the room that the database does not use; meanwhile etcd answers nobody
    #[command(alias = "defragment")]
    Defrag,
    /// Write a snapshot of all data of the cluster to a file
    Snapshot {
        /// File to write
        file: PathBuf,
        /// Replace an existing file
        #[arg(short, long)]
        force: bool,
    },
}

/// Things to do with alarms.
#[derive(Debug, Subcommand)]
pub(crate) enum Alarm {
    /// List the alarms that are raised
    List,
    /// End all alarms; those whose cause is still there come back
    Disarm,
}
