//! The media for drives and servers: disk image, ISO, and a folder for network boot, all around one UKI.
//!
//! Needs no root: partitions are made with mtools, tables here, the ISO by xorriso. The same inputs give the same
//! bytes.

mod command;
mod description;
mod disk;
mod fat;
mod grub;
mod iso;
mod network;
mod new_esp;

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use instar_esp::{FileDigest, NewSystem, NewVersion};
use serde::Deserialize;

use crate::{
    boot::keys,
    build::{LOADER_FILE, SUITE, UKI_FILE},
    debian::{self, Fetched, Request},
    digest::Blake3,
    sbom,
    version::Version,
};

/// The disk image, byte by byte.
pub const DISK_FILE: &str = "disk.raw";
/// The disk image as qcow2, without its empty parts.
pub const DISK_QCOW2_FILE: &str = "disk.qcow2";
/// The ISO.
pub const ISO_FILE: &str = "instar.iso";
/// The media's content beside the image, as an SPDX document.
pub const SBOM_FILE: &str = "media.spdx.json";
/// The folder for network boot.
pub const NETWORK_FOLDER: &str = "pxe";

/// GRUB starts the ISO where there is no UEFI, iPXE is for the network.
const PACKAGES: [&str; 2] = ["grub-pc-bin", "ipxe"];

/// The inputs of the media.
#[derive(Clone, Debug)]
pub struct Options {
    /// The folder of a build; the media are put there too.
    pub folder: PathBuf,
    /// A folder with `PK.auth`, `KEK.auth` and `db.auth` that the loader enrols on a machine in setup mode.
    pub enrol: Option<PathBuf>,
    /// Enrols the keys on real machines as well, not only on virtual ones.
    pub enrol_everywhere: bool,
    /// Size of the disk image's EFI system partition, bytes.
    pub esp_bytes: u64,
    /// Source of the packages.
    pub packages: debian::Source,
}

/// The parts that all media share.
struct Parts {
    system: NewSystem,
    uki: Vec<u8>,
    loader: Vec<u8>,
    description: Vec<u8>,
}

/// Makes the media. Returns the files and their sizes in bytes.
///
/// # Errors
/// A file of the build, a package or a tool is missing, or the folder cannot be written.
pub fn build(options: &Options) -> Result<Vec<(PathBuf, u64)>> {
    let folder = &options.folder;
    let parts = Parts::read(options)?;
    let packages = debian::fetch(&options.packages, &packages())?;
    let scratch = tempfile::tempdir_in(folder)
        .with_context(|| format!("cannot write to {}", folder.display()))?;

    let esp = new_esp::files(&parts.system, &parts.uki, &parts.loader, &parts.description)?;
    disk::write(&esp, options.esp_bytes, scratch.path(), folder)?;
    iso::write(&esp, &parts.uki, &packages, scratch.path(), folder)?;
    network::write(&parts.uki, &packages, folder)?;
    write_sbom(&parts, &packages, folder)?;

    let pxe = folder.join(NETWORK_FOLDER);
    let mut files: Vec<PathBuf> = [DISK_FILE, DISK_QCOW2_FILE, ISO_FILE, SBOM_FILE]
        .map(|name| folder.join(name))
        .into();
    for entry in fs::read_dir(&pxe).with_context(|| format!("cannot list {}", pxe.display()))? {
        files.push(entry?.path());
    }
    files.sort();
    files
        .into_iter()
        .map(|file| {
            let bytes = fs::metadata(&file)
                .with_context(|| format!("cannot find {}", file.display()))?
                .len();
            Ok((file, bytes))
        })
        .collect()
}

/// The image's SBOM lists systemd-boot already, and the tools that make media leave nothing of their own in them.
fn write_sbom(parts: &Parts, packages: &[Fetched], folder: &Path) -> Result<()> {
    let used: Vec<&Fetched> = packages
        .iter()
        .filter(|fetched| PACKAGES.contains(&fetched.package.name.as_str()))
        .collect();
    let version = &parts.system.version;
    let document = sbom::of_media(&version.version, Blake3::of(&parts.uki), &used);
    fs::write(
        folder.join(SBOM_FILE),
        serde_json::to_vec_pretty(&document)?,
    )
    .with_context(|| format!("cannot write {SBOM_FILE}"))
}

impl Parts {
    fn read(options: &Options) -> Result<Self> {
        #[derive(Deserialize)]
        struct Manifest {
            version: String,
        }
        let manifest = read(&options.folder, "manifest.json")?;
        let manifest: Manifest = serde_json::from_slice(&manifest)
            .with_context(|| format!("cannot read the manifest in {}", options.folder.display()))?;
        let version: Version = manifest.version.parse()?;
        let (uki, loader) = (
            read(&options.folder, UKI_FILE)?,
            read(&options.folder, LOADER_FILE)?,
        );
        let keys = match &options.enrol {
            Some(folder) => keys::signed_variables(folder)?,
            None => Vec::new(),
        };
        let of_uki = FileDigest::of(&uki);
        Ok(Self {
            description: description::of_build(&options.folder, &of_uki)?,
            system: NewSystem {
                version: NewVersion {
                    version,
                    uki: of_uki,
                },
                loader: FileDigest::of(&loader),
                keys,
                enrol_everywhere: options.enrol_everywhere,
            },
            uki,
            loader,
        })
    }
}

fn read(folder: &Path, name: &str) -> Result<Vec<u8>> {
    let path = folder.join(name);
    fs::read(&path).with_context(|| format!("cannot read {}: image build makes it", path.display()))
}

/// Returns the packages for the media, and the tool that makes GRUB.
pub fn packages() -> Request<'static> {
    Request {
        suite: SUITE,
        with_dependencies: &["grub-common"],
        alone: &PACKAGES,
        through: None,
        name: "media",
    }
}
