//! Whether a version on the EFI system partition would still start: its UKI is as it was written, and the firmware has not revoked it since.
//!
//! A UKI is read back when it is written. A byte of it that rots later would else be found when the version is needed, and so would a
//! revocation.
//!
//! The reading is slow on purpose: it has time, the machine has other work, and who else wants the partition waits for one UKI at most.

use std::fs::File;
use std::io::{self, Read, Seek as _, SeekFrom};
use std::ops::Range;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use instar_esp::{Entry, FileDigest, State};
use instar_pe::{Layout, pkcs7_signatures};
use rustix::fs::{Advice, fadvise};

use super::partition::{EspError, MountedEsp};
use super::secure_boot::Revocations;
use crate::values::Digest;
use crate::values::digest::Hasher;

/// Limit on the reading, in bytes a second: a UKI of 40 MiB takes 2.5 s, and a fiftieth of a core.
const RATE: u64 = 16 << 20;
/// Limit on the length of a program's headers, in bytes.
const HEADERS: u64 = 16 << 10;
/// Limit on the size of its signatures, in bytes: a certificate has one or two KiB.
const SIGNATURES: u64 = 64 << 10;
/// A program is as long as a multiple of this, in bytes, when it is signed.
const ALIGNMENT: usize = 8;

/// A version on the partition that a boot may take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptVersion {
    /// The order of its boot entry.
    pub order: u32,
    /// The version.
    pub version: String,
    /// Whether the next boot takes it.
    pub is_next: bool,
}

/// Why a version would not start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unbootable {
    /// Its UKI is not as it was written, or cannot be read.
    Damaged(String),
    /// The firmware has revoked it.
    Revoked(String),
}

/// Returns the versions that a boot may take. One that has failed all its tries is none of them.
pub fn kept_versions(device: &Path) -> Result<Vec<KeptVersion>, EspError> {
    Ok(startable(&MountedEsp::of(device)?.state()?))
}

fn startable(state: &State) -> Vec<KeptVersion> {
    let next = state.next_boot().map(|entry| entry.name.order);
    let has_failed =
        |entry: &Entry| -> bool { entry.name.tries.is_some_and(|tries| tries.exhausted()) };
    let entries = state.whole_entries().filter(|entry| !has_failed(entry));
    let mut kept: Vec<KeptVersion> = entries
        .map(|entry| KeptVersion {
            order: entry.name.order,
            version: entry.name.version.to_string(),
            is_next: next == Some(entry.name.order),
        })
        .collect();
    // A power cut in a blessing leaves two entries of one order.
    kept.dedup_by_key(|version| version.order);
    kept
}

/// Reads the UKI of the version of this order, and compares it with its boot entry and with the firmware's revocations, if there are any. Returns
/// none if it would start, or is gone.
///
/// # Errors
/// The partition cannot be read.
pub fn check_version(
    device: &Path,
    order: u32,
    revocations: Option<&Revocations>,
) -> Result<Option<Unbootable>, EspError> {
    let esp = MountedEsp::of(device)?;
    let state = esp.state()?;
    let entry = state.of_order(order);
    Ok(entry.and_then(|entry| check(esp.path(), entry, revocations)))
}

fn check(root: &Path, entry: &Entry, revocations: Option<&Revocations>) -> Option<Unbootable> {
    let uki = File::open(root.join(entry.slot.uki_path()));
    let examined = uki.and_then(|uki| examine(uki, entry.uki, revocations));
    examined.unwrap_or_else(|error| {
        let why = format!("its UKI cannot be read: {error}");
        Some(Unbootable::Damaged(why))
    })
}

fn examine(
    mut uki: File,
    written: FileDigest,
    revocations: Option<&Revocations>,
) -> io::Result<Option<Unbootable>> {
    // From the disk, not from memory.
    fadvise(&uki, 0, None, Advice::DontNeed)?;
    let signed = match revocations {
        Some(_) => Signed::of(&mut uki)?,
        None => None,
    };
    let ranges: &[Range<usize>] = match &signed {
        Some(signed) => &signed.ranges,
        None => &[],
    };
    uki.seek(SeekFrom::Start(0))?;
    // One byte more than expected is enough to see that it is another file.
    let mut reading = Reading {
        source: uki.take(written.bytes.saturating_add(1)),
        begun: Instant::now(),
        bytes: 0,
        signed: ranges,
        hasher: Hasher::default(),
    };
    let found = FileDigest::read(&mut reading)?;
    if found != written {
        let why = format!("its UKI is {found}, and was written as {written} (BLAKE3 and bytes)");
        return Ok(Some(Unbootable::Damaged(why)));
    }
    let program = reading.hasher;
    let revoked = revocations
        .zip(signed.as_ref())
        .and_then(|(revocations, signed)| signed.revoked_by(revocations, program));
    Ok(revoked.map(Unbootable::Revoked))
}

/// The signatures of a program, and what they sign.
struct Signed {
    ranges: [Range<usize>; 3],
    signatures: Vec<u8>,
}

impl Signed {
    /// Reads the signatures; none of a file that is no program.
    fn of(uki: &mut File) -> io::Result<Option<Self>> {
        let mut headers = Vec::new();
        Read::by_ref(uki).take(HEADERS).read_to_end(&mut headers)?;
        let length = usize::try_from(uki.metadata()?.len()).map_err(io::Error::other)?;
        let found = Layout::of_headers(&headers, length)
            .ok()
            .and_then(|layout| Some((layout.signatures(&headers, length)?, layout)));
        let Some((place, layout)) = found else {
            return Ok(None);
        };
        let mut signatures = Vec::new();
        uki.seek(SeekFrom::Start(place.start as u64))?;
        let size = (place.len() as u64).min(SIGNATURES);
        Read::by_ref(uki).take(size).read_to_end(&mut signatures)?;
        Ok(Some(Self {
            ranges: layout.signed(place.start),
            signatures,
        }))
    }

    /// Returns what the firmware has revoked of the program with this digest of the ranges.
    fn revoked_by(&self, revocations: &Revocations, mut program: Hasher) -> Option<String> {
        let end = self.ranges[2].end;
        let padding = end.next_multiple_of(ALIGNMENT) - end;
        program.update(&[0; ALIGNMENT][..padding]);
        let program = program.finish();
        if revocations.name_program(program) {
            return Some(of_program(program));
        }
        let signatures = pkcs7_signatures(&self.signatures).into_iter();
        let mut signers = signatures.filter_map(|it| revocations.named_signer(it));
        signers.next().map(of_signer)
    }
}

fn of_program(program: Digest) -> String {
    let hex = program.hex();
    format!("the firmware has revoked its UKI (dbx names its digest {hex})")
}

fn of_signer(certificate: Digest) -> String {
    let hex = certificate.hex();
    format!(
        "the firmware has revoked the certificate of its UKI's signature (dbx names it; SHA-256 {hex})"
    )
}

/// A program that is read slowly, with the digest by which the firmware knows it.
struct Reading<'a, R> {
    source: R,
    begun: Instant,
    /// The bytes that were read.
    bytes: usize,
    /// The ranges that the digest is of; empty if nobody asks for it.
    signed: &'a [Range<usize>],
    hasher: Hasher,
}

impl<R: Read> Read for Reading<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.source.read(buffer)?;
        let here = self.bytes..self.bytes + count;
        for range in self.signed {
            let (start, end) = (range.start.max(here.start), range.end.min(here.end));
            if start < end {
                let piece = &buffer[start - here.start..end - here.start];
                self.hasher.update(piece);
            }
        }
        self.bytes = here.end;
        let due = Duration::from_millis((self.bytes as u64).saturating_mul(1000) / RATE);
        thread::sleep(due.saturating_sub(self.begun.elapsed()));
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;

    use instar_esp::{Found, Slot};
    use instar_pe::{put_u32, smallest};

    use super::super::secure_boot::lists_for_tests::{naming_certificate, naming_program};
    use super::*;

    fn entry(name: &str, uki: &[u8]) -> Entry {
        Entry {
            name: name.parse().unwrap(),
            slot: Slot::FIRST,
            uki: FileDigest::of(uki),
        }
    }

    /// What is found of a UKI that was written as `written` and is `here` now.
    fn checked(written: &[u8], here: &[u8], revoked: Option<&Revocations>) -> Option<Unbootable> {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("EFI/instar")).unwrap();
        fs::write(root.path().join(Slot::FIRST.uki_path()), here).unwrap();
        let entry = entry("instar-1-v0.1.0.conf", written);
        check(root.path(), &entry, revoked)
    }

    #[test]
    fn one_byte_that_rots_is_found() {
        let uki = [7; 100_000];
        assert_eq!(checked(&uki, &uki, None), None);
        let mut rotten = uki;
        rotten[70_000] ^= 1;
        for here in [&rotten[..], &uki[1..], &[&uki[..], &[7]].concat(), &[]] {
            let found = checked(&uki, here, None);
            assert!(
                matches!(&found, Some(Unbootable::Damaged(why)) if why.contains("was written as")),
                "{found:?}"
            );
        }
        let entry = entry("instar-1-v0.1.0.conf", &uki);
        let nowhere = tempfile::tempdir().unwrap();
        let gone = check(nowhere.path(), &entry, None);
        assert!(
            matches!(&gone, Some(Unbootable::Damaged(why)) if why.contains("cannot be read")),
            "{gone:?}"
        );
    }

    /// A program with this signature, and its digest for the firmware.
    fn program(signature: &[u8]) -> (Vec<u8>, Digest) {
        let mut file = smallest();
        let layout = Layout::read(&file).unwrap();
        let signed = layout.signed(file.len());
        let pieces: Vec<&[u8]> = signed.iter().map(|range| &file[range.clone()]).collect();
        let digest = Digest::of(&pieces.concat());
        let head = u32::try_from(8 + signature.len()).unwrap();
        let entry = [&head.to_le_bytes()[..], &[0, 2, 2, 0], signature].concat();
        let place = layout.certificates();
        put_u32(&mut file, place, 0x600);
        put_u32(&mut file, place + 4, u32::try_from(entry.len()).unwrap());
        file.extend(entry);
        (file, digest)
    }

    #[test]
    fn a_uki_that_the_firmware_has_revoked_is_found() {
        let (named, by_certificate) = naming_certificate();
        let (uki, digest) = program(&named);
        let (other, _) = program(b"by nobody");
        let by_digest = naming_program(digest);
        for (uki, revocations, is_revoked) in [
            (&uki, &by_digest, true),
            (&uki, &by_certificate, true),
            (&uki, &naming_program(Digest::of(b"another")), false),
            // A signature does not change the digest.
            (&other, &by_digest, true),
            (&other, &by_certificate, false),
        ] {
            let found = checked(uki, uki, Some(revocations));
            let found_so = matches!(&found, Some(Unbootable::Revoked(why)) if why.contains("dbx"));
            assert_eq!(found_so, is_revoked, "{found:?}");
            assert!(is_revoked || found.is_none(), "{found:?}");
        }
        // What is damaged is told as that, and what is no program is not revoked.
        let mut rotten = uki.clone();
        rotten[0x500] ^= 1;
        let found = checked(&uki, &rotten, Some(&by_digest));
        assert!(matches!(found, Some(Unbootable::Damaged(_))), "{found:?}");
        assert_eq!(checked(b"text", b"text", Some(&by_digest)), None);
    }

    #[test]
    fn versions_that_a_boot_may_take_are_looked_at() {
        let mut state = State::default();
        for name in [
            "instar-4-v0.4.0+0-3.conf",
            "instar-3-v0.3.0.conf",
            "instar-3-v0.3.0+2-1.conf",
            "instar-2-v0.2.0.conf",
        ] {
            let entry = entry(name, b"uki");
            state.entries.push(Found {
                name: entry.name.clone(),
                entry: Ok(entry),
            });
        }
        state.ukis.insert(Slot::FIRST, 3);
        let kept = startable(&state).into_iter();
        let kept: Vec<_> = kept.map(|it| (it.order, it.version, it.is_next)).collect();
        let (v3, v2) = ("v0.3.0".to_owned(), "v0.2.0".to_owned());
        assert_eq!(kept, [(3, v3, true), (2, v2, false)]);
    }
}
