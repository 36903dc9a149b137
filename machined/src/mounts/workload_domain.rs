//! The workload domain: a tmpfs of init's for files that may outlive a generation. init moves it into each generation.

use std::path::Path;

/// Its mount point (docs/contracts.md).
pub const DOMAIN: &str = "/run/workloads";

/// Whether this machine's init has a workload domain.
pub fn has_domain() -> bool {
    Path::new(DOMAIN).is_dir()
}
