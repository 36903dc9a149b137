//! The kind of extensions: those of a Kubernetes node, and those of the machine itself.

use super::{Item, Kind, Namespace, Record, Sensitivity, Source};
use crate::machine::Machine;
use crate::store::{ExtensionFact, Metadata, Resource as _};

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
    sources: &[Source::Store(ExtensionFact::TYPE)],
    read: |machine| Ok(extensions(machine)),
};

fn extensions(machine: &Machine) -> Vec<Item> {
    let extensions = machine.store.list::<ExtensionFact>().into_iter();
    extensions.map(item).collect()
}

fn item((metadata, fact): (Metadata, ExtensionFact)) -> Item {
    let reason = fact.state.reason().unwrap_or_default().to_owned();
    let spec = Record::default()
        .with("state", 1, fact.state.word())
        .with("image", 2, fact.source)
        .with("digest", 3, fact.digest.unwrap_or_default())
        .with("reason", 4, reason)
        .with("target", 5, fact.target.word());
    Item::stored(metadata, spec)
}
