//! The time servers, by the config and by DHCP.

use std::net::IpAddr;

use crate::config::MachineConfig;
use crate::time::ClockSpec;

/// Returns the time servers to ask: those of the config, else those of the leases, else the default ones.
pub fn time(config: &MachineConfig, leased: &[IpAddr]) -> ClockSpec {
    let named = config.time.servers.iter().map(ToString::to_string);
    ClockSpec {
        enabled: config.time.enabled,
        servers: first_known(named.collect(), leased),
    }
}

fn first_known(named: Vec<String>, leased: &[IpAddr]) -> Vec<String> {
    let leased: Vec<String> = leased.iter().map(ToString::to_string).collect();
    [named, leased]
        .into_iter()
        .find(|servers| !servers.is_empty())
        .unwrap_or_else(|| ClockSpec::default().servers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_config_comes_before_leases_and_leases_before_the_default() {
        let named = || vec!["ntp.example.org".to_owned()];
        let leased = [IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2])];
        assert_eq!(first_known(named(), &leased), named());
        assert_eq!(first_known(named(), &[]), named());
        assert_eq!(first_known(Vec::new(), &leased), ["10.0.0.1", "10.0.0.2"]);
        assert_eq!(first_known(Vec::new(), &[]), ClockSpec::default().servers);
    }
}
