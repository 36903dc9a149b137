//! A tiny image around one static program.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

use crate::{
    oci::layout::{Compression, Image, Layer},
    tree::Tree,
};

/// Returns an image with `program` at the absolute path `entrypoint`, and an empty `/tmp`.
///
/// # Errors
/// The path is not absolute and plain.
pub fn around(
    program: &[u8],
    entrypoint: &str,
    arguments: Vec<String>,
    labels: BTreeMap<String, String>,
) -> Result<Image> {
    let path = entrypoint
        .strip_prefix('/')
        .with_context(|| format!("the entry point {entrypoint:?} must be an absolute path"))?;
    let mut tree = Tree::new();
    tree.file(path, 0o755, program)?;
    tree.directory_with_mode("tmp", 0o1777)?;
    Ok(Image {
        layers: vec![Layer {
            tree,
            compression: Compression::Gzip,
        }],
        entrypoint: vec![entrypoint.to_owned()],
        command: arguments,
        environment: vec![
            "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".into(),
        ],
        labels,
        ..Image::default()
    })
}
