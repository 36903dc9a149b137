//! The ISO: for CD drives and USB sticks, started by UEFI or BIOS. It holds one UKI, in a partition that UEFI finds; on machines
//! without UEFI, GRUB reads it there.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use instar_esp::Slot;

use super::{
    ISO_FILE,
    command::{run, tool},
    fat::{self, Kind},
    grub,
    new_esp::Files,
};
use crate::debian::Fetched;

/// The volume's label.
const LABEL: &str = "INSTAR";
const ESP: &str = "boot/efi.img";
const BIOS: &str = "boot/bios.img";
/// 1980-01-01, as in the partition.
const FILE_DATE: &str = "1980010100000000";
/// Room for the tables of the file system in the partition, bytes.
const MARGIN: u64 = 1 << 20;

pub(super) fn write(
    esp: &Files,
    uki: &[u8],
    packages: &[Fetched],
    scratch: &Path,
    folder: &Path,
) -> Result<()> {
    let root = scratch.join("iso");
    let boot = root.join("boot");
    fs::create_dir_all(&boot).with_context(|| format!("cannot create {}", boot.display()))?;
    let content: u64 = esp.files.values().map(|bytes| bytes.len() as u64).sum();
    let bytes = (content + content / 64 + MARGIN).next_multiple_of(MARGIN);
    fat::write(esp, Kind::Any, bytes, &root.join(ESP))?;

    let uki_path = Slot::FIRST.uki_path();
    let grub = grub::make(packages, &format!("/{ESP}"), &uki_path, uki, scratch)?;
    let mbr = scratch.join("mbr.img");
    for (path, bytes) in [(root.join(BIOS), &grub.image), (mbr.clone(), &grub.mbr)] {
        fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
    }

    let out = folder.join(ISO_FILE);
    let mut make = tool("xorriso");
    make.args(["-as", "mkisofs", "-quiet", "-V", LABEL, "-J", "-r"])
        // All other times, and the identity of the disk that a USB stick becomes, are from SOURCE_DATE_EPOCH.
        .args(["--set_all_file_dates", FILE_DATE])
        .args([
            "-b",
            BIOS,
            "-no-emul-boot",
            "-boot-load-size",
            "4",
            "-boot-info-table",
        ])
        .args(["--grub2-boot-info", "--grub2-mbr"])
        .arg(&mbr)
        .args(["-eltorito-alt-boot", "-e", ESP, "-no-emul-boot"])
        .args(["-efi-boot-part", "--efi-boot-image", "-o"])
        .arg(&out)
        .arg(&root);
    run(&mut make, "xorriso").with_context(|| format!("cannot make {}", out.display()))
}
