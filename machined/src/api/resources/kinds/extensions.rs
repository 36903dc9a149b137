//! The kind of extensions: those of a Kubernetes node, and those of the machine itself.

use super::{Item, Kind, Namespace, Record, Sensitivity, Source};
use crate::kubernetes::{ExtensionFact, ExtensionState};
use crate::machine::Machine;
use crate::os_extensions::{OsExtensionFact, OsExtensionState};
use crate::store::{Metadata, Resource as _};

/// The extensions. The config has each name once, whatever the extension is for.
pub(super) const EXTENSIONS: Kind = Kind {
    name: "Extensions.instar.dev",
    singular: "Extension",
    namespace: Namespace::Runtime,
    aliases: &[],
    columns: &[
        ("Target", "{.target}"),
        ("State", "{.state}"),
        ("Image", "{.image}"),
        ("Digest", "{.digest}"),
        ("Reason", "{.reason}"),
    ],
    sensitivity: Sensitivity::Open,
    sources: &[
        Source::Store(ExtensionFact::TYPE),
        Source::Store(OsExtensionFact::TYPE),
    ],
    read: |machine| Ok(extensions(machine)),
};

fn extensions(machine: &Machine) -> Vec<Item> {
    let of_kubernetes = machine.store.list::<ExtensionFact>().into_iter();
    let of_os = machine.store.list::<OsExtensionFact>().into_iter();
    of_kubernetes
        .map(of_kubernetes_item)
        .chain(of_os.map(of_os_item))
        .collect()
}

fn of_kubernetes_item((metadata, fact): (Metadata, ExtensionFact)) -> Item {
    let (state, reason) = match fact.state {
        ExtensionState::Fetching => ("fetching", String::new()),
        ExtensionState::Refused(reason) => ("refused", reason),
        ExtensionState::Planned => ("planned", String::new()),
    };
    let spec = record(state, fact.image, fact.digest, reason, "kubernetes");
    Item::stored(metadata, spec)
}

fn of_os_item((metadata, fact): (Metadata, OsExtensionFact)) -> Item {
    let (state, reason) = match fact.state {
        OsExtensionState::Fetching => ("fetching", String::new()),
        OsExtensionState::Refused(reason) => ("refused", reason),
        OsExtensionState::InForce => ("in force", String::new()),
    };
    Item::stored(
        metadata,
        record(state, fact.source, fact.digest, reason, "os"),
    )
}

fn record(
    state: &str,
    image: String,
    digest: Option<String>,
    reason: String,
    target: &str,
) -> Record {
    Record::default()
        .with("state", 1, state.to_owned())
        .with("image", 2, image)
        .with("digest", 3, digest.unwrap_or_default())
        .with("reason", 4, reason)
        .with("target", 5, target.to_owned())
}
