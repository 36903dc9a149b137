//! A disk with faults that QEMU's disks do not have: the write of a given number is torn, i.e. its first half is
//! written and it fails, or the disk stops answering.
//!
//! QEMU's blkdebug can fail a write by its number or tear one by its place, but it can neither tear a write by its
//! number nor stop answering. So a server of our own holds the disk, by QEMU's protocol for that
//! (<https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>): the oldest handshake that is not obsolete,
//! and reads, writes and flushes one after the other. The crate `nbd` leaves the unread part of a failing write in the
//! stream, and takes it for the next request.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result};
use instar_base::lock::Lock as _;

/// The smallest piece of a write that a disk writes whole.
const SECTOR: usize = 512;
/// Limit on a request's length, larger than QEMU's.
const LONGEST: usize = 64 << 20;

const OPTION: &[u8; 8] = b"IHAVEOPT";
const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
const EXPORT_NAME: u32 = 1;
const UNSUPPORTED: u32 = (1 << 31) + 1;
/// The only handshake that is not obsolete, and without padding behind it.
const FIXED_NEWSTYLE_NO_ZEROES: u16 = 0b11;
/// The disk has flags, and supports flushes.
const HAS_FLAGS_SEND_FLUSH: u16 = 0b101;
const REQUEST: u32 = 0x2560_9513;
const REPLY: u32 = 0x6744_6698;
const READ: u16 = 0;
const WRITE: u16 = 1;
const DISCONNECT: u16 = 2;
const FLUSH: u16 = 3;

/// The disk, which serves one machine after another.
#[derive(Debug)]
pub struct ServedDisk {
    port: u16,
    trouble: Arc<Trouble>,
}

/// The disk's faults.
#[derive(Debug, Default)]
struct Trouble {
    /// Number of writes up to the torn one, that one included; 0 for no torn write.
    left: AtomicU64,
    is_silent: AtomicBool,
    /// The connection that gets no answer.
    waiting: Mutex<Option<TcpStream>>,
}

impl ServedDisk {
    /// Serves a raw disk.
    pub fn serve(disk: &Path) -> Result<Self> {
        let opened = File::options().read(true).write(true).open(disk);
        let disk = opened.with_context(|| format!("cannot open {}", disk.display()))?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot listen")?;
        let port = listener.local_addr()?.port();
        let trouble = Arc::new(Trouble::default());
        let its = trouble.clone();
        // The thread ends with the process.
        std::thread::spawn(move || {
            while let Ok((machine, _)) = listener.accept() {
                // A machine whose power is cut does not close its connection, and another one comes.
                let _ = serve(machine, &disk, &its);
            }
        });
        Ok(Self { port, trouble })
    }

    /// The disk's port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Tears the write with this number, counted from now on and from 1, and no other.
    pub fn tear(&self, number: Option<u64>) {
        let left = number.unwrap_or(0);
        self.trouble.left.store(left, Ordering::SeqCst);
    }

    /// Stops answering: every later read and write waits.
    pub fn fall_silent(&self) {
        self.trouble.is_silent.store(true, Ordering::SeqCst);
    }

    /// Fails the request that a machine waits for, and its later requests.
    pub fn unplug(&self) -> Result<()> {
        let waiting = self.trouble.waiting.locked();
        let machine = waiting.as_ref().context("nobody waits for this disk")?;
        machine.shutdown(Shutdown::Both).context("cannot hang up")
    }
}

fn serve(mut machine: TcpStream, disk: &File, trouble: &Trouble) -> io::Result<()> {
    machine.set_nodelay(true)?;
    shake_hands(&mut machine, disk.metadata()?.len())?;
    let mut content = Vec::new();
    loop {
        if u32::from_be_bytes(take(&mut machine)?) != REQUEST {
            return Err(io::Error::other("no request"));
        }
        let _flags: [u8; 2] = take(&mut machine)?;
        let kind = u16::from_be_bytes(take(&mut machine)?);
        let cookie: [u8; 8] = take(&mut machine)?;
        let offset = u64::from_be_bytes(take(&mut machine)?);
        let length = u32::from_be_bytes(take(&mut machine)?) as usize;
        if trouble.is_silent.load(Ordering::SeqCst) {
            let waiting = machine.try_clone()?;
            *trouble.waiting.locked() = Some(waiting);
            return io::copy(&mut machine, &mut io::sink()).map(drop);
        }
        if length > LONGEST {
            return Err(io::Error::other("a request that is too long"));
        }
        content.resize(
            if matches!(kind, READ | WRITE) {
                length
            } else {
                0
            },
            0,
        );
        let done = match kind {
            READ => disk.read_exact_at(&mut content, offset),
            WRITE => {
                machine.read_exact(&mut content)?;
                let written = write(disk, &content, offset, &trouble.left);
                content.clear();
                written
            }
            FLUSH => disk.sync_data(),
            DISCONNECT => return Ok(()),
            _ => Err(io::ErrorKind::Unsupported.into()),
        };
        // The protocol's error numbers are those of Linux.
        let errno = match &done {
            Ok(()) => 0,
            Err(error) => error
                .raw_os_error()
                .unwrap_or(rustix::io::Errno::IO.raw_os_error()),
        };
        let mut reply = Vec::with_capacity(16 + content.len());
        reply.extend(REPLY.to_be_bytes());
        reply.extend(errno.to_be_bytes());
        reply.extend(cookie);
        if done.is_ok() {
            reply.extend(&content);
        }
        machine.write_all(&reply)?;
    }
}

/// Writes all of the content, or half of it and returns an error.
fn write(disk: &File, content: &[u8], offset: u64, left: &AtomicU64) -> io::Result<()> {
    let counted = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
        left.checked_sub(1)
    });
    if counted != Ok(1) {
        return disk.write_all_at(content, offset);
    }
    let half = content.len() / 2 / SECTOR * SECTOR;
    disk.write_all_at(&content[..half], offset)?;
    Err(rustix::io::Errno::IO.into())
}

fn shake_hands(machine: &mut TcpStream, size: u64) -> io::Result<()> {
    machine.write_all(b"NBDMAGIC")?;
    machine.write_all(OPTION)?;
    machine.write_all(&FIXED_NEWSTYLE_NO_ZEROES.to_be_bytes())?;
    let _flags: [u8; 4] = take(machine)?;
    loop {
        if take(machine)? != *OPTION {
            return Err(io::Error::other("no option"));
        }
        let option = u32::from_be_bytes(take(machine)?);
        let length = u32::from_be_bytes(take(machine)?);
        io::copy(&mut machine.take(length.into()), &mut io::sink())?;
        let mut reply = Vec::new();
        if option == EXPORT_NAME {
            reply.extend(size.to_be_bytes());
            reply.extend(HAS_FLAGS_SEND_FLUSH.to_be_bytes());
            return machine.write_all(&reply);
        }
        reply.extend(OPTION_REPLY.to_be_bytes());
        reply.extend(option.to_be_bytes());
        reply.extend(UNSUPPORTED.to_be_bytes());
        reply.extend(0u32.to_be_bytes());
        machine.write_all(&reply)?;
    }
}

fn take<const LENGTH: usize>(machine: &mut TcpStream) -> io::Result<[u8; LENGTH]> {
    let mut bytes = [0; LENGTH];
    machine.read_exact(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::process::Command;

    use super::*;

    #[test]
    fn the_write_of_that_number_is_half_there_and_fails() {
        let folder = tempfile::tempdir().unwrap();
        let disk = folder.path().join("disk.img");
        std::fs::write(&disk, vec![0; 1 << 20]).unwrap();
        let served = ServedDisk::serve(&disk).unwrap();
        served.tear(Some(2));
        let said = Command::new("qemu-io")
            .args(["-f", "raw", "-t", "none"])
            .args(["-c", "write -P 1 0 8192", "-c", "write -P 2 0 8192"])
            .args(["-c", "write -P 3 65536 512", "-c", "flush"])
            .args(["-c", "read -P 2 0 4096", "-c", "read -P 1 4096 4096"])
            .arg(format!("nbd://127.0.0.1:{}", served.port()))
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&said.stdout).into_owned()
            + &String::from_utf8_lossy(&said.stderr);
        assert_eq!(
            text.matches("write failed: Input/output error").count(),
            1,
            "{text}"
        );
        assert!(!text.contains("Pattern verification failed"), "{text}");
        let bytes = std::fs::read(&disk).unwrap();
        assert_eq!((bytes[4095], bytes[4096], bytes[65536]), (2, 1, 3));
    }
}
