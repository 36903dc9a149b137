//! Kinds for the machine's config and for the facts that it gives to other machines.

use std::path::Path;
use std::sync::Arc;

use super::{Item, Kind, Namespace, Record, Sensitivity, Source, Spec, Value, hardware, network};
use crate::config::{self, MachineType};
use crate::intent::next_config;
use crate::kubernetes::ClusterNode;
use crate::machine::Machine;
use crate::network::NetworkStatus;

/// The annotation that clients look for which edit a config.
const EDITABLE: (&str, &str) = ("talos.dev/yaml-spec", "1");

/// Members of the cluster: this machine, and the other nodes of its Kubernetes cluster that run Instar, as far as it may read them.
pub(super) const MEMBERS: Kind = Kind {
    name: "Members.cluster.talos.dev",
    singular: "Member",
    namespace: Namespace::Cluster,
    aliases: &[],
    columns: &[
        ("Hostname", "{.hostname}"),
        ("Machine Type", "{.machineType}"),
        ("OS", "{.operatingSystem}"),
        ("Addresses", "{.addresses}"),
    ],
    sensitivity: Sensitivity::Open,
    sources: &[Source::Network, Source::Config, Source::Cluster],
    read: |machine| {
        let id = hardware::uuid(Path::new("/sys"));
        let (kind, version) = (machine_type(machine), &machine.running.version);
        let network = machine.network.status();
        let network = network.borrow();
        let own = own_member(&network, id, kind, version);
        Ok(with_others(own, machine.known_nodes.get()))
    },
};

/// The machine's role.
pub(super) const MACHINE_TYPES: Kind = Kind {
    name: "MachineTypes.config.talos.dev",
    singular: "MachineType",
    namespace: Namespace::Config,
    columns: &[("Type", "{@}")],
    sources: &[Source::Config],
    read: |machine| {
        let spec = Spec::Bare(1, type_word(machine_type(machine)));
        Ok(vec![Item::new("machine-type", spec)])
    },
    ..MEMBERS
};

/// The machine config: the one in force, and the one for the next boot: it may be staged, or remain after a trial. It holds the authority's
/// key.
pub(super) const MACHINE_CONFIGS: Kind = Kind {
    name: "MachineConfigs.config.talos.dev",
    singular: "MachineConfig",
    namespace: Namespace::Config,
    columns: &[],
    sensitivity: Sensitivity::Secret,
    // The config for the next boot is on a disk.
    sources: &[Source::Config, Source::Unannounced],
    read: |machine| {
        let in_force = machine.config().map(|it| {
            let item = document("v1alpha1", &it.text);
            let settled = machine.settled_config();
            match settled.is_none_or(|settled| Arc::ptr_eq(&settled, &it)) {
                true => item,
                false => on_trial(item),
            }
        });
        let kept = next_config::kept(machine).map(|it| document("persistent", &it.text));
        Ok(kept.into_iter().chain(in_force).collect())
    },
    ..MEMBERS
};

fn machine_type(machine: &Machine) -> Option<MachineType> {
    Some(machine.config()?.config.machine_type)
}

fn type_word(machine_type: Option<MachineType>) -> Value {
    match machine_type {
        None => Value::Word(0, "unknown"),
        Some(MachineType::ControlPlane) => Value::Word(2, "controlplane"),
        Some(MachineType::Worker) => Value::Word(3, "worker"),
    }
}

/// This machine among the members.
struct Member {
    firmware_id: String,
    item: Item,
}

/// Adds the other nodes of the cluster. This machine's own facts are newer than what the cluster knows of it.
fn with_others(own: Option<Member>, nodes: Vec<ClusterNode>) -> Vec<Item> {
    let found = own.as_ref().and_then(|own| position(own, &nodes));
    let others = nodes.into_iter().enumerate();
    let others = others.filter(|(at, _)| Some(*at) != found);
    let others = others.map(|(_, node)| node);
    let mut items: Vec<Item> = others.map(other_member).collect();
    items.extend(own.map(|own| own.item));
    items
}

/// Returns the position of this machine among the nodes of the cluster: by its name, or else by its firmware, which says the same on machines
/// whose maker has not numbered them.
fn position(own: &Member, nodes: &[ClusterNode]) -> Option<usize> {
    let is_named = |node: &ClusterNode| own.item.id.eq_ignore_ascii_case(&node.name);
    if let Some(named) = nodes.iter().position(is_named) {
        return Some(named);
    }
    let is_same_firmware = |node: &ClusterNode| {
        !node.firmware_id.is_empty() && own.firmware_id.eq_ignore_ascii_case(&node.firmware_id)
    };
    let mut same = (0..nodes.len()).filter(|at| is_same_firmware(&nodes[*at]));
    match (same.next(), same.next()) {
        (Some(only), None) => Some(only),
        _ => None,
    }
}

fn operating_system(version: &str) -> String {
    format!("Instar ({version})")
}

/// Builds the item of another node.
fn other_member(node: ClusterNode) -> Item {
    let kind = match node.is_control_plane {
        true => MachineType::ControlPlane,
        false => MachineType::Worker,
    };
    let spec = Record::default()
        .with("nodeId", 1, node.firmware_id)
        .with(
            "addresses",
            2,
            node.addresses.into_iter().collect::<Value>(),
        )
        .with("hostname", 3, node.name.as_str())
        .with("machineType", 4, type_word(Some(kind)))
        .with("operatingSystem", 5, operating_system(&node.version));
    Item::new(node.name, spec)
}

/// Builds the item of this machine; none until there is a hostname.
fn own_member(
    network: &NetworkStatus,
    node_id: String,
    kind: Option<MachineType>,
    version: &str,
) -> Option<Member> {
    if network.hostname.is_empty() {
        return None;
    }
    let spec = Record::default()
        .with("nodeId", 1, node_id.as_str())
        .with("addresses", 2, network::own_addresses(network))
        .with("hostname", 3, network.hostname.as_str())
        .with("machineType", 4, type_word(kind))
        .with("operatingSystem", 5, operating_system(version));
    Some(Member {
        firmware_id: node_id,
        item: Item::new(network.hostname.as_str(), spec),
    })
}

/// Builds the item with the content as one text.
fn document(id: &str, text: &str) -> Item {
    let spec = |text: String| Spec::Bare(1, Value::Document(text));
    Item {
        annotations: &[EDITABLE],
        spec_for_talos: Some(spec(config::without_own(text))),
        ..Item::new(id, spec(text.to_owned()))
    }
}

/// Marks a config that is taken back unless it is applied to stay.
fn on_trial(item: Item) -> Item {
    Item {
        annotations: &[EDITABLE, (instar_api::ON_TRIAL, "1")],
        ..item
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use instar_api::definitions::{cluster, config as wire};
    use prost::Message as _;

    use super::*;

    #[test]
    fn both_encodings_are_those_of_the_contract() {
        let network = NetworkStatus {
            hostname: "node-1".to_owned(),
            ..NetworkStatus::default()
        };
        let item = own_member(
            &network,
            "id".into(),
            Some(MachineType::ControlPlane),
            "v0.1.0",
        )
        .unwrap()
        .item;
        let spec = cluster::MemberSpec::decode(item.spec.protobuf().as_slice()).unwrap();
        assert_eq!(
            (item.id.as_str(), spec.hostname.as_str()),
            ("node-1", "node-1")
        );
        assert_eq!(
            (spec.machine_type, spec.operating_system.as_str()),
            (2, "Instar (v0.1.0)")
        );
        let yaml: serde_json::Value = serde_saphyr::from_str(&item.spec.yaml()).unwrap();
        assert_eq!(yaml["machineType"], "controlplane");

        let spec = Spec::Bare(1, type_word(Some(MachineType::Worker)));
        let decoded = wire::MachineTypeSpec::decode(spec.protobuf().as_slice()).unwrap();
        assert_eq!(decoded.machine_type, 3);

        let item = document("v1alpha1", "version: v1alpha1\n");
        let decoded = wire::MachineConfigSpec::decode(item.spec.protobuf().as_slice()).unwrap();
        assert_eq!(decoded.yaml_marshalled, b"version: v1alpha1\n");
        let yaml: String = serde_saphyr::from_str(&item.spec.yaml()).unwrap();
        assert_eq!(yaml, "version: v1alpha1\n");
    }

    #[test]
    fn other_nodes_of_the_cluster_are_members_and_this_machine_is_one_only_once() {
        let network = NetworkStatus {
            hostname: "node-1".to_owned(),
            ..NetworkStatus::default()
        };
        let node = |name: &str, id: &str, is_control_plane| ClusterNode {
            name: name.to_owned(),
            firmware_id: id.to_owned(),
            addresses: vec!["10.0.0.5".parse().unwrap()],
            is_control_plane,
            version: "v0.2.0".to_owned(),
        };
        // By its name, and by the identity of its firmware after it was named anew.
        for own in [node("Node-1", "", false), node("before", "ID", false)] {
            let member = own_member(&network, "id".into(), None, "v0.1.0");
            let other = node("node-2", "other", true);
            let items = with_others(member, vec![own, other]);
            let ids: Vec<&str> = items.iter().map(|item| item.id.as_str()).collect();
            assert_eq!(ids, ["node-2", "node-1"]);
            let spec = cluster::MemberSpec::decode(items[0].spec.protobuf().as_slice()).unwrap();
            assert_eq!((spec.hostname.as_str(), spec.machine_type), ("node-2", 2));
            assert_eq!(spec.addresses[0].ip, [10, 0, 0, 5]);
            assert_eq!(spec.operating_system, "Instar (v0.2.0)");
        }
        let alone = with_others(None, vec![node("node-2", "", false)]);
        assert_eq!(alone.len(), 1);
    }

    #[test]
    fn a_config_on_trial_is_marked_and_can_be_edited() {
        let item = document("v1alpha1", "version: v1alpha1\n");
        assert_eq!(item.annotations, [EDITABLE]);
        let marks = [EDITABLE, ("instar.dev/on-trial", "1")];
        assert_eq!(on_trial(item).annotations, marks);
    }

    #[test]
    fn clients_of_talos_are_shown_what_they_know() {
        let ours = "---\napiVersion: instar.dev/v1alpha1\nkind: UpgradeGateConfig\n";
        let item = document("v1alpha1", &format!("version: v1alpha1\n{ours}"));
        let shown = item.spec_for_talos.unwrap();
        let decoded = wire::MachineConfigSpec::decode(shown.protobuf().as_slice()).unwrap();
        assert_eq!(decoded.yaml_marshalled, b"version: v1alpha1\n");
        assert!(item.spec.yaml().contains("UpgradeGateConfig"));
    }
}
