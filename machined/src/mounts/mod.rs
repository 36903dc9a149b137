//! Mounts: filesystems that machined adds for itself, filesystems that it mounts for a while, and the kernel's table of mounts.

pub mod filesystem;
pub(crate) mod mount_table;
pub mod special_mounts;
pub mod transient_mount;
pub mod workload_domain;
