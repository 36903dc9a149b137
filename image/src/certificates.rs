//! The bundle of certificate authorities, as update-ca-certificates(8) would write it.

use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};

use crate::{debian::Fetched, programs::Programs, tree::Tree};

/// The package of the authorities.
pub const PACKAGE: &str = "ca-certificates";
/// The place of the bundle in a root filesystem.
const BUNDLE: &str = "etc/ssl/certs/ca-certificates.crt";

/// Adds the bundle to a tree.
///
/// # Errors
/// The package is not among these, or has no certificates.
pub(crate) fn add(
    tree: &mut Tree,
    programs: &mut Programs<'_>,
    packages: &[Fetched],
) -> Result<()> {
    // Read as one of its files, so that the list of contents has the package.
    programs
        .read(
            PACKAGE,
            "usr/share/ca-certificates/mozilla/ISRG_Root_X1.crt",
        )
        .context("ca-certificates has changed")?;
    let fetched = packages
        .iter()
        .find(|fetched| fetched.package.name == PACKAGE);
    let fetched = fetched.context("the package ca-certificates was not fetched")?;
    tree.file(BUNDLE, 0o644, bundle(&fetched.root)?.into_bytes())
}

/// Returns all certificates of the package `ca-certificates`, unpacked at `root`, in one text.
///
/// # Errors
/// The package has no certificates, or one cannot be read.
pub fn bundle(root: &Path) -> Result<String> {
    let folder = root.join("usr/share/ca-certificates/mozilla");
    let entries =
        fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut files = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<Vec<_>, _>>()?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "crt"));
    files.sort();
    ensure!(
        !files.is_empty(),
        "there are no certificates in {}",
        folder.display()
    );
    let mut bundle = String::new();
    for file in files {
        let text =
            fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        ensure!(
            text.contains("-----BEGIN CERTIFICATE-----"),
            "{} is not a certificate in PEM",
            file.display()
        );
        bundle.push_str(text.trim_end());
        bundle.push('\n');
    }
    Ok(bundle)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn certificates_are_sorted_and_separated() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("usr/share/ca-certificates/mozilla");
        fs::create_dir_all(&folder).unwrap();
        bundle(root.path()).unwrap_err();
        fs::write(folder.join("b.crt"), "-----BEGIN CERTIFICATE-----\nb\n").unwrap();
        fs::write(folder.join("a.crt"), "-----BEGIN CERTIFICATE-----\na").unwrap();
        fs::write(folder.join("README"), "no").unwrap();
        assert_eq!(
            bundle(root.path()).unwrap(),
            "-----BEGIN CERTIFICATE-----\na\n-----BEGIN CERTIFICATE-----\nb\n"
        );
        fs::write(folder.join("c.crt"), "empty").unwrap();
        bundle(root.path()).unwrap_err();
    }
}
