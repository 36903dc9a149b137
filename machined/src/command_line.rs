//! What the kernel was started with. What a word of it means is the business of the room that it is for.

use anyhow::Context as _;

/// The kernel's command line, as /proc has it.
pub fn read() -> anyhow::Result<String> {
    std::fs::read_to_string("/proc/cmdline").context("read /proc/cmdline")
}
