//! The EFI system partition of a disk image, read as a loader reads it and changed by mtools: no root, no mount.

use std::fs::File;
use std::io::{self, Cursor, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result};
use instar_esp::{
    DEFAULT_SLOTS, Entry, FileDigest, NewVersion, State, Tries, Volume, add, perform,
};
use instar_power_cuts::FatVolume;

/// Offset of the partition in disk images, bytes.
const OFFSET: u64 = 1 << 20;

/// A partition inside a file.
#[derive(Debug)]
pub struct EspImage {
    disk: PathBuf,
}

impl EspImage {
    /// The EFI system partition of a raw disk image.
    pub fn of_disk(image: &Path) -> Self {
        Self {
            disk: image.to_owned(),
        }
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let partition = format!("{}@@{OFFSET}", self.disk.display());
        command.args(["-i", &partition]).env("LC_ALL", "C.UTF-8");
        command
    }

    /// Reads the present files: a machine may be changing them.
    fn files(&self) -> io::Result<FatVolume<Partition>> {
        FatVolume::open(Partition {
            disk: File::open(&self.disk)?,
            position: 0,
        })
    }

    /// Changes a file in place, which no plan does, but a failing disk or an attacker.
    pub fn overwrite(&mut self, path: &str, content: &[u8]) -> io::Result<()> {
        self.remove(path)?;
        self.create(path, &mut Cursor::new(content))
    }

    /// Changes one bit in the middle of a file, as a disk does whose content rots.
    pub fn rot(&mut self, path: &str) -> io::Result<()> {
        let mut content = self.read(path)?;
        let middle = content.len() / 2;
        content[middle] ^= 1;
        self.overwrite(path, &content)
    }

    /// Adds a UKI as v0.2.0 beside the present version, with the last of its tries left.
    pub fn add_with_one_try(&mut self, uki: &[u8]) -> Result<()> {
        let new = NewVersion {
            version: "v0.2.0".parse()?,
            uki: FileDigest::of(uki),
        };
        let plan = add(&State::read(self)?, &new, None, DEFAULT_SLOTS)?;
        perform(&plan, self, |_| {
            Ok(Box::new(Cursor::new(uki.to_vec())) as Box<dyn Read>)
        })?;
        let state = State::read(self)?;
        let entry = state.next_boot().context("no entry")?;
        let mut last = Entry {
            name: entry.name.clone(),
            ..entry.clone()
        };
        last.name.tries = Some(Tries { left: 1, done: 2 });
        self.remove(&entry.name.path())?;
        self.create(&last.name.path(), &mut Cursor::new(last.text()))?;
        Ok(())
    }
}

fn ended(output: Output) -> io::Result<Vec<u8>> {
    if output.status.success() {
        return Ok(output.stdout);
    }
    let complaint = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(io::Error::other(complaint))
}

fn inside(path: &str) -> String {
    format!("::/{path}")
}

impl Volume for EspImage {
    fn list(&self, folder: &str) -> io::Result<Vec<(String, u64)>> {
        self.files()?.list(folder)
    }

    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        self.files()?.read(path)
    }

    fn read_back(&self, path: &str) -> io::Result<Box<dyn Read + '_>> {
        Ok(Box::new(Cursor::new(self.read(path)?)))
    }

    /// No limit here: mtools report a full partition when they write.
    fn free_bytes(&self) -> io::Result<u64> {
        Ok(u64::from(u32::MAX))
    }

    fn make_folder(&mut self, path: &str) -> io::Result<()> {
        ended(self.command("mmd").arg(inside(path)).output()?).map(drop)
    }

    fn create(&mut self, path: &str, content: &mut dyn Read) -> io::Result<()> {
        let mut bytes = Vec::new();
        content.read_to_end(&mut bytes)?;
        let mut copy = self
            .command("mcopy")
            // Without questions: a file that exists is an error.
            .args(["-D", "s", "-", &inside(path)])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        if let Some(mut pipe) = copy.stdin.take() {
            pipe.write_all(&bytes)?;
        }
        ended(copy.wait_with_output()?).map(drop)
    }

    fn sync_file(&mut self, _path: &str) -> io::Result<()> {
        Ok(())
    }

    fn sync_folder(&mut self, _path: &str) -> io::Result<()> {
        Ok(())
    }

    fn remove(&mut self, path: &str) -> io::Result<()> {
        ended(self.command("mdel").arg(inside(path)).output()?).map(drop)
    }

    fn replace(&mut self, from: &str, to: &str) -> io::Result<()> {
        let content = self.read(from)?;
        self.overwrite(to, &content)?;
        self.remove(from)
    }
}

/// The disk from the partition's start on, read-only.
struct Partition {
    disk: File,
    position: u64,
}

impl Read for Partition {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let count = self.disk.read_at(out, OFFSET + self.position)?;
        self.position += count as u64;
        Ok(count)
    }
}

impl Seek for Partition {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let target = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::Current(delta) => self.position.checked_add_signed(delta),
            // The partition's first sector has its size; no caller seeks from the end.
            SeekFrom::End(_) => None,
        };
        self.position = target.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.position)
    }
}
