//! Writes support data onto a stick that asks for them by a directory, if the config allows it.
//!
//! ```text
//! <stick>/instar-support/                                        made by a person: it asks for the data
//! <stick>/instar-support/<host name>-<first digits of the kernel's boot id>.tar.gz     one for each boot of a machine, the newest
//! ```

use std::fs::{self, File, Metadata};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, bail};
use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::future::BoxFuture;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::medium::{Access, mount};
use super::{Report, rules};
use crate::base::blocking_io;
use crate::base::byte_size::human_short;
use crate::bundles::{Stick, Support};
use crate::machine::Machine;

/// The directory on a stick that asks for support data.
const DIRECTORY: &str = "instar-support";
/// Limit on the size of the file: a stick may have little room, and nobody waits for an hour.
const LARGEST: u64 = 64 << 20;
/// Number of parts that wait for the stick.
const AHEAD: usize = 1;
/// Data of this boot that are younger are not written anew: the stick is looked at again because the machine changed its version.
const RECENT: Duration = Duration::from_secs(600);
/// Only its owner reads the file, where the filesystem knows owners.
const MODE: u32 = 0o600;

/// One file of the support data.
#[derive(Debug)]
pub struct SupportPart {
    /// Its path in the archive.
    pub name: String,
    /// Its content.
    pub content: Vec<u8>,
}

/// Collects the support data of a machine, part by part.
pub type CollectSupport = fn(Arc<Machine>, mpsc::Sender<SupportPart>) -> BoxFuture<'static, ()>;

/// Whether a stick asks for support data. `root`: its top directory.
pub(super) fn is_asked_for(root: &Path) -> bool {
    let found = fs::symlink_metadata(root.join(DIRECTORY));
    found.is_ok_and(|found| found.is_dir())
}

/// Writes the support data onto a stick that asks for them, and reports how that ends.
pub(super) async fn write(
    machine: &Arc<Machine>,
    stick: &Stick,
    collect: CollectSupport,
    report: &Report,
) {
    if !rules(machine).support {
        let reason = "this machine's config does not allow it (`support: true` of BundleConfig)";
        return report.support(Support::Failed(reason.to_owned()));
    }
    report.support(Support::Writing);
    let written = timeout(blocking_io::ANSWER, write_file(machine, stick, collect));
    report.support(match written.await {
        Ok(Ok((file, bytes))) => Support::Written { file, bytes },
        Ok(Err(error)) => Support::Failed(format!("{error:#}")),
        Err(_) => Support::Failed("the stick is too slow".to_owned()),
    });
}

async fn write_file(
    machine: &Arc<Machine>,
    stick: &Stick,
    collect: CollectSupport,
) -> anyhow::Result<(String, u64)> {
    let boot = machine.generation.kernel_boot_id.to_string();
    let boot = boot.get(..8).unwrap_or(&boot);
    let name = format!("{}-{boot}.tar.gz", machine.hostname());
    let (sender, receiver) = mpsc::channel(AHEAD);
    let stick = stick.clone();
    let path = format!("{DIRECTORY}/{name}");
    let writing = blocking_io::to_its_end(move || {
        let mount = mount(&stick, Access::Write)?;
        let directory = mount.path().join(DIRECTORY);
        let written = archive(&directory, &name, receiver);
        // Dropping the mount detaches it; what was written is on the stick before.
        let synced = File::open(mount.path()).and_then(|root| Ok(rustix::fs::syncfs(root)?));
        let bytes = written?;
        synced.context("write the stick's filesystem")?;
        anyhow::Ok(bytes)
    });
    let (written, ()) = tokio::join!(writing, collect(machine.clone(), sender));
    Ok((path, written??))
}

/// Writes the archive under another name first: a file with the right name is whole. Returns its size.
fn archive(
    directory: &Path,
    name: &str,
    mut parts: mpsc::Receiver<SupportPart>,
) -> anyhow::Result<u64> {
    let path = directory.join(name);
    // Older ones say nothing of the trouble for which the stick was plugged in again. They stay until the new ones are whole.
    if let Ok(there) = fs::symlink_metadata(&path)
        && is_recent(&there)
    {
        return Ok(there.len());
    }
    let partial = directory.join(format!("{name}.part"));
    // What is left of a stick that was pulled out too early.
    if fs::symlink_metadata(&partial).is_ok() {
        fs::remove_file(&partial).context("remove an unfinished file")?;
    }
    let mut options = File::options();
    let file = options.write(true).create_new(true).mode(MODE);
    let file = file.open(&partial).context("make the file on the stick")?;
    let written = fill(file, &mut parts);
    if written.is_err() {
        // It may be all that the stick has room for.
        let _ = fs::remove_file(&partial);
    }
    let bytes = written?;
    fs::rename(&partial, &path).context("name the file on the stick")?;
    Ok(bytes)
}

/// Whether a file was written a short time ago. One from the future was written before the clock was set.
fn is_recent(file: &Metadata) -> bool {
    let written = file.modified().ok();
    let age = written.and_then(|written| SystemTime::now().duration_since(written).ok());
    age.is_some_and(|age| age < RECENT)
}

fn fill(file: File, parts: &mut mpsc::Receiver<SupportPart>) -> anyhow::Result<u64> {
    let limited = Limited { file, written: 0 };
    let mut archive = tar::Builder::new(GzEncoder::new(limited, Compression::default()));
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    while let Some(part) = parts.blocking_recv() {
        let mut header = tar::Header::new_gnu();
        header.set_size(part.content.len() as u64);
        header.set_mode(MODE);
        header.set_mtime(now.as_ref().map_or(0, |now| now.as_secs()));
        let added = archive.append_data(&mut header, &part.name, part.content.as_slice());
        added.context("write to the stick")?;
    }
    let limited = archive.into_inner().and_then(GzEncoder::finish);
    let limited = limited.context("write to the stick")?;
    limited.file.sync_all().context("write to the stick")?;
    if limited.written == 0 {
        bail!("nothing was collected");
    }
    Ok(limited.written)
}

/// A file that does not grow beyond the limit.
struct Limited {
    file: File,
    written: u64,
}

impl Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.written + bytes.len() as u64 > LARGEST {
            let limit = human_short(LARGEST);
            return Err(io::Error::other(format!("they have more than {limit}")));
        }
        let count = self.file.write(bytes)?;
        self.written += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn parts(all: &[(&str, usize)]) -> mpsc::Receiver<SupportPart> {
        let (sender, receiver) = mpsc::channel(all.len().max(1));
        for (name, length) in all {
            // Bytes that cannot be compressed.
            let mut state = 1_u32;
            let next = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            };
            let part = SupportPart {
                name: (*name).to_owned(),
                content: std::iter::repeat_with(next).take(*length).collect(),
            };
            sender.try_send(part).unwrap();
        }
        receiver
    }

    #[test]
    fn an_archive_is_whole_or_not_there() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        assert!(!is_asked_for(root));
        fs::create_dir(root.join(DIRECTORY)).unwrap();
        assert!(is_asked_for(root));
        fs::write(root.join("lamp.tar.gz.part"), "unfinished").unwrap();
        let two = parts(&[("kernel.log", 100), ("logs/web.log", 3)]);
        let bytes = archive(root, "lamp.tar.gz", two).unwrap();
        let file = File::open(root.join("lamp.tar.gz")).unwrap();
        assert_eq!(file.metadata().unwrap().len(), bytes);
        assert!(!root.join("lamp.tar.gz.part").exists());
        let mut read = tar::Archive::new(flate2::read::GzDecoder::new(file));
        let names = read.entries().unwrap().map(|entry| {
            let entry = entry.unwrap();
            entry.path().unwrap().display().to_string()
        });
        assert_eq!(names.collect::<Vec<_>>(), ["kernel.log", "logs/web.log"]);
        // A moment later it is left alone.
        assert_eq!(archive(root, "lamp.tar.gz", parts(&[])).unwrap(), bytes);
    }

    #[test]
    fn a_stick_that_is_plugged_in_again_later_gets_the_data_of_then() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let first = archive(root, "x", parts(&[("kernel.log", 100)])).unwrap();
        let old = SystemTime::now() - 2 * RECENT;
        let file = File::options().append(true).open(root.join("x")).unwrap();
        file.set_modified(old).unwrap();
        let second = archive(root, "x", parts(&[("kernel.log", 9000)])).unwrap();
        assert!(second > first);
        assert_eq!(root.join("x").metadata().unwrap().len(), second);
        // If they cannot be written, the old ones stay.
        let file = File::options().append(true).open(root.join("x")).unwrap();
        file.set_modified(old).unwrap();
        let large = usize::try_from(LARGEST).unwrap() + 1;
        assert!(archive(root, "x", parts(&[("large", large)])).is_err());
        assert_eq!(root.join("x").metadata().unwrap().len(), second);
        assert_eq!(fs::read_dir(root).unwrap().count(), 1);
    }

    #[test]
    fn an_archive_beyond_the_limit_is_not_left_on_the_stick() {
        let directory = tempfile::tempdir().unwrap();
        let large = usize::try_from(LARGEST).unwrap() + 1;
        let error = archive(directory.path(), "x", parts(&[("large", large)])).unwrap_err();
        assert!(
            format!("{error:#}").contains("more than 64 MiB"),
            "{error:#}"
        );
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_link_asks_for_nothing() {
        let directory = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/tmp", directory.path().join(DIRECTORY)).unwrap();
        assert!(!is_asked_for(directory.path()));
    }
}
