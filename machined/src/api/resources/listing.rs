//! Lists all resources of a kind as they are now, each with its version and times.

use std::collections::BTreeMap;
use std::time::SystemTime;

use crate::config_source::Secrets;
use crate::machine::Machine;

use super::kind::{Item, Kind, Viewer};
use super::spec::Spec;
use crate::store::Metadata;

/// A resource as clients see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Id, version, times.
    pub metadata: Metadata,
    /// The content as YAML, for people.
    pub yaml: String,
    /// The content as protobuf, for programs.
    pub protobuf: Vec<u8>,
    /// Annotations for clients.
    pub annotations: &'static [(&'static str, &'static str)],
}

/// Lists all resources of a kind, by id. Waits for a disk if the kind [may](Kind::may_wait).
///
/// The version counts the changes of the whole content, even for a caller that sees a part of it.
pub fn list(
    machine: &Machine,
    kind: &'static Kind,
    secrets: Secrets,
    viewer: Viewer,
) -> anyhow::Result<Vec<Listed>> {
    let mut items = BTreeMap::new();
    for item in (kind.read)(machine)? {
        // Of two items with one id the later one counts: a mount that covers another.
        items.insert(item.id.clone(), item);
    }
    let encoded: Vec<(Item, String)> = items
        .into_values()
        .map(|item| {
            let yaml = item.spec.yaml();
            (item, yaml)
        })
        .collect();
    let seen: Vec<(&str, &[u8])> = encoded
        .iter()
        .filter(|(item, _)| item.stored.is_none())
        .map(|(item, yaml)| (item.id.as_str(), yaml.as_bytes()))
        .collect();
    let mut noted = machine
        .observed_versions
        .note(kind.name, &seen, SystemTime::now())
        .into_iter();
    let listed = encoded.into_iter().filter_map(|(item, yaml)| {
        // The versions above are those of the whole content, so that they are the same for every caller.
        let part = match (secrets, viewer) {
            (Secrets::Hidden, _) => item.without_secrets.as_ref(),
            (Secrets::Shown, Viewer::Talos) => item.spec_for_talos.as_ref(),
            (Secrets::Shown, Viewer::Any) => None,
        };
        Some(Listed {
            protobuf: part.unwrap_or(&item.spec).protobuf(),
            yaml: part.map_or(yaml, Spec::yaml),
            annotations: item.annotations,
            metadata: match item.stored {
                Some(metadata) => metadata,
                None => noted.next()?,
            },
        })
    });
    Ok(listed.collect())
}
