//! Removes what a power cut, or an end in the middle of a pull, has left in the store: the first time that it is used by a machined. What a running
//! container has below its root stays: it may have been started by an earlier one.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{fs, io};

use instar_values::Digest;

use super::record::read;
use super::{ImageStore, REMOVED};
use crate::store_error::{StoreError, failed};

impl ImageStore {
    /// Makes the directory of images and, the first time, removes interrupted work: pulls, removals, and images whose record cannot be
    /// read.
    pub(super) fn prepare(&self) -> Result<PathBuf, StoreError> {
        self.prepare_beside(|| self.mounted())
    }

    /// The same beside containers that run from these images.
    pub(super) fn prepare_beside(
        &self,
        mounted: impl FnOnce() -> Result<BTreeSet<Digest>, StoreError>,
    ) -> Result<PathBuf, StoreError> {
        let images = self.images();
        let mut state = self.shared.state();
        fs::create_dir_all(&images).map_err(failed("creating", &images))?;
        if state.swept {
            return Ok(images);
        }
        let mounted = mounted()?;
        for entry in fs::read_dir(&images).map_err(failed("listing", &images))? {
            let path = entry.map_err(failed("listing", &images))?.path();
            let name = path
                .file_name()
                .map(|name| name.to_string_lossy().into_owned())
                .unwrap_or_default();
            let whole = Digest::from_hex(&name)
                .is_ok_and(|digest| read(&path).is_some_and(|record| record.digest == digest));
            if !whole {
                if let Ok(digest) = Digest::from_hex(&name) {
                    tracing::error!(
                        "the image {digest} is damaged on the disk and is removed: its record cannot be read"
                    );
                    let how = "its record cannot be read".to_owned();
                    state.damaged.insert(digest, how);
                    // Without its manifest it is not made again from blobs.
                    let blobs = self.blobs_by_manifest(digest).unwrap_or_default();
                    let left = self.shared.left_proofs.take_over(digest, &path, &blobs);
                    if let Err(error) = left {
                        tracing::error!(
                            "the image {digest} stays until its use, or the next boot: {error}"
                        );
                        continue;
                    }
                }
                if let Some(image) = image_of(&name).filter(|image| mounted.contains(image)) {
                    let shown = path.display();
                    tracing::info!("a container runs from what is left of an image: {shown} stays");
                    // Its name is free for the image that is made again: that would find no place, and the container would not start.
                    if path == self.place(image)
                        && let Err(error) = self.put_away(image)
                    {
                        tracing::error!("the image {image} cannot be made again: {error}");
                    }
                    continue;
                }
                tracing::info!("removing what is left of an image: {}", path.display());
                remove_tree(&path).map_err(failed("removing", &path))?;
            }
        }
        state.swept = true;
        Ok(images)
    }

    /// Removes interrupted work, unless that has been done.
    pub fn sweep(&self) -> Result<(), StoreError> {
        if self.images().exists() {
            self.prepare()?;
        }
        Ok(())
    }
}

/// The image whose directory has this name, also one that was put away.
fn image_of(name: &str) -> Option<Digest> {
    let name = name.strip_prefix(REMOVED).unwrap_or(name);
    let (hex, _) = name.split_once('-').unwrap_or((name, ""));
    Digest::from_hex(hex).ok()
}

/// Removes a directory or a file; a missing one is fine.
pub(super) fn remove_tree(path: &Path) -> io::Result<()> {
    match instar_base::removal::tree(path) {
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => fs::remove_file(path),
        result => result,
    }
}
