//! The kinds of a machine that is a Kubernetes node: the node, and the services of its extensions.

use super::{Item, Kind, Namespace, Record, Sensitivity, Source, Value};
use crate::kubernetes::trial::Readiness;
use crate::kubernetes::{KubernetesFact, NodeService};
use crate::machine::Machine;
use crate::store::{Metadata, Resource as _};

/// The name of the node.
pub(super) const NODE_NAMES: Kind = Kind {
    name: "Nodenames.kubernetes.talos.dev",
    singular: "Nodename",
    namespace: Namespace::Kubernetes,
    aliases: &["nodename"],
    columns: &[("Nodename", "{.nodename}")],
    sensitivity: Sensitivity::Open,
    sources: &[Source::Store(KubernetesFact::TYPE)],
    read: |machine| {
        let name = |(metadata, _): (Metadata, KubernetesFact)| {
            let spec = Record::default().with("nodename", 1, metadata.id);
            Item::new("nodename".to_owned(), spec)
        };
        Ok(nodes(machine).map(name).collect())
    },
};

/// The node, and what keeps it from being one.
pub(super) const NODES: Kind = Kind {
    name: "KubernetesNodes.instar.dev",
    singular: "KubernetesNode",
    aliases: &["kubernetes"],
    columns: &[("Ready", "{.ready}"), ("Problems", "{.problems}")],
    read: |machine| {
        let node = |(metadata, fact): (Metadata, KubernetesFact)| {
            let ready = match fact.readiness {
                Readiness::Ready => "true",
                Readiness::NotReady(_) => "false",
                Readiness::Unknown(_) => "unknown",
            };
            let problems = fact.wrong().into_iter();
            let spec = Record::default().with("ready", 1, ready.to_owned()).with(
                "problems",
                2,
                problems.collect::<Value>(),
            );
            Item::stored(metadata, spec)
        };
        Ok(nodes(machine).map(node).collect())
    },
    ..NODE_NAMES
};

/// The services of extensions.
pub(super) const SERVICES: Kind = Kind {
    name: "KubernetesServices.instar.dev",
    singular: "KubernetesService",
    aliases: &[],
    columns: &[
        ("State", "{.state}"),
        ("Restarts", "{.restarts}"),
        ("Extension", "{.extension}"),
        ("Last", "{.last}"),
    ],
    read: |machine| {
        let services = nodes(machine).flat_map(|(_, fact)| fact.services);
        Ok(services.map(service).collect())
    },
    ..NODE_NAMES
};

fn nodes(machine: &Machine) -> impl Iterator<Item = (Metadata, KubernetesFact)> {
    machine.store.list::<KubernetesFact>().into_iter()
}

fn service(service: NodeService) -> Item {
    let spec = Record::default()
        .with("state", 1, service.state.word().to_owned())
        .with("restarts", 2, service.restarts)
        .with("extension", 3, service.extension)
        .with("last", 4, service.last.unwrap_or_default());
    Item::new(service.name, spec)
}
