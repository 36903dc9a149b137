//! Disks that are erased.

use clap::{Subcommand, ValueEnum};

/// What `wipe` erases.
#[derive(Subcommand, Debug)]
pub(crate) enum Wipe {
    /// Erase disks or partitions that the node does not use; its own disk is erased by `reset`
    Disk {
        /// Names of the devices, such as vdb or vdb1
        #[arg(required = true, value_name = "DEVICE")]
        devices: Vec<String>,
        /// How
        #[arg(long, value_enum, ignore_case = true, default_value_t)]
        method: WipeMethod,
        /// Take partitions out of their disk's table as well
        #[arg(long)]
        drop_partition: bool,
    },
}

/// How a device is erased.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum WipeMethod {
    /// What partition tables and filesystems are known by; the rest can be read still
    #[default]
    Fast,
    /// Every byte becomes zero
    Zeroes,
}
