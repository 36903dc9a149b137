//! Disks that are erased.

use clap::{Subcommand, ValueEnum};

/// Targets of `wipe`.
#[derive(Subcommand, Debug)]
pub(crate) enum Wipe {
    /// Erase disks or partitions that the node does not use; `reset` erases its own disk
    Disk {
        /// Names of the devices, such as vdb or vdb1
        #[arg(required = true, value_name = "DEVICE")]
        devices: Vec<String>,
        /// Method
        #[arg(long, value_enum, ignore_case = true, default_value_t)]
        method: WipeMethod,
        /// Also remove the partitions from their disk's partition table
        #[arg(long)]
        drop_partition: bool,
    },
}

/// Methods of erasing a device.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum WipeMethod {
    /// Erase only the signatures of partition tables and filesystems; other data stays readable
    #[default]
    Fast,
    /// Write zeros to the whole device
    Zeroes,
}
