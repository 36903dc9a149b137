//! Mounts: filesystems that machined adds for itself, and filesystems that it mounts for a while.

pub mod filesystem;
pub mod special_mounts;
pub mod transient_mount;
pub mod workload_domain;
