//! The place of what may outlive a generation: a tmpfs of init's, which it moves into each generation.

use std::path::Path;

/// Where it is (docs/contracts.md).
pub const DOMAIN: &str = "/run/workloads";

/// Whether this machine's init has a workload domain.
pub fn has_domain() -> bool {
    Path::new(DOMAIN).is_dir()
}
