//! The room of a store as its disk has it: looked at, promised to pulls, and asked for where it is scarce. `room` judges it.

use std::collections::BTreeSet;
use std::path::Path;

use super::ImageStore;
use super::promised::Promise;
use super::room::{RoomFacts, RoomForAll};
use crate::blobs::{BlobFile, Blobs};
use crate::manifest::Layer;
use crate::store_error::{StoreError, failed};

impl ImageStore {
    /// Waits until a pull lacks room. For the collector of images, which then collects and calls [`round_ended`](Self::round_ended).
    pub async fn lacks_room(&self) {
        self.shared.lack.told().await;
    }

    /// Notes that the collector has removed the images that nothing needs.
    pub fn round_ended(&self) {
        self.shared.lack.round_ended();
    }

    /// Has the collector remove images that nothing needs.
    pub(crate) async fn ask_for_room(&self) {
        self.shared.lack.tell().await;
    }

    /// Plans the room for an image of these layers, and promises it; `None` for a store in memory, which is made for one image.
    pub(crate) fn plan_room(
        &self,
        layers: &[Layer],
    ) -> Result<Option<(RoomFacts, Option<Promise>)>, StoreError> {
        let Some(blobs) = self.blobs() else {
            return Ok(None);
        };
        // Before the plan: as long as one is made, no other pull goes on.
        let repeated = self.shared.objects.repeated_bytes()?;
        let planning = self.shared.promises.plan();
        let facts = self.room_facts(layers, Some(&blobs), planning.bytes(), repeated)?;
        Ok(Some((facts, planning.promise(&facts))))
    }

    /// The facts about room, for layers that are kept as blobs. `repeated` are bytes of files that several images share.
    fn room_facts(
        &self,
        layers: &[Layer],
        blobs: Option<&Blobs>,
        promised: u64,
        repeated: u64,
    ) -> Result<RoomFacts, StoreError> {
        let directory = self.prepare()?;
        let disk = disk_of(&directory)?;
        let (whole, partial) = match blobs {
            Some(blobs) => (blobs.list()?, blobs.list_partial()?),
            None => (Vec::new(), Vec::new()),
        };
        let sum = |files: &[BlobFile]| files.iter().map(|file| file.bytes).sum::<u64>();
        let images = self.list()?.into_iter().map(|image| image.unpacked_bytes());
        let missing = layers.iter().map(|layer| {
            let is_it = |file: &&BlobFile| file.digest == layer.digest;
            let here = whole.iter().chain(&partial).find(is_it);
            layer.size.saturating_sub(here.map_or(0, |file| file.bytes))
        });
        let add = |sum: u64, bytes: u64| sum.saturating_add(bytes);
        let unpacked = images.fold(0, add).saturating_sub(repeated);
        Ok(RoomFacts {
            capacity: disk.f_blocks.saturating_mul(disk.f_frsize),
            free: disk.f_bavail.saturating_mul(disk.f_frsize),
            used: add(sum(&whole) + sum(&partial), unpacked),
            promised,
            missing: missing.fold(0, add),
            packed: layers.iter().map(|layer| layer.size).fold(0, add),
            for_upgrade: self.for_upgrade,
        })
    }

    /// The room for several images together, each with its blobs where the store keeps them. Blocks for as long as the disk takes.
    ///
    /// # Errors
    /// The file system failed.
    pub fn room_for_all(&self, images: &[Vec<Layer>]) -> Result<RoomForAll, StoreError> {
        let mut seen = BTreeSet::new();
        let layers: Vec<Layer> = images.iter().flatten().cloned().collect();
        let once = layers.iter().filter(|layer| seen.insert(layer.digest));
        let once: Vec<Layer> = once.cloned().collect();
        let repeated = self.shared.objects.repeated_bytes()?;
        let promised = self.shared.promises.bytes();
        let facts = match self.blobs() {
            Some(blobs) => self.room_facts(&once, Some(&blobs), promised, repeated)?,
            // No layer is kept.
            None => self.room_facts(&[], None, promised, repeated)?,
        };
        let packed = layers.iter().map(|layer| layer.size);
        let packed = packed.fold(0_u64, u64::saturating_add);
        Ok(RoomForAll::of(&RoomFacts { packed, ..facts }))
    }
}

fn disk_of(directory: &Path) -> Result<rustix::fs::StatVfs, StoreError> {
    rustix::fs::statvfs(directory)
        .map_err(|errno| failed("looking at the file system of", directory)(errno.into()))
}
