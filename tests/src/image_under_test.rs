//! The results of `make image`: a folder per version.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::initramfs::Initramfs;
use crate::workspace::target_directory;

/// The files of one version.
#[derive(Debug, Clone)]
pub struct ImageUnderTest {
    version: &'static str,
    folder: PathBuf,
}

impl ImageUnderTest {
    /// The version that nodes boot first.
    pub fn first() -> Result<Self> {
        Self::of(&target_directory(), "v0.1.0")
    }

    /// The version that nodes are upgraded to.
    pub fn second() -> Result<Self> {
        Self::of(&target_directory(), "v0.2.0")
    }

    /// The first version, with the kernel that has all drivers.
    pub fn for_servers() -> Result<Self> {
        Self::in_folder(target_directory().join("image/for-servers"), "v0.1.0")
    }

    /// The image of `make code-order`.
    pub fn for_code_order() -> Result<Self> {
        Self::in_folder(target_directory().join("image/code-order"), "v0.1.0")
    }

    fn of(target: &Path, version: &'static str) -> Result<Self> {
        Self::in_folder(target.join("image").join(version), version)
    }

    fn in_folder(folder: PathBuf, version: &'static str) -> Result<Self> {
        let image = Self { version, folder };
        for file in [
            image.kernel(),
            image.initramfs(),
            image.installer(),
            image.iso(),
        ] {
            if !file.exists() {
                bail!("{} is not there: run `make image`", file.display());
            }
        }
        Ok(image)
    }

    /// `v0.1.0`
    pub fn version(&self) -> &'static str {
        self.version
    }

    /// The UKI with another root filesystem of the same size, which init expects.
    pub fn uki_with(&self, rootfs: &[u8]) -> Result<Vec<u8>> {
        let mut uki = std::fs::read(self.uki())?;
        let own = std::fs::read(self.rootfs())?;
        let place = |within: &[u8], what: &[u8]| {
            let (first, rest) = what.split_at(64.min(what.len()));
            within
                .windows(first.len())
                .enumerate()
                .filter(|(_, window)| *window == first)
                .map(|(at, _)| at)
                .find(|at| within[at + first.len()..].starts_with(rest))
        };
        let at = place(&uki, &own).context("the root filesystem is not in the UKI")?;
        uki[at..at + own.len()].copy_from_slice(rootfs);
        let (old, new) = (blake3::hash(&own).to_hex(), blake3::hash(rootfs).to_hex());
        let at = place(&uki, old.as_bytes()).context("its digest is not in the UKI")?;
        uki[at..at + old.len()].copy_from_slice(new.as_bytes());
        Ok(uki)
    }

    /// The initramfs with another root filesystem.
    pub fn initramfs_with(&self, rootfs: &[u8]) -> Result<Vec<u8>> {
        let mut archive = std::fs::read(self.base()).context("cannot read base.cpio")?;
        let digest = format!("{}\n", blake3::hash(rootfs).to_hex());
        let generation = Initramfs::default()
            .file("rootfs.squashfs", rootfs)
            .file("rootfs.b3", digest.as_bytes());
        archive.extend(generation.finish());
        Ok(archive)
    }

    /// The bzImage.
    pub fn kernel(&self) -> PathBuf {
        self.folder.join("vmlinuz")
    }

    /// init, its modules and the first generation.
    pub fn initramfs(&self) -> PathBuf {
        self.folder.join("initramfs")
    }

    /// init and its modules, without a generation.
    pub fn base(&self) -> PathBuf {
        self.folder.join("base.cpio")
    }

    /// The root filesystem alone.
    pub fn rootfs(&self) -> PathBuf {
        self.folder.join("rootfs.squashfs")
    }

    /// Kernel and initramfs as one program for UEFI, signed with the test's keys.
    pub fn uki(&self) -> PathBuf {
        self.folder.join("instar.efi")
    }

    /// systemd-boot, signed as well.
    pub fn loader(&self) -> PathBuf {
        self.folder.join("systemd-bootx64.efi")
    }

    /// The disk image, byte by byte.
    pub fn disk(&self) -> PathBuf {
        self.folder.join("disk.raw")
    }

    /// The disk image as qcow2.
    pub fn disk_qcow2(&self) -> PathBuf {
        self.folder.join("disk.qcow2")
    }

    /// The ISO.
    pub fn iso(&self) -> PathBuf {
        self.folder.join("instar.iso")
    }

    /// The folder for a server for network boot.
    pub fn network_folder(&self) -> PathBuf {
        self.folder.join("pxe")
    }

    /// The folder with all of these files.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The installer image: an OCI layout.
    pub fn installer(&self) -> PathBuf {
        self.folder.join("installer")
    }
}

/// A kernel for tests that boot nothing of ours: `INSTAR_KERNEL`, else that of the image.
pub fn kernel_under_test() -> Result<PathBuf> {
    match std::env::var_os("INSTAR_KERNEL") {
        Some(path) => Ok(path.into()),
        None => Ok(ImageUnderTest::first()?.kernel()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn says_what_to_run_when_nothing_was_built() {
        let target = tempfile::tempdir().unwrap();
        let error = ImageUnderTest::of(target.path(), "v0.1.0").unwrap_err();
        assert!(
            error
                .to_string()
                .ends_with("image/v0.1.0/vmlinuz is not there: run `make image`"),
            "{error}"
        );
    }
}
