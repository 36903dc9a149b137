//! Statistics of the machine, from the kernel's files in /proc and /sys.
//!
//! Every file has a parser over text and a function that reads the text. The results are the API's messages: these have the
//! kernel's own fields, and a second set of the same hundred fields would only be copied from one to the other. For the same reason
//! no crate reads /proc for us: copying its structures field by field takes as much code as reading the numbers, and the crate's
//! code would take memory, which is promised to be small.

mod cpu_frequency;
mod cpu_info;
mod disks;
pub mod firmware;
mod load;
mod memory;
mod mounts;
mod network_devices;
mod processes;
mod sockets;
mod system;

pub use crate::base::mount_table::Mounted;
pub use cpu_frequency::cpu_frequencies;
pub use cpu_info::cpu_info;
pub use disks::disk_stats;
pub use load::load_average;
pub use memory::memory;
pub use mounts::{Room, mounted, mounts, room, room_of_mount};
pub use network_devices::network_device_stats;
pub use processes::processes;
pub use sockets::{Namespaces, Protocol, Shown, SocketQuery, network_namespace, sockets};
pub use system::system_stat;

use anyhow::Context as _;

fn read(path: &str) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("read {path}"))
}

/// Parses a number; 0 for a column that this kernel lacks.
fn number<T: std::str::FromStr + Default>(text: Option<&str>) -> T {
    text.and_then(|text| text.parse().ok()).unwrap_or_default()
}
