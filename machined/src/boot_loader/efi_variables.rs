//! EFI variables: each is a file in efivarfs, with four bytes of attributes and then the content.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use instar_esp::EntryName;
use instar_esp::boot_order::{ATTRIBUTES, VENDOR};
use uuid::Uuid;

use crate::base::mount_table::is_mounted;
use crate::mounts::filesystem::{Filesystem, MountFlags};

/// Mount point of efivarfs.
const FOLDER: &str = "/sys/firmware/efi/efivars";
/// GUID of the boot loader's variables (systemd's Boot Loader Interface).
const LOADER: &str = "4a67b082-0a4c-41cf-b6c7-440b29bb8c4f";

/// Why EFI variables could not be read or written.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum EfiError {
    #[error("cannot mount efivarfs at {FOLDER}")]
    Mount(#[source] io::Error),
    #[error("cannot list the EFI variables in {FOLDER}")]
    List(#[source] io::Error),
    #[error("cannot write the EFI variable {name}")]
    Write { name: String, source: io::Error },
}

/// Returns whether the firmware is a UEFI.
pub fn is_uefi() -> bool {
    Path::new("/sys/firmware/efi").exists()
}

/// Mounts efivarfs. The module efivarfs must be loaded.
pub(super) fn mount() -> Result<(), EfiError> {
    let folder = Path::new(FOLDER);
    if is_mounted(folder) {
        return Ok(());
    }
    let variables = Filesystem {
        kind: "efivarfs",
        source: Path::new("efivarfs"),
        flags: MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC,
        options: "",
    };
    variables.mount(folder).map_err(EfiError::Mount)
}

/// Returns the partition that the loader was started from; none without a loader that reports it.
pub(super) fn loader_partition() -> Result<Option<Uuid>, EfiError> {
    partition("LoaderDevicePartUUID")
}

/// Returns the partition of the started UKI, as the stub in it reports; none if the kernel did not come as a UKI, or not from a
/// disk.
pub(super) fn uki_partition() -> Result<Option<Uuid>, EfiError> {
    partition("StubDevicePartUUID")
}

fn partition(variable: &str) -> Result<Option<Uuid>, EfiError> {
    mount()?;
    let content = read(variable, LOADER);
    Ok(content.and_then(|content| utf16(&content)?.parse().ok()))
}

/// Returns the boot entry that the loader started, with its tries if the loader counts them; none if the entry is not one of ours.
pub(super) fn selected_entry() -> Result<Option<EntryName>, EfiError> {
    mount()?;
    let text = |name| utf16(&read(name, LOADER)?);
    let selected = text("LoaderEntrySelected");
    let counted = text("LoaderBootCountPath");
    Ok(entry_of(selected.as_deref(), counted.as_deref()))
}

/// Returns the entry of the loader's last start. Each start writes `LoaderEntrySelected`, without the counter.
/// `LoaderBootCountPath` has the counter after that start, but is only written if there is a counter. When the firmware refuses
/// the loader's choice and starts the loader again, `LoaderBootCountPath` may still name the refused entry.
fn entry_of(selected: Option<&str>, counted: Option<&str>) -> Option<EntryName> {
    let selected: EntryName = selected?.parse().ok()?;
    let counted = counted
        .and_then(entry_at)
        .filter(|counted| counted.blessed() == selected.blessed());
    Some(counted.unwrap_or(selected))
}

/// Returns the path of the loader on its partition, as the firmware reports it; none if it does not.
pub(super) fn loader_path() -> Result<Option<String>, EfiError> {
    mount()?;
    let content = read("LoaderImageIdentifier", LOADER);
    Ok(content.and_then(|content| utf16(&content)))
}

/// Parses the entry in a path as the loader writes it, with backslashes.
fn entry_at(path: &str) -> Option<EntryName> {
    path.rsplit(['\\', '/']).next()?.parse().ok()
}

/// Reads a variable's content; none if the variable does not exist, or cannot be read.
pub(super) fn read(name: &str, vendor: &str) -> Option<Vec<u8>> {
    try_read(name, vendor).ok()
}

/// Reads a variable's content, for callers to whom one that cannot be read is not one that does not exist.
pub(super) fn try_read(name: &str, vendor: &str) -> io::Result<Vec<u8>> {
    let bytes = fs::read(path(name, vendor))?;
    let content = bytes.get(4..).map(<[u8]>::to_vec);
    content.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Contents of variables, by name.
pub(super) type BootVariables = BTreeMap<String, Vec<u8>>;

/// Reads the firmware's variables that control booting.
pub(super) fn all_boot() -> Result<BootVariables, EfiError> {
    mount()?;
    let mut found = BootVariables::new();
    for entry in fs::read_dir(FOLDER).map_err(EfiError::List)? {
        let entry = entry.map_err(EfiError::List)?;
        let file = entry.file_name().to_string_lossy().into_owned();
        if let Some(name) = file.strip_suffix(&format!("-{VENDOR}"))
            && name.starts_with("Boot")
            && let Some(content) = read(name, VENDOR)
        {
            found.insert(name.to_owned(), content);
        }
    }
    Ok(found)
}

/// Writes one of the firmware's variables, in a single write(2), as efivarfs requires.
pub(super) fn write(name: &str, content: &[u8]) -> Result<(), EfiError> {
    fs::write(
        path(name, VENDOR),
        [&ATTRIBUTES.to_le_bytes(), content].concat(),
    )
    .map_err(|source| EfiError::Write {
        name: name.to_owned(),
        source,
    })
}

/// Removes one of the firmware's variables.
pub(super) fn remove(name: &str) -> Result<(), EfiError> {
    fs::remove_file(path(name, VENDOR)).map_err(|source| EfiError::Write {
        name: name.to_owned(),
        source,
    })
}

fn path(name: &str, vendor: &str) -> PathBuf {
    Path::new(FOLDER).join(format!("{name}-{vendor}"))
}

/// Decodes UTF-16, little endian, up to its NUL.
fn utf16(bytes: &[u8]) -> Option<String> {
    let units = bytes
        .chunks_exact(2)
        .map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
    let units: Vec<u16> = units.take_while(|unit| *unit != 0).collect();
    String::from_utf16(&units).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_ends_at_its_nul() {
        let bytes: Vec<u8> = "instar-1-v0.1.0.conf\0rest"
            .encode_utf16()
            .flat_map(u16::to_le_bytes)
            .collect();
        assert_eq!(utf16(&bytes).as_deref(), Some("instar-1-v0.1.0.conf"));
    }

    #[test]
    fn a_counter_of_an_earlier_start_is_ignored() {
        let entry = |selected, counted| entry_of(Some(selected), Some(counted));
        let name = |text: &str| text.parse().ok();
        let refused = "\\loader\\entries\\instar-2-v0.2.0+0-3.conf";
        assert_eq!(
            entry("instar-1-v0.1.0.conf", refused),
            name("instar-1-v0.1.0.conf")
        );
        assert_eq!(
            entry("instar-2-v0.2.0.conf", refused),
            name("instar-2-v0.2.0+0-3.conf")
        );
        assert_eq!(
            entry_of(Some("instar-1-v0.1.0.conf"), None),
            name("instar-1-v0.1.0.conf")
        );
        assert_eq!(entry_of(None, Some(refused)), None);
        assert_eq!(entry("arch.conf", refused), None);
    }

    #[test]
    fn an_entry_that_is_counted_is_known_with_its_tries() {
        let entry = entry_at("\\loader\\entries\\instar-7-v0.2.0+2-1.conf");
        let tries = entry.and_then(|entry| entry.tries);
        assert_eq!(tries.map(|tries| (tries.left, tries.done)), Some((2, 1)));
        assert_eq!(entry_at("\\EFI\\Linux\\arch+3.efi"), None);
    }
}
