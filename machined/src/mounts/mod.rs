//! Mounting, and what is mounted: filesystems that machined adds for itself, filesystems in use for a while, the kernel's table.

pub mod filesystem;
pub(crate) mod mount_table;
pub mod special_mounts;
pub mod transient_mount;
pub mod workload_domain;
