//! Kinds for links, addresses, routes and names, from the network task's last state.

use std::net::IpAddr;

use super::{Item, Kind, Namespace, Record, Sensitivity, Source, Value};
use crate::intent;
use crate::machine::Machine;
use crate::network::{AddressStatus, LinkStatus, NetworkStatus, RouteStatus, mac_bytes};
use crate::store::{NetworkFact, Resource as _};
use crate::values::Cidr;

/// The machine's host name.
pub(super) const HOSTNAMES: Kind = Kind {
    name: "HostnameStatuses.net.talos.dev",
    singular: "HostnameStatus",
    namespace: Namespace::Network,
    aliases: &["hostname"],
    columns: &[("Hostname", "{.hostname}"), ("Domainname", "{.domainname}")],
    sensitivity: Sensitivity::Open,
    sources: &[Source::Network],
    read: |machine| Ok(seen(machine, hostname)),
};

/// The addresses that the machine can be reached at.
pub(super) const NODE_ADDRESSES: Kind = Kind {
    name: "NodeAddresses.net.talos.dev",
    singular: "NodeAddress",
    aliases: &[],
    columns: &[
        ("Addresses", "{.addresses}"),
        ("SortAlgorithm", "{.sortAlgorithm}"),
    ],
    read: |machine| Ok(seen(machine, node_addresses)),
    ..HOSTNAMES
};

/// Addresses of links.
pub(super) const ADDRESSES: Kind = Kind {
    name: "AddressStatuses.net.talos.dev",
    singular: "AddressStatus",
    aliases: &["address", "addresses"],
    columns: &[("Address", "{.address}"), ("Link", "{.linkName}")],
    read: |machine| Ok(seen(machine, addresses)),
    ..HOSTNAMES
};

/// Links.
pub(super) const LINKS: Kind = Kind {
    name: "LinkStatuses.net.talos.dev",
    singular: "LinkStatus",
    aliases: &["link", "links"],
    columns: &[
        ("Alias", "{.alias}"),
        ("Type", "{.type}"),
        ("Kind", "{.kind}"),
        ("Hw Addr", "{.hardwareAddr}"),
        ("Oper State", "{.operationalState}"),
        ("Link State", "{.linkState}"),
    ],
    read: |machine| {
        Ok(seen(machine, |status| {
            status.links.iter().map(link).collect()
        }))
    },
    ..HOSTNAMES
};

/// Routes of the main table.
pub(super) const ROUTES: Kind = Kind {
    name: "RouteStatuses.net.talos.dev",
    singular: "RouteStatus",
    aliases: &["route", "routes"],
    columns: &[
        ("Destination", "{.dst}"),
        ("Gateway", "{.gateway}"),
        ("Link", "{.outLinkName}"),
        ("Metric", "{.priority}"),
    ],
    read: |machine| Ok(seen(machine, routes)),
    ..HOSTNAMES
};

/// The DNS servers in use.
pub(super) const RESOLVERS: Kind = Kind {
    name: "ResolverStatuses.net.talos.dev",
    singular: "ResolverStatus",
    aliases: &["resolvers"],
    columns: &[
        ("Resolvers", "{.dnsServers}"),
        ("Search Domains", "{.searchDomains}"),
    ],
    read: |machine| Ok(seen(machine, resolvers)),
    ..HOSTNAMES
};

/// The time servers in use.
pub(super) const TIME_SERVERS: Kind = Kind {
    name: "TimeServerStatuses.net.talos.dev",
    singular: "TimeServerStatus",
    aliases: &["timeserver", "timeservers"],
    columns: &[("Timeservers", "{.timeServers}")],
    sources: &[Source::Config, Source::Network],
    read: |machine| {
        let leased = machine.network.status().borrow().time_servers.clone();
        let asked = machine
            .config()
            .map(|configured| intent::time(&configured.config, &leased))
            .filter(|spec| spec.enabled);
        Ok(vec![time_servers(
            asked.map(|spec| spec.servers).unwrap_or_default(),
        )])
    },
    ..HOSTNAMES
};

/// The readiness of the network's parts.
pub(super) const STATUSES: Kind = Kind {
    name: NetworkFact::TYPE,
    singular: "NetworkStatus",
    aliases: &["netstatus", "netstatuses"],
    columns: &[
        ("Address", "{.addressReady}"),
        ("Connectivity", "{.connectivityReady}"),
        ("Hostname", "{.hostnameReady}"),
        ("Etc", "{.etcFilesReady}"),
    ],
    sources: &[Source::Store(NetworkFact::TYPE)],
    read: |machine| {
        let listed = machine.store.list::<NetworkFact>().into_iter();
        Ok(listed
            .map(|(about, fact)| Item::stored(about, readiness(&fact)))
            .collect())
    },
    ..HOSTNAMES
};

fn seen(machine: &Machine, items: impl Fn(&NetworkStatus) -> Vec<Item>) -> Vec<Item> {
    items(&machine.network.status().borrow())
}

/// Builds the item; none until the hostname is set.
fn hostname(status: &NetworkStatus) -> Vec<Item> {
    if status.hostname.is_empty() {
        return Vec::new();
    }
    let (host, domain) = status
        .hostname
        .split_once('.')
        .unwrap_or((&status.hostname, ""));
    let spec = Record::default()
        .with("hostname", 1, host)
        .with("domainname", 2, domain);
    vec![Item::new("hostname", spec)]
}

/// Builds the items; `default` is the first address of `current`. Every address here may be routed to.
fn node_addresses(status: &NetworkStatus) -> Vec<Item> {
    let all = || status.addresses.iter().map(|address| address.address);
    let item = |id: &str, addresses: Value| {
        let spec = Record::default().with("addresses", 1, addresses).with(
            "sortAlgorithm",
            2,
            Value::Word(0, "v1"),
        );
        Item::new(id, spec)
    };
    if status.addresses.is_empty() {
        return Vec::new();
    }
    vec![
        item("current", all().collect()),
        item("default", all().take(1).collect()),
        item("routed", all().collect()),
    ]
}

fn family(address: IpAddr) -> Value {
    match address {
        IpAddr::V4(_) => Value::Word(2, "inet4"),
        IpAddr::V6(_) => Value::Word(10, "inet6"),
    }
}

fn addresses(status: &NetworkStatus) -> Vec<Item> {
    let index = |name: &str| {
        let link = status.links.iter().find(|link| link.name == name);
        link.map_or(0, |link| link.index)
    };
    let item = |address: &AddressStatus| {
        let spec = Record::default()
            .with("address", 1, address.address)
            .with("linkIndex", 6, index(&address.link))
            .with("linkName", 7, address.link.as_str())
            .with("family", 8, family(address.address.address()))
            // The network's state holds no other scopes.
            .with("scope", 9, Value::Word(0, "global"));
        Item::new(format!("{}/{}", address.link, address.address), spec)
    };
    status.addresses.iter().map(item).collect()
}

fn link(link: &LinkStatus) -> Item {
    // The numbers of rtnetlink: ARPHRD_… and IF_OPER_….
    let (kind, state) = match (link.name.as_str(), link.carrier) {
        ("lo", _) => (Value::Word(772, "loopback"), Value::Word(0, "unknown")),
        (_, true) => (Value::Word(1, "ether"), Value::Word(6, "up")),
        (_, false) => (Value::Word(1, "ether"), Value::Word(2, "down")),
    };
    let spec = Record::default()
        .with("index", 1, link.index)
        .with("type", 2, kind)
        .with(
            "flags",
            4,
            Value::Word(u32::from(link.up), if link.up { "UP" } else { "" }),
        )
        .with("hardwareAddr", 5, Value::Hardware(mac_bytes(&link.mac)))
        .with("mtu", 7, link.mtu)
        .with("operationalState", 10, state)
        .with("kind", 11, link.kind.as_deref().unwrap_or_default())
        .with("linkState", 22, link.carrier)
        .with("alias", 31, "");
    Item::new(link.name.as_str(), spec)
}

fn routes(status: &NetworkStatus) -> Vec<Item> {
    let index = |name: &str| {
        let link = status.links.iter().find(|link| link.name == name);
        link.map_or(0, |link| link.index)
    };
    let item = |route: &RouteStatus| {
        let destination = Some(route.destination).filter(|destination| destination.prefix() > 0);
        let via = route
            .gateway
            .map_or_else(String::new, |gateway| format!("/{gateway}"));
        let spec = Record::default()
            .with("family", 1, family(route.destination.address()))
            // The default route is shown without a destination.
            .with("dst", 2, Value::Prefix(destination))
            .with("src", 3, Value::Address(None))
            .with("gateway", 4, Value::Address(route.gateway))
            .with("outLinkIndex", 5, index(&route.link))
            .with("outLinkName", 6, route.link.as_str())
            .with("table", 7, Value::Word(254, "main"))
            .with("priority", 8, route.metric);
        let id = format!("{}/{}{via}/{}", route.link, route.destination, route.metric);
        Item::new(id, spec)
    };
    status.routes.iter().map(item).collect()
}

fn resolvers(status: &NetworkStatus) -> Vec<Item> {
    let spec = Record::default()
        .with(
            "dnsServers",
            1,
            status.resolvers.iter().copied().collect::<Value>(),
        )
        .with(
            "searchDomains",
            2,
            status.search_domains.iter().cloned().collect::<Value>(),
        );
    vec![Item::new("resolvers", spec)]
}

fn time_servers(servers: Vec<String>) -> Item {
    let spec = Record::default()
        .with("timeServers", 1, servers.into_iter().collect::<Value>())
        .with("useNTS", 2, false);
    Item::new("timeservers", spec)
}

fn readiness(fact: &NetworkFact) -> Record {
    Record::default()
        .with("addressReady", 1, fact.address_ready)
        .with("connectivityReady", 2, fact.connectivity_ready)
        .with("hostnameReady", 3, fact.hostname_ready)
        .with("etcFilesReady", 4, fact.etc_files_ready)
}

/// Returns all of the machine's addresses, without the lengths of their prefixes.
pub(super) fn own_addresses(status: &NetworkStatus) -> Value {
    let addresses = status.addresses.iter().map(|address| address.address);
    addresses.map(Cidr::address).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use instar_api::definitions::network as wire;
    use prost::Message;

    use super::*;

    fn status() -> NetworkStatus {
        let mac = "52:54:00:12:34:56";
        let link = |name: &str, index, mac: &str, carrier| LinkStatus {
            name: name.to_owned(),
            index,
            mac: mac.to_owned(),
            up: true,
            carrier,
            mtu: 1500,
            kind: None,
        };
        let address = |cidr: &str| AddressStatus {
            link: "eth0".to_owned(),
            address: cidr.parse().unwrap(),
        };
        let route = |to: &str, gateway: Option<&str>, metric| RouteStatus {
            link: "eth0".to_owned(),
            destination: to.parse().unwrap(),
            gateway: gateway.map(|it| it.parse().unwrap()),
            metric,
        };
        NetworkStatus {
            links: vec![
                link("lo", 1, "00:00:00:00:00:00", true),
                link("eth0", 2, mac, true),
            ],
            addresses: vec![address("10.0.2.15/24"), address("fec0::15/64")],
            routes: vec![
                route("0.0.0.0/0", Some("10.0.2.2"), 1024),
                route("10.0.2.0/24", None, 0),
            ],
            resolvers: vec!["10.0.2.3".parse().unwrap()],
            hostname: "node-1.example.com".to_owned(),
            ..NetworkStatus::default()
        }
    }

    fn decoded<M: Message + Default>(item: &Item) -> M {
        M::decode(item.spec.protobuf().as_slice()).unwrap()
    }

    fn yaml(item: &Item) -> serde_json::Value {
        serde_saphyr::from_str(&item.spec.yaml()).unwrap()
    }

    #[test]
    fn names_and_addresses() {
        let status = status();
        let items = hostname(&status);
        let spec: wire::HostnameStatusSpec = decoded(&items[0]);
        assert_eq!(
            (spec.hostname.as_str(), spec.domainname.as_str()),
            ("node-1", "example.com")
        );
        assert!(hostname(&NetworkStatus::default()).is_empty());

        let items = node_addresses(&status);
        assert_eq!(items[1].id, "default");
        let spec: wire::NodeAddressSpec = decoded(&items[0]);
        assert_eq!(spec.addresses[0].ip, [10, 0, 2, 15]);
        assert_eq!(spec.addresses[0].prefix_length, 24);
        assert_eq!(
            (spec.addresses[1].ip.len(), spec.addresses[1].prefix_length),
            (16, 64)
        );
        assert_eq!(
            yaml(&items[1])["addresses"],
            serde_json::json!(["10.0.2.15/24"])
        );

        let items = addresses(&status);
        assert_eq!(items[0].id, "eth0/10.0.2.15/24");
        let spec: wire::AddressStatusSpec = decoded(&items[1]);
        assert_eq!((spec.link_index, spec.family), (2, 10));
        let spec: wire::ResolverStatusSpec = decoded(&resolvers(&status)[0]);
        assert_eq!(spec.dns_servers[0].ip, [10, 0, 2, 3]);
        let spec: wire::TimeServerStatusSpec = decoded(&time_servers(vec!["ntp".to_owned()]));
        assert_eq!(spec.time_servers, ["ntp"]);
    }

    #[test]
    fn links_and_routes() {
        let status = status();
        let item = link(&status.links[1]);
        let spec: wire::LinkStatusSpec = decoded(&item);
        assert_eq!(spec.hardware_addr, [0x52, 0x54, 0, 0x12, 0x34, 0x56]);
        assert_eq!(
            (spec.index, spec.r#type, spec.mtu, spec.link_state),
            (2, 1, 1500, true)
        );
        assert_eq!(spec.operational_state, 6);
        assert_eq!(yaml(&item)["hardwareAddr"], "52:54:00:12:34:56");
        assert_eq!(yaml(&link(&status.links[0]))["type"], "loopback");

        let items = routes(&status);
        assert_eq!(items[0].id, "eth0/0.0.0.0/0/10.0.2.2/1024");
        assert_eq!(yaml(&items[0])["dst"], "");
        let spec: wire::RouteStatusSpec = decoded(&items[0]);
        assert_eq!(spec.gateway.unwrap().ip, [10, 0, 2, 2]);
        assert_eq!(
            (spec.dst, spec.priority, spec.out_link_name.as_str()),
            (None, 1024, "eth0")
        );
        let spec: wire::RouteStatusSpec = decoded(&items[1]);
        assert_eq!(spec.dst.unwrap().prefix_length, 24);
    }
}
