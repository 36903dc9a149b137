//! Kinds for the machine's config and for the facts that it gives to other machines.

use std::path::Path;

use super::{Item, Kind, Namespace, Record, Sensitivity, Source, Spec, Value, hardware, network};
use crate::config::{self, MachineType};
use crate::machine::Machine;
use crate::network::NetworkStatus;
use crate::sequences;

/// Members of the cluster. The machine knows only itself.
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
    sources: &[Source::Network, Source::Config],
    read: |machine| {
        let id = hardware::uuid(Path::new("/sys"));
        let (kind, version) = (machine_type(machine), &machine.running.version);
        let network = machine.network.status();
        let network = network.borrow();
        Ok(member(&network, id, kind, version).into_iter().collect())
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
        let in_force = machine.config().map(|it| document("v1alpha1", &it.text));
        let kept = sequences::kept_config(machine).map(|it| document("persistent", &it.text));
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

/// Builds the item of this machine; none until there is a hostname.
fn member(
    network: &NetworkStatus,
    node_id: String,
    kind: Option<MachineType>,
    version: &str,
) -> Option<Item> {
    if network.hostname.is_empty() {
        return None;
    }
    let spec = Record::default()
        .with("nodeId", 1, node_id)
        .with("addresses", 2, network::own_addresses(network))
        .with("hostname", 3, network.hostname.as_str())
        .with("machineType", 4, type_word(kind))
        .with("operatingSystem", 5, format!("Instar ({version})"));
    Some(Item::new(network.hostname.as_str(), spec))
}

/// Builds the item with the content as one text and an annotation: clients that edit the config look for it.
fn document(id: &str, text: &str) -> Item {
    let spec = |text: String| Spec::Bare(1, Value::Document(text));
    Item {
        annotations: &[("talos.dev/yaml-spec", "1")],
        spec_for_talos: Some(spec(config::without_own(text))),
        ..Item::new(id, spec(text.to_owned()))
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
        let item = member(
            &network,
            "id".into(),
            Some(MachineType::ControlPlane),
            "v0.1.0",
        )
        .unwrap();
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
    fn clients_of_talos_are_shown_what_they_know() {
        let ours = "---\napiVersion: instar.dev/v1alpha1\nkind: UpgradeGateConfig\n";
        let item = document("v1alpha1", &format!("version: v1alpha1\n{ours}"));
        let shown = item.spec_for_talos.unwrap();
        let decoded = wire::MachineConfigSpec::decode(shown.protobuf().as_slice()).unwrap();
        assert_eq!(decoded.yaml_marshalled, b"version: v1alpha1\n");
        assert!(item.spec.yaml().contains("UpgradeGateConfig"));
    }
}
