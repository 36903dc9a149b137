//! Kinds that describe the kinds.

use super::{Item, KINDS, Kind, Namespace, Record, Sensitivity, definitions};

/// Definitions of all kinds: every client begins with these.
pub(super) const DEFINITIONS: Kind = Kind {
    name: "ResourceDefinitions.meta.cosi.dev",
    singular: "ResourceDefinition",
    namespace: Namespace::Meta,
    aliases: &["api-resources"],
    columns: &[("Aliases", "{.aliases[:]}")],
    sensitivity: Sensitivity::Open,
    sources: &[],
    read: |_| Ok(definitions(&KINDS)),
};

/// The namespaces.
pub(super) const NAMESPACES: Kind = Kind {
    name: "Namespaces.meta.cosi.dev",
    singular: "Namespace",
    namespace: Namespace::Meta,
    aliases: &["ns"],
    columns: &[("Description", "{.description}")],
    sensitivity: Sensitivity::Open,
    sources: &[],
    read: |_| Ok(namespaces()),
};

fn namespaces() -> Vec<Item> {
    let item = |(namespace, about): &(Namespace, &'static str)| {
        Item::new(
            namespace.name(),
            Record::default().with("description", 1, *about),
        )
    };
    Namespace::ALL.iter().map(item).collect()
}
