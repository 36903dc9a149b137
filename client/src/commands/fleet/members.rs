//! The nodes of a fleet: from a file, or from the command line.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use instar_client::{Failure, FailureKind};
use instar_rollout::{MachineName, Member, Policy, Select, Wave};
use serde::{Deserialize, Serialize};

use crate::cli::{FleetLimits, FleetOver, Global};

/// How a node is reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Way {
    /// Where to connect; the endpoints of the context if there are none.
    pub(super) endpoints: Vec<String>,
    /// The name by which the endpoint passes calls on; none if the node itself answers there.
    pub(super) node: Option<String>,
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

/// How the nodes of a file, or else of the command line, are reached.
pub(super) fn ways(
    global: &Global,
    file: Option<&Path>,
) -> Result<BTreeMap<MachineName, Way>, Failure> {
    Ok(members(global, file)?.ways)
}

/// The same, of the nodes in one pool.
pub(super) fn ways_of_pool(
    global: &Global,
    file: Option<&Path>,
    pool: &str,
) -> Result<BTreeMap<MachineName, Way>, Failure> {
    let Fleet {
        mut ways, members, ..
    } = members(global, file)?;
    ways.retain(|name, _| members.get(name).is_some_and(|member| member.pool == pool));
    match ways.is_empty() {
        true => Err(Failure::new(
            FailureKind::Usage,
            format!("the fleet has no node in the pool {pool:?}"),
        )),
        false => Ok(ways),
    }
}

fn members(global: &Global, file: Option<&Path>) -> Result<Fleet, Failure> {
    match file {
        Some(file) => by_file(file),
        None => by_arguments(global),
    }
}

/// The fleet of a file or of the command line, with the limits of the command line as one more policy.
pub(super) fn fleet(global: &Global, over: &FleetOver) -> Result<Fleet, Failure> {
    let mut fleet = members(global, over.fleet.as_deref())?;
    fleet.policies.push(policy(&over.limits));
    Ok(fleet)
}

fn by_file(file: &Path) -> Result<Fleet, Failure> {
    let name = file.display();
    let text = std::fs::read_to_string(file)
        .map_err(|error| Failure::io(format!("cannot read {name}"), error))?;
    let read: FleetFile = serde_saphyr::from_str(&text).map_err(|error| {
        Failure::new(FailureKind::Usage, format!("cannot use {name}")).because(error)
    })?;
    let mut fleet = Fleet {
        policies: read.policies,
        ..Fleet::default()
    };
    for node in read.nodes {
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

/// The nodes of `-n` behind the endpoints; without `-n`, the nodes that answer at the endpoints.
fn by_arguments(global: &Global) -> Result<Fleet, Failure> {
    let mut fleet = Fleet::default();
    let context = crate::target::context(global);
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

/// The policy of the command line's limits.
fn policy(limits: &FleetLimits) -> Policy {
    let canary = limits.canary.map(|count| Wave {
        select: Select::Count(count),
        soak: limits.soak,
    });
    Policy {
        at_once: Some(limits.at_once),
        share: limits.share,
        rate: limits.rate,
        waves: canary.into_iter().collect(),
        windows: limits.window.clone(),
        prepare_first: limits.prepare_first,
        approval: match limits.approve_waves {
            true => instar_rollout::Approval::Waves,
            false => instar_rollout::Approval::None,
        },
        max_failures: limits.max_failures,
        on_failure: match limits.roll_back {
            true => instar_rollout::OnFailure::Rollback,
            false => instar_rollout::OnFailure::Halt,
        },
        patience: limits.patience,
        ..Policy::default()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
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
    fn a_file_with_a_mistake_is_refused() {
        for (text, why) in [
            ("nodes: [{name: a, address: b, adress: c}]", "adress"),
            ("nodes: [{name: a}]", "address"),
            (
                "nodes: [{name: a, address: b}, {name: a, address: c}]",
                "two nodes",
            ),
            ("nodes: []\npolicies: [{share: 0}]", "1 to 100"),
        ] {
            let failure = read(text).unwrap_err();
            assert!(failure.chain().contains(why), "{text}: {}", failure.chain());
        }
    }
}
