//! Files below /etc, from the machine config and from extensions.
//!
//! The image's /etc is read-only. Once one of them has a file for it, a copy in memory takes its place: the image's files, those of
//! extensions over them, and the config's over all. Both mounts end with the generation. Readers see the old or the new content of a file,
//! never half of it, and a change that fails leaves all files as they were.

mod entries;
mod error;
mod exchange;
mod tree;
mod wanted;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

pub use self::error::EtcFilesError;
use self::tree::Tree;
use self::wanted::Wanted;
pub use self::wanted::{Choice, OfExtensions, Offer, Taken};
use crate::base::lock::Lock as _;
use crate::base::whole_file;
use crate::values::EtcFile;

/// The files of extensions, for a machined that starts again in the same generation.
const RECORD: &str = "extensions.json";

/// The files that /etc has beside the image's; clones share them.
#[derive(Debug, Clone)]
pub struct EtcFiles {
    tree: Tree,
    record: PathBuf,
    wanted: Arc<Mutex<Wanted>>,
}

impl EtcFiles {
    /// Returns the files of a directory such as /etc; `home` is one in memory that ends with the generation.
    pub fn at(etc: PathBuf, home: &Path) -> Self {
        EtcFiles {
            tree: Tree::new(etc, home),
            record: home.join(RECORD),
            wanted: Arc::default(),
        }
    }

    /// Takes over the files of extensions from an earlier machined of this generation: they stay when the config's files are set.
    ///
    /// # Errors
    /// It is not known which they are, or /etc cannot be protected.
    pub fn adopt(&self) -> anyhow::Result<()> {
        if !self.tree.is_covered() {
            return Ok(());
        }
        let of_extensions = whole_file::read_json(&self.record)?;
        let mut wanted = self.wanted.locked();
        wanted.of_extensions = of_extensions.unwrap_or_default();
        // The machined before may have died between the record and /etc.
        wanted.not_compared = true;
        drop(wanted);
        Ok(self.tree.protect()?)
    }

    /// Makes /etc contain these files of the config, and no others of it. Blocks.
    ///
    /// # Errors
    /// The first failure; /etc is as it was.
    pub fn set_of_config(&self, files: Vec<EtcFile>) -> Result<(), EtcFilesError> {
        let mut wanted = self.wanted.locked();
        let next = Wanted {
            of_config: files,
            of_extensions: wanted.of_extensions.clone(),
            // This compares /etc, and not the record.
            not_compared: wanted.not_compared,
        };
        self.tree.apply(&next.all())?;
        *wanted = next;
        Ok(())
    }

    /// Chooses among the files that extensions offer. Changes nothing. Blocks.
    ///
    /// # Errors
    /// The image's /etc cannot be read.
    pub fn choose(&self, offers: &BTreeMap<String, Offer>) -> Result<Choice, EtcFilesError> {
        Ok(wanted::choose(&self.tree.of_image()?, offers))
    }

    /// Makes /etc contain these files of extensions, and no others of them. Blocks.
    ///
    /// # Errors
    /// The first failure, also for a file that has no place; /etc is as it was.
    pub fn set_of_extensions(&self, files: OfExtensions) -> Result<(), EtcFilesError> {
        let mut wanted = self.wanted.locked();
        if wanted.of_extensions == files && !wanted.not_compared {
            return Ok(());
        }
        let next = Wanted {
            of_config: wanted.of_config.clone(),
            of_extensions: files,
            not_compared: false,
        };
        // Before: a machined that starts again in between carries the change out.
        self.note(&next.of_extensions)?;
        if let Err(error) = self.tree.apply(&next.all()) {
            if let Err(error) = self.note(&wanted.of_extensions) {
                tracing::warn!("files of extensions: the record is ahead of /etc: {error:#}");
                wanted.not_compared = true;
            }
            return Err(error);
        }
        *wanted = next;
        Ok(())
    }

    /// Returns the files of extensions that are there, also where one of the config has taken the place of one.
    pub fn of_extensions(&self) -> OfExtensions {
        self.wanted.locked().of_extensions.clone()
    }

    fn note(&self, files: &OfExtensions) -> Result<(), EtcFilesError> {
        let noted = whole_file::replace_json(&self.record, 0o600, files);
        noted.map_err(|source| EtcFilesError::Record { source })
    }
}

impl Default for EtcFiles {
    fn default() -> Self {
        Self::at("/etc".into(), Path::new("/run/etc-files"))
    }
}
