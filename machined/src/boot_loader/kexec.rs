//! A reboot without the firmware (kexec): loads the kernel from the UKI that would be booted next.
//!
//! The boot loader has no part in such a start. It counts no try, and its EFI variables still describe the boot before. So the kernel's
//! arguments name the boot entry: [`entry`] reads it, and all code that asks for the booted entry asks there first.

use std::ffi::{CString, NulError};
use std::fs::File;
use std::io::{self, Read, Seek as _, SeekFrom, Write as _};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use instar_esp::{Entry, EntryName};
use instar_pe::{Layout, Section};
use rustix::fs::MemfdFlags;

use super::partition::{EspError, MountedEsp};
use crate::{command_line, sys};

/// The kernel argument with the name of the boot entry that was started.
const ARGUMENT: &str = "instar.boot-entry=";
/// Limit on the length of a program's headers, in bytes.
const HEADERS: u64 = 16 << 10;

/// Why no kernel was loaded. Nothing has changed then.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum KexecError {
    #[error(transparent)]
    Esp(#[from] EspError),
    #[error("the EFI system partition has nothing to boot")]
    Nothing,
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} is not what its boot entry says: the disk is damaged", .0.display())]
    Damaged(PathBuf),
    #[error("cannot make sense of {}", path.display())]
    NotAUki {
        path: PathBuf,
        source: instar_pe::Error,
    },
    #[error("{} has no section {section}", path.display())]
    NoSection {
        path: PathBuf,
        section: &'static str,
    },
    #[error("cannot get memory for the kernel")]
    Memory(#[source] io::Error),
    #[error("the arguments of {} have a NUL in them", path.display())]
    Arguments { path: PathBuf, source: NulError },
    /// Under Secure Boot, the firmware must know the key of a signed kernel, and Debian's is not in db.
    #[error(
        "the running kernel does not take another one (under Secure Boot it takes none that its firmware does not trust)"
    )]
    Refused(#[source] io::Error),
}

/// Returns the entry that this kernel was started from by kexec; none if the loader started it.
pub(super) fn entry() -> Option<EntryName> {
    entry_in(&command_line::read().ok()?)
}

fn entry_in(arguments: &str) -> Option<EntryName> {
    let mut arguments = arguments.split_ascii_whitespace().rev();
    arguments.find_map(|argument| argument.strip_prefix(ARGUMENT)?.parse().ok())
}

/// Loads the kernel that this partition would boot next, and returns its entry.
pub fn load_next(device: &Path) -> Result<EntryName, KexecError> {
    let esp = MountedEsp::of(device)?;
    let state = esp.state()?;
    let entry = state.next_boot().ok_or(KexecError::Nothing)?;
    load(&esp.path().join(entry.slot.uki_path()), entry)?;
    Ok(entry.name.clone())
}

fn load(path: &Path, entry: &Entry) -> Result<(), KexecError> {
    let failed = |source| KexecError::Read {
        path: path.to_owned(),
        source,
    };
    let mut uki = File::open(path).map_err(failed)?;
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(&uki).map_err(failed)?;
    if hasher.finalize() != entry.uki.blake3 {
        return Err(KexecError::Damaged(path.to_owned()));
    }
    let layout = layout(&mut uki).map_err(failed)?;
    let layout = layout.map_err(|source| KexecError::NotAUki {
        path: path.to_owned(),
        source,
    })?;
    let section = |section: &'static str| {
        layout.section(section).ok_or(KexecError::NoSection {
            path: path.to_owned(),
            section,
        })
    };
    let mut arguments = String::new();
    part(&mut uki, section(".cmdline")?)
        .and_then(|mut text| text.read_to_string(&mut arguments))
        .map_err(failed)?;
    let arguments = CString::new(with_entry(&arguments, &entry.name)).map_err(|source| {
        KexecError::Arguments {
            path: path.to_owned(),
            source,
        }
    })?;
    let mut in_memory = |name| {
        let mut part = part(&mut uki, section(name)?).map_err(failed)?;
        memfd(&mut part).map_err(KexecError::Memory)
    };
    let (kernel, initramfs) = (in_memory(".linux")?, in_memory(".initrd")?);
    sys::kexec::load(kernel.as_fd(), initramfs.as_fd(), &arguments).map_err(KexecError::Refused)
}

fn layout(uki: &mut File) -> io::Result<Result<Layout, instar_pe::Error>> {
    uki.seek(SeekFrom::Start(0))?;
    let mut headers = Vec::new();
    Read::by_ref(uki).take(HEADERS).read_to_end(&mut headers)?;
    let length = usize::try_from(uki.metadata()?.len()).map_err(io::Error::other)?;
    Ok(Layout::of_headers(&headers, length))
}

fn part<'a>(uki: &'a mut File, section: &Section) -> io::Result<io::Take<&'a mut File>> {
    uki.seek(SeekFrom::Start(section.file.start as u64))?;
    Ok(uki.take(section.bytes as u64))
}

/// Copies to a file in memory that can be read but no longer written: the kernel takes no file that a process could still write to.
fn memfd(part: &mut impl Read) -> io::Result<File> {
    let memfd = rustix::fs::memfd_create("kexec", MemfdFlags::CLOEXEC)?;
    let mut written = File::from(memfd);
    io::copy(part, &mut written)?;
    written.flush()?;
    let number = std::os::fd::AsRawFd::as_raw_fd(&written);
    File::open(format!("/proc/self/fd/{number}"))
}

/// Returns the UKI's own arguments with the name of the boot entry added.
fn with_entry(arguments: &str, entry: &EntryName) -> String {
    let own = arguments.trim_end_matches(['\0', '\n', ' ']);
    format!("{own} {ARGUMENT}{entry}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_next_kernel_knows_its_entry() {
        let name: EntryName = "instar-7-v0.2.0+3.conf".parse().unwrap();
        let arguments = with_entry("console=ttyS0 panic=10\0", &name);
        assert_eq!(
            arguments,
            "console=ttyS0 panic=10 instar.boot-entry=instar-7-v0.2.0+3.conf"
        );
        assert_eq!(entry_in(&arguments), Some(name));
        assert_eq!(entry_in("console=ttyS0 instar.boot-entry=x"), None);
        assert_eq!(entry_in("console=ttyS0"), None);
    }

    #[test]
    fn what_is_loaded_cannot_be_written() {
        let mut copy = memfd(&mut &b"kernel"[..]).unwrap();
        let mut content = String::new();
        copy.read_to_string(&mut content).unwrap();
        assert_eq!(content, "kernel");
        assert!(copy.write_all(b"x").is_err());
    }
}
