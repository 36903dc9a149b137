//! UEFI firmware for virtual machines: OVMF of the suite that images are made from. A machine's own package may be years older,
//! and takes twice as long to start.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use crate::{
    build::SUITE,
    debian::{self, Mirror, Request},
};

/// In the package.
const FOLDER: &str = "usr/share/OVMF";
/// Code without Secure Boot and with it, and the variables of a new machine.
const FILES: [&str; 3] = [
    "OVMF_CODE_4M.fd",
    "OVMF_CODE_4M.secboot.fd",
    "OVMF_VARS_4M.fd",
];

/// Where to put it and what from.
#[derive(Clone, Debug)]
pub struct Options {
    /// The folder to write.
    pub out: PathBuf,
    /// Where packages are kept between builds.
    pub cache: PathBuf,
    /// The archive to take packages from, else the one that this machine's apt uses.
    pub mirror: Option<Mirror>,
    /// Take the newest version instead of that of the last build.
    pub refresh: bool,
}

/// Puts the firmware into the folder.
///
/// # Errors
/// The package cannot be fetched, or the folder cannot be written.
pub fn fetch(options: &Options) -> Result<()> {
    let request = Request {
        suite: SUITE,
        with_dependencies: &[],
        alone: &["ovmf"],
        through: None,
        name: "firmware",
    };
    let packages = debian::fetch(
        &options.cache.join("debian"),
        &request,
        options.refresh,
        || Mirror::chosen(options.mirror.as_ref()),
    )?;
    let package = packages
        .first()
        .context("the package ovmf was not fetched")?;
    fs::create_dir_all(&options.out)
        .with_context(|| format!("cannot create {}", options.out.display()))?;
    for name in FILES {
        copy(
            &package.root.join(FOLDER).join(name),
            &options.out.join(name),
        )?;
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to)
        .map(drop)
        .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))
}
