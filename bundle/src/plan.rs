//! The blobs of a bundle in their order, as they follow from index.json and the documents that it names.

use std::collections::{BTreeMap, BTreeSet};

use instar_values::Digest;

use crate::document;
use crate::fault::Fault;
use crate::index::Index;
use crate::limits::{LARGEST_BLOB, LARGEST_DOCUMENT, MOST_BLOBS};
use crate::summary::Summary;

/// The groups of blobs, in the order in which they lie in a bundle. A blob that belongs to two is in the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    /// Documents that index.json names: manifests of images, of signatures and of files, and indexes.
    Documents,
    /// Blobs that manifests of signatures name.
    Signatures,
    /// Configs of images, and the empty one of files.
    Configs,
    /// Layers of images, and files of extensions.
    Layers,
}

/// A blob in its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Planned {
    /// Its group.
    pub group: Group,
    /// Its digest.
    pub digest: Digest,
    /// Its size in bytes.
    pub size: u64,
}

/// All blobs of a bundle in their order, and the summary that follows from them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    pub(crate) blobs: Vec<Planned>,
    pub(crate) summary: Summary,
}

/// The blobs that are known so far: first those that index.json names, then those that the documents name which were learned.
pub(crate) struct Planner<'a> {
    index: &'a Index,
    sizes: BTreeMap<Digest, u64>,
    groups: BTreeMap<Digest, Group>,
}

impl<'a> Planner<'a> {
    /// A planner that knows index.json.
    pub(crate) fn new(index: &'a Index) -> Result<Self, Fault> {
        let mut planner = Planner {
            index,
            sizes: BTreeMap::new(),
            groups: BTreeMap::new(),
        };
        for document in index.documents() {
            planner.name(Group::Documents, document.digest, document.size)?;
        }
        for file in index.files() {
            // Its manifest follows from index.json, so nothing is learned from it.
            let [_, (config, bytes), (content, size)] = file.blobs();
            planner.name(Group::Configs, config, bytes)?;
            planner.name(Group::Layers, content, size)?;
        }
        Ok(planner)
    }

    /// The blobs of a group that are known so far, by digest.
    pub(crate) fn group(&self, wanted: Group) -> Vec<Planned> {
        let in_it = self.groups.iter().filter(|(_, group)| **group == wanted);
        let planned = in_it.map(|(&digest, &group)| Planned {
            group,
            digest,
            size: self.sizes.get(&digest).copied().unwrap_or_default(),
        });
        planned.collect()
    }

    /// Takes note of the blobs that a document of index.json names.
    pub(crate) fn learn(&mut self, digest: Digest, bytes: &[u8]) -> Result<(), Fault> {
        let index = self.index;
        let images = || index.images().iter();
        if images().any(|image| image.manifest.digest == digest) {
            self.learn_manifest(bytes, Group::Configs, Group::Layers)?;
        }
        let mut signatures = index.signatures().iter();
        if signatures.any(|signature| signature.manifest.digest == digest) {
            self.learn_manifest(bytes, Group::Signatures, Group::Signatures)?;
        }
        let mut from_it = images()
            .filter(|image| image.index == Some(digest))
            .peekable();
        if from_it.peek().is_some() {
            let named: BTreeSet<Digest> =
                document::manifests_of_index(bytes)?.into_iter().collect();
            if let Some(image) = from_it.find(|image| !named.contains(&image.manifest.digest)) {
                return Err(Fault::NotOfIndex(image.manifest.digest));
            }
        }
        Ok(())
    }

    fn learn_manifest(&mut self, bytes: &[u8], config: Group, layers: Group) -> Result<(), Fault> {
        let manifest = document::manifest(bytes)?;
        self.name(config, manifest.config.digest, manifest.config.size)?;
        for layer in &manifest.layers {
            self.name(layers, layer.digest, layer.size)?;
        }
        Ok(())
    }

    fn name(&mut self, group: Group, digest: Digest, size: u64) -> Result<(), Fault> {
        let limit = match group {
            Group::Documents | Group::Signatures | Group::Configs => LARGEST_DOCUMENT,
            Group::Layers => LARGEST_BLOB,
        };
        if size > limit {
            return Err(Fault::TooLarge {
                digest,
                size,
                limit,
            });
        }
        let one = *self.sizes.entry(digest).or_insert(size);
        if one != size {
            return Err(Fault::TwoSizes {
                digest,
                one,
                other: size,
            });
        }
        let first = self.groups.entry(digest).or_insert(group);
        *first = group.min(*first);
        match self.groups.len() {
            count if count > MOST_BLOBS => Err(Fault::TooMany {
                what: "blobs",
                count,
                limit: MOST_BLOBS,
            }),
            _ => Ok(()),
        }
    }

    /// The plan, once all documents were learned.
    pub(crate) fn finish(&self) -> Plan {
        let groups = [
            Group::Documents,
            Group::Signatures,
            Group::Configs,
            Group::Layers,
        ];
        let blobs: Vec<Planned> = groups.into_iter().flat_map(|it| self.group(it)).collect();
        // At most 16384 blobs of 8 GiB: no overflow.
        let bytes = blobs.iter().map(|blob| blob.size).sum();
        let summary = Summary::new(self.index, blobs.len() as u64, bytes);
        Plan { blobs, summary }
    }
}

impl Plan {
    /// The plan of a bundle with this index, whose documents are here by their digests.
    ///
    /// # Errors
    /// A document is missing, cannot be read, or contradicts another.
    pub fn new(index: &Index, documents: &BTreeMap<Digest, Vec<u8>>) -> Result<Self, Fault> {
        let mut planner = Planner::new(index)?;
        for planned in planner.group(Group::Documents) {
            let bytes = documents.get(&planned.digest).ok_or(Fault::Missing)?;
            planner.learn(planned.digest, bytes)?;
        }
        Ok(planner.finish())
    }

    /// All blobs in their order.
    pub fn blobs(&self) -> &[Planned] {
        &self.blobs
    }

    /// The summary.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }
}
