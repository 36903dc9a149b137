//! UEFI firmware for virtual machines: OVMF of the suite that images are made from. The build machine's own package may
//! be years older, and takes twice as long to start.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use crate::{
    build::SUITE,
    debian::{self, Request},
};

/// The firmware's folder in the package.
const FOLDER: &str = "usr/share/OVMF";
/// Code without Secure Boot and with it, and the variables of a new machine.
const FILES: [&str; 3] = [
    "OVMF_CODE_4M.fd",
    "OVMF_CODE_4M.secboot.fd",
    "OVMF_VARS_4M.fd",
];

/// Inputs and output of the firmware's download.
#[derive(Clone, Debug)]
pub struct Options {
    /// The folder to write.
    pub out: PathBuf,
    /// Source of the packages.
    pub packages: debian::Source,
}

/// Puts the firmware into the folder.
///
/// # Errors
/// The package cannot be fetched, or the folder cannot be written.
pub fn fetch(options: &Options) -> Result<()> {
    let packages = debian::fetch(&options.packages, &packages())?;
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

/// The package of the firmware.
pub fn packages() -> Request<'static> {
    Request {
        suite: SUITE,
        with_dependencies: &[],
        alone: &["ovmf"],
        through: None,
        name: "firmware",
    }
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to)
        .map(drop)
        .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))
}
