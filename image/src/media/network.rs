//! The folder for network boot, for a TFTP or HTTP server.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use instar_pe::Layout;

use super::NETWORK_FOLDER;
use crate::{build::UKI_FILE, debian::Fetched, programs::Programs};

/// iPXE for machines whose firmware boots from the network without iPXE in its ROM: with BIOS, and with UEFI.
const IPXE: [&str; 2] = ["undionly.kpxe", "snponly.efi"];
/// The name of the script, whose own names are relative to its URL, by any protocol.
const SCRIPT: &str = "boot.ipxe";
/// The script that iPXE for UEFI runs from its own folder.
const AUTOEXEC: &str = "#!ipxe\ndhcp\nchain boot.ipxe\n";

pub(super) fn write(uki: &[u8], packages: &[Fetched], folder: &Path) -> Result<()> {
    let out = folder.join(NETWORK_FOLDER);
    if out.exists() {
        fs::remove_dir_all(&out)
            .with_context(|| format!("cannot remove the old {}", out.display()))?;
    }
    fs::create_dir(&out).with_context(|| format!("cannot create {}", out.display()))?;
    for name in ["vmlinuz", "initramfs", UKI_FILE] {
        // A second name of the same bytes.
        fs::hard_link(folder.join(name), out.join(name))
            .with_context(|| format!("cannot link {name} into {}", out.display()))?;
    }
    let mut programs = Programs::new(packages);
    let mut files = vec![
        (SCRIPT, script(uki)?.into_bytes()),
        ("autoexec.ipxe", AUTOEXEC.into()),
    ];
    for name in IPXE {
        files.push((
            name,
            programs.read("ipxe", &format!("usr/lib/ipxe/{name}"))?,
        ));
    }
    for (name, bytes) in files {
        fs::write(out.join(name), bytes).with_context(|| format!("cannot write {name}"))?;
    }
    Ok(())
}

/// Returns iPXE's script. The arguments are the UKI's, and the variable `instar-arguments`, which another script can
/// set before it chains to this one.
fn script(uki: &[u8]) -> Result<String> {
    let layout = Layout::read(uki)?;
    let section = layout
        .section(".cmdline")
        .context("the UKI has no command line")?;
    let arguments = String::from_utf8_lossy(&uki[section.file.start..][..section.bytes]);
    Ok(format!(
        "#!ipxe\n\
         # More kernel arguments, such as instar.config=URL: `set instar-arguments ...` before chaining to this script.\n\
         kernel vmlinuz initrd=initramfs {arguments} ${{instar-arguments}}\n\
         initrd --name initramfs initramfs\n\
         boot\n"
    ))
}
