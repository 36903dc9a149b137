//! The memory that one hostile layer takes.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;

use instar_base::error_chain::chain;

use super::test_tar::{TarBuilder, describe};
use super::tests::{ownership, tar};
use super::*;

/// A layer of as many entries as the limit allows, made while it is read. Each entry is a list of blocks.
struct Endless<F> {
    entry: F,
    next: u64,
    end: u64,
    current: Vec<u8>,
    at: usize,
}

impl<F: FnMut(u64) -> Vec<u8>> Read for Endless<F> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.at == self.current.len() {
            if self.next == self.end {
                return Ok(0);
            }
            self.current = (self.entry)(self.next);
            (self.next, self.at) = (self.next + 1, 0);
        }
        let count = buffer.len().min(self.current.len() - self.at);
        buffer[..count].copy_from_slice(&self.current[self.at..self.at + count]);
        self.at += count;
        Ok(count)
    }
}

/// A field of this process's status, in KiB.
fn status(field: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let kib = line.unwrap().trim().trim_end_matches(" kB");
    kib.parse().unwrap()
}

/// The bytes of an archive without its end mark.
fn bytes(builder: TarBuilder) -> Vec<u8> {
    let mut bytes = builder.finish();
    bytes.truncate(bytes.len() - 1024);
    bytes
}

/// Takes this many entries, each made by its number.
type Give<'a> = &'a mut dyn FnMut(u64, &(dyn Fn(u64) -> Vec<u8> + Sync));

/// Passes the entries of a hostile layer of this kind. `most` is the limit on entries.
fn give_entries(kind: &str, most: u64, give: Give<'_>) {
    let long = format!("{}/", "n".repeat(200)).repeat(20);
    match kind {
        // The same directory again and again.
        "directories" => {
            let entry = bytes(tar().pax(&[("path", long.as_bytes())]).directory("d"));
            give(most / 40, &|_| entry.clone());
        }
        // Names of the greatest length, in a directory that is then replaced by a file.
        "names" => {
            let entries = most / 20;
            give(entries, &|number| {
                let name = format!("d/{number:0>250}");
                match number + 1 {
                    last if last == entries => bytes(tar().file("d", b"")),
                    _ => bytes(tar().pax(&[("path", name.as_bytes())]).symlink("l", "x")),
                }
            });
        }
        // Extension headers of tiny records only.
        "records" => {
            let entry = bytes(tar().pax(&[("a", &b""[..]); 40_000]).directory("d"));
            give(most / 10_000, &|_| entry.clone());
        }
        // A tenth of the allowed files.
        "files" => give(most / 10, &|number| {
            bytes(tar().file(&format!("{}/{number}", number / 1000), b""))
        }),
        // Most of them are links to an existing file.
        "links" => give(most / 10, &|number| {
            let target = number - number % 1000;
            match target == number {
                true => bytes(tar().file(&format!("{number}"), b"x")),
                false => bytes(tar().hard_link(&format!("{number}"), &format!("{target}"))),
            }
        }),
        // Directories without an entry of their own: hundreds by the path of one entry.
        "depths" => {
            let depth = 250;
            give(most / 10 / depth, &|number| {
                let path = format!("{number}/{}", "d/".repeat(depth as usize - 1));
                bytes(tar().pax(&[("path", path.as_bytes())]).directory("d"))
            });
        }
        // As many names as a header has room for, and then one large value.
        "attributes" => {
            let many = [("SCHILY.xattr.other.a", &b""[..]); 10_000];
            let large = [("SCHILY.xattr.other.a", &[7; 250_000][..])];
            let entries =
                [&many[..], &large].map(|records| bytes(tar().pax(records).directory("d")));
            give(most / 10_000, &|number| {
                entries[number as usize % 2].clone()
            });
        }
        other => panic!("{other}"),
    }
}

/// Unpacks a hostile layer in a process of its own, so that the memory of other tests is not counted, and reports the memory that it took.
/// The memory of the first few entries does not grow with the layer: code, buffers, the begin of the heap. The memory of the others is
/// multiplied if only a part of the layer is measured.
#[test]
#[ignore = "one_hostile_layer_costs_little_memory runs it"]
fn a_hostile_layer() {
    let kind = std::env::var("HOSTILE_LAYER").unwrap();
    let times: u64 = std::env::var("HOSTILE_TIMES").unwrap().parse().unwrap();
    let entries = Limits::default().entries;
    let first = unpack_hostile(&kind, entries / 100);
    let rest = unpack_hostile(&kind, entries);
    println!("it took {} KiB", first + rest * times);
}

/// The growth of this process's peak memory by the layer, in KiB.
fn unpack_hostile(kind: &str, most: u64) -> u64 {
    // Tens of thousands of files take minutes on a disk, and seconds in memory.
    let in_memory = tempfile::tempdir_in("/dev/shm");
    let outer = in_memory.or_else(|_| tempfile::tempdir()).unwrap();
    let mut unpacker = Unpacker::new(outer.path(), Limits::default(), ownership()).unwrap();
    // Changes of lower layers' files take memory of their own.
    let below = tar().file("below", b"x").finish();
    unpacker
        .layer(&describe(&below, &below), &below[..])
        .unwrap();
    let before = status("VmRSS:");
    let mut give = |entries: u64, entry: &(dyn Fn(u64) -> Vec<u8> + Sync)| {
        let layer = Layer {
            digest: Digest::of(b""),
            size: u64::MAX,
            diff_id: Digest::of(b""),
        };
        let blob = Endless {
            entry,
            next: 0,
            end: entries,
            current: Vec::new(),
            at: 0,
        };
        // Its digest is wrong, which shows at its end.
        let error = unpacker.layer(&layer, blob).unwrap_err();
        assert!(
            matches!(error, UnpackError::BlobTruncated { .. }),
            "{}",
            chain(&error)
        );
    };
    give_entries(kind, most, &mut give);
    status("VmHWM:").saturating_sub(before)
}

#[test]
fn one_hostile_layer_costs_little_memory() {
    use std::process::Command;
    const MOST_KIB: u64 = 32 * 1024;
    // The measured part of a layer of the greatest size: files take time.
    let whole = |kind| (kind, 1);
    let a_tenth = |kind| (kind, 10);
    for (kind, times) in [
        whole("directories"),
        whole("names"),
        whole("records"),
        whole("attributes"),
        a_tenth("files"),
        a_tenth("links"),
        a_tenth("depths"),
    ] {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "unpack::memory_tests::a_hostile_layer"])
            .args(["--ignored", "--nocapture"])
            .env("HOSTILE_LAYER", kind)
            .env("HOSTILE_TIMES", times.to_string())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let took = said
            .split_once("it took ")
            .and_then(|(_, rest)| rest.split_once(" KiB"))
            .unwrap_or_else(|| panic!("{kind}: {said}{}", String::from_utf8_lossy(&output.stderr)));
        let took: u64 = took.0.parse().unwrap();
        println!("{kind}: {took} KiB");
        assert!(took <= MOST_KIB, "{kind}: {took} KiB");
    }
}
