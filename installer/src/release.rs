//! The description of the image in itself.

use std::path::Path;

use serde::Deserialize;

use crate::error::Error;

/// `release.json`
#[derive(Debug, Deserialize)]
pub(crate) struct Release {
    /// The version.
    pub(crate) version: String,
    /// Its root filesystem.
    pub(crate) rootfs: Expected,
    /// Its unified kernel image, which holds the root filesystem; none in an image for machines without a disk.
    pub(crate) uki: Option<Expected>,
    /// Its systemd-boot.
    pub(crate) loader: Option<Expected>,
}

/// The expected digest and size of a file.
#[derive(Debug, Deserialize)]
pub(crate) struct Expected {
    /// The digest: 64 lower-case hex digits.
    pub(crate) blake3: String,
    /// The size in bytes.
    pub(crate) bytes: u64,
}

impl Release {
    pub(crate) fn read(assets: &Path) -> Result<Self, Error> {
        let path = assets.join("release.json");
        let text = std::fs::read(&path).map_err(|source| Error::Read {
            path: path.clone(),
            source,
        })?;
        serde_json::from_slice(&text)
            .map_err(|error| Error::BadImage(format!("{}: {error}", path.display())))
    }
}
