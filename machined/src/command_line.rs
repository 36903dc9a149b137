//! The kernel's command line. Each module interprets its own words of it.

use anyhow::Context as _;

/// Reads the kernel's command line from /proc.
pub fn read() -> anyhow::Result<String> {
    std::fs::read_to_string("/proc/cmdline").context("read /proc/cmdline")
}
