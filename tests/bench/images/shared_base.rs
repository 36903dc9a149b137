//! The cost of a second image that shares its base with one that is in the store: bytes fetched and stored, over those that differ.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use anyhow::{Context, Result};
use instar_tests::{OciImage, Registry, Scratch};

use super::{Ours, Tool as _, clear};
use crate::table::{Goal, Limit, Table};

/// Bytes of the base: a random file, which no compression makes smaller.
const BASE_BYTES: usize = 24 << 20;
/// Bytes of each image's own file.
const OWN_BYTES: usize = 4 << 20;

pub(super) fn measure(scratch: &Scratch, registry: &Registry, table: &mut Table) -> Result<()> {
    let mut random = fastrand::Rng::with_seed(17);
    let mut noise = |bytes: usize| -> Vec<u8> {
        std::iter::repeat_with(|| random.u8(..))
            .take(bytes)
            .collect()
    };
    let base = noise(BASE_BYTES);
    let image = |own: &[u8]| {
        OciImage::starting(&["/own"])
            .files(&[("base", &base)])?
            .files(&[("own", own)])
    };
    let mut ours = Ours::new(scratch)?;
    let first = image(&noise(OWN_BYTES))?.push(registry, "shared", "first")?;
    ours.pull(&format!("{}/shared:first", registry.address()))?;
    let before = bytes_below(&ours.store())?;

    let second = image(&noise(OWN_BYTES))?.push(registry, "shared", "second")?;
    // So it cannot be fetched again.
    let [base, _] = &first.layers[..] else {
        anyhow::bail!("not two layers: {first:?}");
    };
    std::fs::remove_file(registry.blob_file(base)?)?;
    let own = second.layers.last().context("no layer")?;
    let fetched = registry.blob_file(own)?.metadata()?.len();
    ours.pull(&format!("{}/shared:second", registry.address()))?;
    let stored = bytes_below(&ours.store())? - before;
    clear(&ours.store())?;

    // Its blob and its file.
    let differs = fetched + OWN_BYTES as u64;
    table.add(
        "shared_base_bytes_ratio",
        stored as f64 / differs as f64,
        Goal(Limit::AtMost(1.05)),
    );
    table.add("shared_base_stored_bytes", stored as f64, Limit::None);
    table.add("shared_base_fetched_bytes", fetched as f64, Limit::None);
    Ok(())
}

/// Bytes on the disk; a file with several names counts once.
fn bytes_below(directory: &Path) -> Result<u64> {
    let mut seen = BTreeSet::new();
    let mut bytes = 0;
    let mut directories = vec![directory.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(&directory)? {
            let entry = entry?;
            let metadata = entry.path().symlink_metadata()?;
            if metadata.is_dir() {
                directories.push(entry.path());
            }
            if seen.insert(metadata.ino()) {
                bytes += metadata.blocks() * 512;
            }
        }
    }
    Ok(bytes)
}
