//! The variables of containerd and kubelet: the machine's of the config, and over them their own.

use std::collections::BTreeMap;

use crate::config::Cluster;

/// Variables by their names.
pub(super) type Variables = BTreeMap<String, String>;

/// Where programs are is the base's to say: another value would hide those that containerd calls.
const OF_THE_BASE: &str = "PATH";
/// The proxy for a cluster's API, and the hosts that are asked without one. Programs in Go read the capital letters first.
const PROXY: [&str; 2] = ["HTTPS_PROXY", "https_proxy"];
const NO_PROXY: [&str; 2] = ["NO_PROXY", "no_proxy"];

/// Returns the machine's variables with a service's own ones over them.
pub(super) fn of_service(machines: &Variables, own: &[(&str, String)]) -> Variables {
    let machines = machines.iter().filter(|(name, _)| *name != OF_THE_BASE);
    let machines = machines.map(|(name, value)| (name.clone(), value.clone()));
    let own = own.iter();
    let own = own.map(|(name, value)| ((*name).to_owned(), value.clone()));
    machines.chain(own).collect()
}

/// Returns the variable by which kubelet asks the API server without the machine's proxy, as machined does; `None` without a proxy.
pub(super) fn past_the_proxy(
    machines: &Variables,
    cluster: &Cluster,
) -> Option<(&'static str, String)> {
    let value = |names: [&str; 2]| {
        let mut values = names.into_iter().filter_map(|name| machines.get(name));
        values.find(|value| !value.is_empty())
    };
    value(PROXY)?;
    let host = cluster.endpoint.host()?;
    let hosts = match value(NO_PROXY) {
        Some(others) => format!("{others},{host}"),
        None => host.to_owned(),
    };
    Some((NO_PROXY[0], hosts))
}

#[cfg(test)]
mod tests {
    use super::super::a_node::kubernetes;
    use super::*;

    fn variables(pairs: &[(&str, &str)]) -> Variables {
        let pairs = pairs.iter();
        pairs
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn a_services_own_variables_are_over_the_machines() {
        let machines = variables(&[
            ("PATH", "/opt"),
            ("https_proxy", "p"),
            ("CONFIGURATION", "x"),
        ]);
        let own = [("CONFIGURATION", "1a2b".to_owned())];
        let expected = variables(&[("https_proxy", "p"), ("CONFIGURATION", "1a2b")]);
        assert_eq!(of_service(&machines, &own), expected);
    }

    #[test]
    fn the_api_server_is_asked_without_a_proxy() {
        let cluster = kubernetes().cluster;
        let proxy = ("https_proxy", "http://proxy:3128");
        for (machines, expected) in [
            (variables(&[]), None),
            (variables(&[("https_proxy", "")]), None),
            (variables(&[proxy]), Some("10.0.2.2")),
            (
                variables(&[proxy, ("no_proxy", ".local,10.0.0.0/8")]),
                Some(".local,10.0.0.0/8,10.0.2.2"),
            ),
            (
                variables(&[proxy, ("no_proxy", "a"), ("NO_PROXY", "b")]),
                Some("b,10.0.2.2"),
            ),
        ] {
            let found = past_the_proxy(&machines, &cluster);
            let expected = expected.map(|hosts| ("NO_PROXY", hosts.to_owned()));
            assert_eq!(found, expected, "{machines:?}");
        }
    }
}
