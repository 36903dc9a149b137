//! The nodes of a fleet: from a file, from a node that knows its cluster, or from the command line.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use instar_api::definitions::cluster::MemberSpec;
use instar_client::{Endpoint, Failure, FailureKind, resources_in};
use instar_rollout::{MachineName, Member, Policy};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use super::limits;
use crate::cli::{FleetNodes, FleetOver, Global};
use crate::target;

/// The type of the resources that are the members of a cluster.
const MEMBERS: &str = "Members.cluster.talos.dev";
/// The types of machines, as numbers of the contract.
const CONTROL_PLANE: i32 = 2;
const WORKER: i32 = 3;
/// Timeout of the list of members; the node asks its cluster for it.
const LISTING: Duration = Duration::from_secs(10);

/// How a node is reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Way {
    /// Where to connect; the endpoints of the context if there are none.
    pub(super) endpoints: Vec<String>,
    /// The name by which the endpoint passes calls on; none if the node itself answers there.
    pub(super) node: Option<String>,
}

impl Way {
    /// The way to the node itself, by the name that an endpoint would have passed calls on to.
    fn direct(self) -> Self {
        match self.node {
            Some(address) => Self {
                endpoints: vec![address],
                node: None,
            },
            None => self,
        }
    }
}

/// The members of a fleet and their policies.
#[derive(Debug, Default)]
pub(super) struct Fleet {
    pub(super) ways: BTreeMap<MachineName, Way>,
    pub(super) members: BTreeMap<MachineName, Member>,
    pub(super) policies: Vec<Policy>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FleetFile {
    nodes: Vec<FileNode>,
    #[serde(default)]
    policies: Vec<Policy>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileNode {
    name: String,
    address: String,
    #[serde(default)]
    pool: String,
    #[serde(default)]
    labels: BTreeSet<String>,
}

/// How the nodes of a fleet are reached.
pub(super) async fn ways(
    global: &Global,
    nodes: &FleetNodes,
) -> Result<BTreeMap<MachineName, Way>, Failure> {
    Ok(members(global, nodes).await?.ways)
}

/// The same without a node that passes calls on: members are called at their own addresses, so that each shows its own certificate. Only the
/// nodes of `-n` are still behind others.
pub(super) async fn direct_ways(
    global: &Global,
    nodes: &FleetNodes,
) -> Result<BTreeMap<MachineName, Way>, Failure> {
    let ways = ways(global, nodes).await?;
    Ok(match nodes.members {
        true => ways
            .into_iter()
            .map(|(name, way)| (name, way.direct()))
            .collect(),
        false => ways,
    })
}

/// The same, of the nodes in one pool.
pub(super) async fn ways_of_pool(
    global: &Global,
    nodes: &FleetNodes,
    pool: &str,
) -> Result<BTreeMap<MachineName, Way>, Failure> {
    let Fleet {
        mut ways, members, ..
    } = members(global, nodes).await?;
    ways.retain(|name, _| members.get(name).is_some_and(|member| member.pool == pool));
    match ways.is_empty() {
        true => Err(Failure::new(
            FailureKind::Usage,
            format!("the fleet has no node in the pool {pool:?}"),
        )),
        false => Ok(ways),
    }
}

async fn members(global: &Global, nodes: &FleetNodes) -> Result<Fleet, Failure> {
    match &nodes.fleet {
        Some(file) => by_file(file),
        None if nodes.members => by_members(global).await,
        None => by_arguments(global),
    }
}

/// The fleet of a file or of the command line, with the limits of the command line as one more policy, and the defaults where neither names a limit.
pub(super) async fn fleet(global: &Global, over: &FleetOver) -> Result<Fleet, Failure> {
    let mut fleet = members(global, &over.nodes).await?;
    let pools = fleet.members.values().map(|member| member.pool.as_str());
    fleet.policies = limits::complete(fleet.policies, &over.limits, &pools.collect());
    Ok(fleet)
}

fn by_file(file: &Path) -> Result<Fleet, Failure> {
    let name = file.display();
    let text = std::fs::read_to_string(file)
        .map_err(|error| Failure::io(format!("cannot read {name}"), error))?;
    let unusable = |error: serde_saphyr::Error| {
        Failure::new(FailureKind::Usage, format!("cannot use {name}")).because(error)
    };
    let read: FleetFile = serde_saphyr::from_str(&text).map_err(unusable)?;
    let named: limits::OfFile = serde_saphyr::from_str(&text).map_err(unusable)?;
    let mut fleet = Fleet {
        policies: named.without_defaults(read.policies),
        ..Fleet::default()
    };
    let mut addresses = Addresses::default();
    for node in read.nodes {
        addresses.take(&node)?;
        let way = Way {
            endpoints: vec![node.address],
            node: None,
        };
        let member = Member {
            pool: node.pool,
            labels: node.labels,
        };
        fleet.add(node.name, way, member)?;
    }
    Ok(fleet)
}

/// The addresses of a file, each with its node. With two names for one machine the machine that was meant would be left out, and nothing would tell.
#[derive(Default)]
struct Addresses(BTreeMap<(String, u16), String>);

impl Addresses {
    fn take(&mut self, node: &FileNode) -> Result<(), Failure> {
        let bad = |why: String| Failure::new(FailureKind::Usage, why);
        let endpoint = node.address.parse::<Endpoint>();
        let endpoint = endpoint.map_err(|error| {
            bad(format!("the address of {} cannot be used", node.name)).because(error)
        })?;
        let address = (endpoint.host().to_ascii_lowercase(), endpoint.port());
        match self.0.insert(address, node.name.clone()) {
            None => Ok(()),
            Some(other) => Err(bad(format!(
                "{other} and {} have the same address, {}",
                node.name, node.address
            ))),
        }
    }
}

/// The members that a node lists. They are reached through the same endpoints, as those of `-n`.
async fn by_members(global: &Global) -> Result<Fleet, Failure> {
    let node = target::one(global).await?;
    let listed = timeout(
        LISTING,
        resources_in::<MemberSpec>(&node, "cluster", MEMBERS),
    )
    .await;
    let listed = listed.map_err(|_| {
        let late = format!("{}: no members within {} s", node.name(), LISTING.as_secs());
        Failure::new(FailureKind::Unreachable, late)
    })?;
    let listed = listed.map_err(|status| node.explain("cannot list its members", status))?;
    if listed.is_empty() {
        let none = format!("{} lists no members", node.name());
        let failure = Failure::new(FailureKind::Usage, none);
        return Err(failure.advise("name the nodes in a file, with --fleet"));
    }
    let fleet = of_members(listed, &endpoints(global)?)?;
    let names: Vec<&str> = fleet.ways.keys().map(MachineName::as_str).collect();
    eprintln!("members of {}: {}", node.name(), names.join(", "));
    Ok(fleet)
}

fn of_members(listed: Vec<(String, MemberSpec)>, endpoints: &[String]) -> Result<Fleet, Failure> {
    let mut fleet = Fleet::default();
    for (name, member) in listed {
        let way = Way {
            endpoints: endpoints.to_vec(),
            node: Some(address(&name, &member)?),
        };
        let pool = match member.machine_type {
            CONTROL_PLANE => "controlplane",
            WORKER => "worker",
            _ => "",
        };
        let member = Member {
            pool: pool.to_owned(),
            labels: BTreeSet::new(),
        };
        fleet.add(name, way, member)?;
    }
    Ok(fleet)
}

/// The first address of a member that another machine may know.
fn address(name: &str, member: &MemberSpec) -> Result<String, Failure> {
    let addresses = member.addresses.iter().filter_map(|address| {
        let ip = &address.ip;
        let v4 = <[u8; 4]>::try_from(ip.as_slice()).map(IpAddr::from);
        v4.or_else(|_| <[u8; 16]>::try_from(ip.as_slice()).map(IpAddr::from))
            .ok()
    });
    let is_local = |address: &IpAddr| match address {
        IpAddr::V4(address) => address.is_loopback() || address.is_link_local(),
        IpAddr::V6(address) => address.is_loopback() || address.is_unicast_link_local(),
    };
    let mut addresses = addresses.filter(|address| !is_local(address));
    let address = addresses.next().ok_or_else(|| {
        Failure::new(
            FailureKind::Failed,
            format!("the member {name} has no address"),
        )
        .advise("name the nodes in a file, with --fleet")
    })?;
    Ok(address.to_string())
}

/// The endpoints of the command line, or else those of the context.
fn endpoints(global: &Global) -> Result<Vec<String>, Failure> {
    match global.endpoints.as_slice() {
        [] => Ok(target::context(global)?.1),
        endpoints => Ok(endpoints.to_vec()),
    }
}

/// The nodes of `-n` behind the endpoints; without `-n`, the nodes that answer at the endpoints.
fn by_arguments(global: &Global) -> Result<Fleet, Failure> {
    let mut fleet = Fleet::default();
    let context = target::context(global);
    let (nodes, endpoints) = match (global.nodes.as_slice(), global.endpoints.as_slice()) {
        ([], []) => context?,
        (nodes, endpoints) => (nodes.to_vec(), endpoints.to_vec()),
    };
    for node in &nodes {
        let way = Way {
            endpoints: endpoints.clone(),
            node: Some(node.clone()),
        };
        fleet.add(node.clone(), way, Member::default())?;
    }
    if nodes.is_empty() {
        for endpoint in endpoints {
            let way = Way {
                endpoints: vec![endpoint.clone()],
                node: None,
            };
            fleet.add(endpoint, way, Member::default())?;
        }
    }
    Ok(fleet)
}

impl Fleet {
    fn add(&mut self, name: String, way: Way, member: Member) -> Result<(), Failure> {
        let name = MachineName::from(name);
        if self.ways.insert(name.clone(), way).is_some() {
            return Err(Failure::new(
                FailureKind::Usage,
                format!("the fleet has two nodes with the name {name}"),
            ));
        }
        self.members.insert(name, member);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use instar_api::common::NetIp;

    use super::*;

    fn read(text: &str) -> Result<Fleet, Failure> {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("fleet.yaml");
        std::fs::write(&file, text).unwrap();
        by_file(&file)
    }

    #[test]
    fn a_file_names_nodes_and_policies() {
        let fleet = read(
            "nodes:\n  - {name: lamp-1, address: 10.0.0.1, pool: kitchen, labels: [canary=yes]}\n  - {name: lamp-2, address: \"10.0.0.2:50001\"}\n\
             policies:\n  - {share: 50, windows: [\"Sat 02:00-05:00\"]}\n",
        );
        let fleet = fleet.unwrap();
        let first = MachineName::from("lamp-1");
        assert_eq!(fleet.members[&first].pool, "kitchen");
        assert_eq!(fleet.ways[&first].endpoints, ["10.0.0.1"]);
        assert_eq!((fleet.members.len(), fleet.policies.len()), (2, 1));
    }

    #[test]
    fn members_are_nodes_behind_the_endpoints() {
        let ip = |ip: &[u8]| NetIp { ip: ip.to_vec() };
        let member = |addresses: Vec<NetIp>, machine_type| MemberSpec {
            addresses,
            machine_type,
            ..MemberSpec::default()
        };
        let local = ip(&[127, 0, 0, 1]);
        let plane = member(vec![local.clone(), ip(&[10, 0, 0, 1])], CONTROL_PLANE);
        let worker = member(vec![ip(&[0xfd; 16])], WORKER);
        let listed = vec![("n1".to_owned(), plane.clone()), ("n2".to_owned(), worker)];
        let fleet = of_members(listed, &["10.0.0.9".to_owned()]).unwrap();
        let (first, second) = (MachineName::from("n1"), MachineName::from("n2"));
        assert_eq!(fleet.ways[&first].node.as_deref(), Some("10.0.0.1"));
        assert_eq!(fleet.ways[&first].endpoints, ["10.0.0.9"]);
        assert!(
            fleet.ways[&second]
                .node
                .as_deref()
                .unwrap()
                .starts_with("fdfd:")
        );
        let direct = fleet.ways[&first].clone().direct();
        assert_eq!(
            (direct.endpoints, direct.node),
            (vec!["10.0.0.1".to_owned()], None)
        );
        let pools: Vec<&str> = fleet.members.values().map(|it| it.pool.as_str()).collect();
        assert_eq!(pools, ["controlplane", "worker"]);

        let nowhere = member(vec![local], WORKER);
        let failure = of_members(vec![("n3".to_owned(), nowhere)], &[]).unwrap_err();
        assert!(
            failure.chain().contains("n3 has no address"),
            "{}",
            failure.chain()
        );
    }

    #[test]
    fn a_file_with_a_mistake_is_refused() {
        for (text, why) in [
            ("nodes: [{name: a, address: b, adress: c}]", "adress"),
            ("nodes: [{name: a}]", "address"),
            (
                "nodes: [{name: a, address: b}, {name: a, address: c}]",
                "two nodes",
            ),
            (
                "nodes: [{name: a, address: 10.0.0.1}, {name: b, address: \"10.0.0.1:50000\"}]",
                "a and b have the same address",
            ),
            (
                "nodes: [{name: a, address: Lamp}, {name: b, address: lamp}]",
                "same address, lamp",
            ),
            (
                "nodes: [{name: a, address: \"10.0.0.1:x\"}]",
                "address of a cannot be used",
            ),
            ("nodes: []\npolicies: [{share: 0}]", "1 to 100"),
        ] {
            let failure = read(text).unwrap_err();
            assert!(failure.chain().contains(why), "{text}: {}", failure.chain());
        }
    }
}
