//! GRUB for machines without UEFI: one program that starts the UKI's kernel and initramfs from their places in the UKI.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use instar_pe::{Layout, Section};

use super::command::{run, tool};
use crate::{
    debian::Fetched,
    programs::Programs,
    tree::{Content, Tree},
};

/// GRUB's modules: for drives, ISO and FAT, files as disks, Linux, serial ports.
const MODULES: [&str; 12] = [
    "biosdisk",
    "iso9660",
    "fat",
    "part_gpt",
    "part_msdos",
    "loopback",
    "linux",
    "search",
    "search_fs_file",
    "serial",
    "terminal",
    "boot",
];
/// GRUB's modules in their package.
const FOLDER: &str = "usr/lib/grub/i386-pc";
const SECTOR: usize = 512;

/// GRUB in the two forms that an ISO needs.
pub(super) struct Grub {
    /// Started from CD.
    pub(super) image: Vec<u8>,
    /// The first sector of a USB stick with the ISO on it, which finds the same program there.
    pub(super) mbr: Vec<u8>,
}

/// Makes GRUB for an ISO with the partition `esp` and, in that, the UKI.
pub(super) fn make(
    packages: &[Fetched],
    esp: &str,
    uki_path: &str,
    uki: &[u8],
    scratch: &Path,
) -> Result<Grub> {
    let modules = packages
        .iter()
        .find(|fetched| fetched.package.name == "grub-pc-bin")
        .map(|fetched| fetched.root.join(FOLDER))
        .context("the package grub-pc-bin was not fetched")?;
    let config = scratch.join("grub.cfg");
    fs::write(&config, script(esp, uki_path, uki)?).context("cannot write GRUB's script")?;
    let image = scratch.join("bios.img");
    let root = unpack_mkimage(packages, scratch)?;
    let libraries = root.join("usr/lib/x86_64-linux-gnu");
    // Debian's program with Debian's libraries: this machine's C library may be older.
    let mut make = tool(&libraries.join("ld-linux-x86-64.so.2").display().to_string());
    make.arg("--library-path")
        .arg(&libraries)
        .arg(root.join("usr/bin/grub-mkimage"))
        .arg("-d")
        .arg(&modules)
        .args(["-O", "i386-pc-eltorito", "-p", "/boot", "-c"])
        .arg(&config)
        .arg("-o")
        .arg(&image)
        .args(MODULES);
    run(&mut make, "grub-common").context("cannot make GRUB for the ISO")?;
    let read =
        |path: &Path| fs::read(path).with_context(|| format!("cannot read {}", path.display()));
    Ok(Grub {
        image: read(&image)?,
        mbr: read(&modules.join("boot_hybrid.img"))?,
    })
}

/// Returns GRUB's script. A UKI holds kernel and initramfs unchanged, at multiples of a sector, and GRUB reads them
/// there.
fn script(esp: &str, uki_path: &str, uki: &[u8]) -> Result<String> {
    let layout = Layout::read(uki)?;
    let section = |name: &str| {
        layout
            .section(name)
            .with_context(|| format!("the UKI has no section {name}"))
    };
    let command_line = section(".cmdline")?;
    let arguments = &uki[command_line.file.start..][..command_line.bytes];
    let (kernel, initramfs) = (blocks(section(".linux")?), blocks(section(".initrd")?));
    let arguments = String::from_utf8_lossy(arguments);
    Ok(format!(
        "serial --unit=0 --speed=115200\n\
         terminal_output console serial\n\
         search --no-floppy --set=root --file {esp}\n\
         loopback esp {esp}\n\
         loopback uki (esp)/{uki_path}\n\
         linux (uki){kernel} {arguments}\n\
         initrd (uki){initramfs}\n\
         boot\n"
    ))
}

/// Returns a part of a disk in GRUB's notation.
fn blocks(section: &Section) -> String {
    let (start, length) = (section.file.start, section.file.len());
    format!("{}+{}", start / SECTOR, length.div_ceil(SECTOR))
}

/// Unpacks grub-mkimage with the libraries that it needs.
fn unpack_mkimage(packages: &[Fetched], scratch: &Path) -> Result<std::path::PathBuf> {
    let mut tree = Tree::new();
    Programs::new(packages).add(&mut tree, "grub-common", "usr/bin/grub-mkimage")?;
    let root = scratch.join("grub");
    for (path, node) in tree.iter() {
        let path = root.join(path);
        match &node.content {
            Content::Directory => fs::create_dir_all(&path),
            Content::File(bytes) => fs::write(&path, bytes),
            // The loader is called by its own name.
            Content::Symlink(_) | Content::CharacterDevice { .. } => Ok(()),
        }
        .with_context(|| format!("cannot write {}", path.display()))?;
    }
    let loader = root.join("usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2");
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&loader, executable).context("cannot make GRUB's maker executable")?;
    Ok(root)
}
