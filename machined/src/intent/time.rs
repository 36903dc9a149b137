//! Where the time comes from.

use crate::config::MachineConfig;
use crate::time::TimeWish;

/// The time servers that the config names, or the usual ones.
pub fn time(config: &MachineConfig) -> TimeWish {
    let named: Vec<String> = config
        .time
        .servers
        .iter()
        .map(ToString::to_string)
        .collect();
    let usual = TimeWish::default();
    TimeWish {
        enabled: config.time.enabled,
        servers: if named.is_empty() {
            usual.servers
        } else {
            named
        },
    }
}
