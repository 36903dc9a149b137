//! The config's time servers.

use crate::config::MachineConfig;
use crate::time::ClockSpec;

/// Returns the time servers that the config names, or the default ones.
pub fn time(config: &MachineConfig) -> ClockSpec {
    let named: Vec<String> = config
        .time
        .servers
        .iter()
        .map(ToString::to_string)
        .collect();
    let usual = ClockSpec::default();
    ClockSpec {
        enabled: config.time.enabled,
        servers: if named.is_empty() {
            usual.servers
        } else {
            named
        },
    }
}
