//! UEFI programs: the PE format (Microsoft's "PE Format", UEFI specification 2.10, 2.1.1), as far as Instar makes these programs and takes
//! them apart: unified kernel images contain kernel, initramfs and command line as sections.
//!
//! The decision: offsets into the file's bytes, each checked when it is read. A library for object files was the other choice: the
//! available ones read programs or write new ones, but do not add sections to a program that has to stay the same everywhere else.

#![forbid(unsafe_code)]

use std::ops::Range;

use thiserror::Error;

/// Size of an entry in the section table, in bytes.
pub const SECTION_HEADER: usize = 40;
/// The magic number of PE32+, the format of 64 bit programs.
const PE32_PLUS: u16 = 0x20B;
/// The index of the data directory of signatures.
const CERTIFICATES: usize = 4;
/// Signatures begin and end at multiples of this, in bytes.
const ALIGNMENT: usize = 8;
/// Size of a signature's head: its length, revision and kind.
const SIGNATURE_HEAD: usize = 8;
/// Revision 2.0 and the kind PKCS#7, of a signature that firmware reads.
const PKCS7: [u8; 4] = [0x00, 0x02, 0x02, 0x00];

/// Why a file is not a usable program.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Error {
    /// The file is not a PE program, for this reason.
    #[error("not a 64 bit UEFI program: {0}")]
    NotPe(&'static str),
    /// The section table has too little room for further entries.
    #[error("the headers have room for {room} more sections, {wanted} are needed")]
    NoRoom {
        /// Number of entries that there is room for.
        room: usize,
        /// Number of entries to add.
        wanted: usize,
    },
    /// A part is larger than the format allows.
    #[error("it would be larger than 4 GiB")]
    TooLarge,
}

/// A section: a part of the program that is loaded as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// Its name, for example `.linux`.
    pub name: String,
    /// Its range in the file. Its content may end before: see `bytes`.
    pub file: Range<usize>,
    /// Its address in memory, relative to the program's start.
    pub address: u32,
    /// Length of its content, in bytes.
    pub bytes: usize,
}

/// The layout of a program's file.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Offset of the COFF header.
    coff: usize,
    /// Offset of the optional header.
    optional: usize,
    /// Offset of the section table.
    pub table: usize,
    /// Alignment of sections in memory, in bytes.
    pub section_alignment: u32,
    /// Alignment of sections in the file, in bytes.
    pub file_alignment: u32,
    /// The sections in the order of the table.
    pub sections: Vec<Section>,
}

impl Layout {
    /// Reads the layout of a file.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn read(file: &[u8]) -> Result<Self, Error> {
        Self::of_headers(file, file.len())
    }

    /// Reads the layout from the first bytes of a file of `length` bytes: a few KiB contain the headers of any program.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn of_headers(file: &[u8], length: usize) -> Result<Self, Error> {
        let short = Error::NotPe("it ends in its headers");
        if !file.starts_with(b"MZ") {
            return Err(Error::NotPe("no MZ at its start"));
        }
        let pe = u32_at(file, 0x3C).ok_or(short)? as usize;
        if file.get(pe..pe + 4) != Some(b"PE\0\0") {
            return Err(Error::NotPe("no PE header"));
        }
        let coff = pe + 4;
        let optional = coff + 20;
        let count = u16_at(file, coff + 2).ok_or(short)?;
        let optional_size = usize::from(u16_at(file, coff + 16).ok_or(short)?);
        if u16_at(file, optional) != Some(PE32_PLUS) {
            return Err(Error::NotPe("not PE32+"));
        }
        if u32_at(file, optional + 108).ok_or(short)? as usize <= CERTIFICATES {
            return Err(Error::NotPe("no place for signatures"));
        }
        let table = optional + optional_size;
        let sections = (0..usize::from(count))
            .map(|number| section(file, table + number * SECTION_HEADER, length))
            .collect::<Option<_>>()
            .ok_or(short)?;
        Ok(Self {
            coff,
            optional,
            table,
            section_alignment: u32_at(file, optional + 32).ok_or(short)?,
            file_alignment: u32_at(file, optional + 36).ok_or(short)?,
            sections,
        })
    }

    /// The section of this name, if there is one.
    #[must_use]
    pub fn section(&self, name: &str) -> Option<&Section> {
        self.sections.iter().find(|section| section.name == name)
    }

    /// Offset of the number of sections.
    #[must_use]
    pub fn section_count(&self) -> usize {
        self.coff + 2
    }

    /// Offset of the size of all sections' content.
    #[must_use]
    pub fn content_size(&self) -> usize {
        self.optional + 8
    }

    /// Offset of the size in memory.
    #[must_use]
    pub fn image_size(&self) -> usize {
        self.optional + 56
    }

    /// Offset of the headers' size.
    #[must_use]
    pub fn headers_size(&self) -> usize {
        self.optional + 60
    }

    /// Offset of the checksum, which UEFI does not demand.
    #[must_use]
    pub fn checksum(&self) -> usize {
        self.optional + 64
    }

    /// Offset of the position and size of the signatures.
    #[must_use]
    pub fn certificates(&self) -> usize {
        self.optional + 112 + CERTIFICATES * 8
    }

    /// The range of the signatures in a file of `length` bytes, empty at its end without any; `file` has at least its headers. `None` if they
    /// would be outside of it.
    #[must_use]
    pub fn signatures(&self, file: &[u8], length: usize) -> Option<Range<usize>> {
        let place = self.certificates();
        let start = u32_at(file, place)? as usize;
        let size = u32_at(file, place + 4)? as usize;
        if start == 0 {
            return Some(length..length);
        }
        let end = start.checked_add(size)?;
        (end <= length).then_some(start..end)
    }

    /// The ranges before signatures that begin at this offset whose digest they sign: all but the checksum and the place of the signatures. The
    /// digest is also of the zeros that lead to a multiple of eight bytes.
    #[must_use]
    pub fn signed(&self, signatures: usize) -> [Range<usize>; 3] {
        let (checksum, certificates) = (self.checksum(), self.certificates());
        [
            0..checksum,
            checksum + 4..certificates,
            certificates + 8..signatures,
        ]
    }
}

/// The PKCS#7 signatures among the bytes of [`Layout::signatures`]. Those of other kinds, and all after a damaged one, are left out.
#[must_use]
pub fn pkcs7_signatures(mut signatures: &[u8]) -> Vec<&[u8]> {
    let mut found = Vec::new();
    while let Some(length) = u32_at(signatures, 0) {
        let length = length as usize;
        let Some(signature) = signatures.get(SIGNATURE_HEAD..length) else {
            break;
        };
        if signatures[4..SIGNATURE_HEAD] == PKCS7 {
            found.push(signature);
        }
        let next = length.next_multiple_of(ALIGNMENT);
        signatures = signatures.get(next..).unwrap_or_default();
    }
    found
}

fn section(file: &[u8], at: usize, length: usize) -> Option<Section> {
    let name = file.get(at..at + 8)?;
    let letters = name.iter().position(|byte| *byte == 0).unwrap_or(8);
    let in_memory = u32_at(file, at + 8)? as usize;
    let in_file = u32_at(file, at + 16)? as usize;
    let start = u32_at(file, at + 20)? as usize;
    if start.checked_add(in_file)? > length {
        return None;
    }
    Some(Section {
        name: String::from_utf8_lossy(&name[..letters]).into_owned(),
        file: start..start + in_file,
        address: u32_at(file, at + 12)?,
        bytes: in_memory.min(in_file),
    })
}

/// The two-byte number at this offset; `None` past the end.
#[must_use]
pub fn u16_at(file: &[u8], at: usize) -> Option<u16> {
    let bytes = file.get(at..at.checked_add(2)?)?;
    Some(u16::from_le_bytes(bytes.try_into().ok()?))
}

/// The four-byte number at this offset; `None` past the end.
#[must_use]
pub fn u32_at(file: &[u8], at: usize) -> Option<u32> {
    let bytes = file.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

/// Writes a two-byte number.
///
/// # Panics
/// The offset is past the end of the file.
pub fn put_u16(file: &mut [u8], at: usize, value: u16) {
    file[at..at + 2].copy_from_slice(&value.to_le_bytes());
}

/// Writes a four-byte number.
///
/// # Panics
/// The offset is past the end of the file.
pub fn put_u32(file: &mut [u8], at: usize, value: u32) {
    file[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// The smallest valid program: headers with room for sections, and one section of code. For tests of code that makes programs.
#[must_use]
pub fn smallest() -> Vec<u8> {
    let mut file = vec![0; 0x600];
    file[..2].copy_from_slice(b"MZ");
    put_u32(&mut file, 0x3C, 0x80);
    file[0x80..0x84].copy_from_slice(b"PE\0\0");
    let (coff, optional) = (0x84, 0x98);
    put_u16(&mut file, coff, 0x8664);
    put_u16(&mut file, coff + 2, 1);
    put_u16(&mut file, coff + 16, 240);
    put_u16(&mut file, optional, PE32_PLUS);
    put_u32(&mut file, optional + 32, 0x1000);
    put_u32(&mut file, optional + 36, 0x200);
    put_u32(&mut file, optional + 56, 0x2000);
    put_u32(&mut file, optional + 60, 0x400);
    put_u32(&mut file, optional + 108, 16);
    let table = optional + 240;
    file[table..table + 5].copy_from_slice(b".text");
    put_u32(&mut file, table + 8, 0x10);
    put_u32(&mut file, table + 12, 0x1000);
    put_u32(&mut file, table + 16, 0x200);
    put_u32(&mut file, table + 20, 0x400);
    file
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn reads_sections() {
        let layout = Layout::read(&smallest()).unwrap();
        let text = layout.section(".text").unwrap();
        assert_eq!(
            (text.file.clone(), text.address, text.bytes),
            (0x400..0x600, 0x1000, 0x10)
        );
        assert_eq!(layout.section(".linux"), None);
        let headers = Layout::of_headers(&smallest()[..0x200], 0x600).unwrap();
        assert_eq!(headers.sections, layout.sections);
        Layout::of_headers(&smallest()[..0x200], 0x5FF).unwrap_err();
    }

    #[test]
    fn signatures_are_outside_of_what_they_sign() {
        let mut file = smallest();
        let length = file.len();
        let layout = Layout::read(&file).unwrap();
        assert_eq!(layout.signatures(&file, length), Some(length..length));
        let signature = |kind: [u8; 4], content: &[u8]| {
            let head = u32::try_from(SIGNATURE_HEAD + content.len()).unwrap();
            let mut entry = [&head.to_le_bytes()[..], &kind, content].concat();
            entry.resize(entry.len().next_multiple_of(ALIGNMENT), 0);
            entry
        };
        file.extend(signature(PKCS7, b"one"));
        file.extend(signature([0, 1, 2, 0], b"of an older revision"));
        file.extend(signature(PKCS7, b"another"));
        let place = layout.certificates();
        put_u32(&mut file, place, u32::try_from(length).unwrap());
        let size = u32::try_from(file.len() - length).unwrap();
        put_u32(&mut file, place + 4, size);
        let range = layout.signatures(&file, file.len()).unwrap();
        assert_eq!(range, length..file.len());
        assert_eq!(layout.signatures(&file, file.len() - 1), None);
        let found = pkcs7_signatures(&file[range]);
        assert_eq!(found, [&b"one"[..], b"another"]);
        let signed = layout.signed(length);
        let left_out = length - signed.iter().map(|it| it.len()).sum::<usize>();
        assert_eq!((signed[2].end, left_out), (length, 12));
    }

    #[test]
    fn a_damaged_signature_ends_the_search() {
        assert_eq!(pkcs7_signatures(&[]), Vec::<&[u8]>::new());
        for length in [0_u32, 7, 100, u32::MAX] {
            let table = [&length.to_le_bytes()[..], &PKCS7, b"content!"].concat();
            assert_eq!(pkcs7_signatures(&table), Vec::<&[u8]>::new(), "{length}");
        }
    }

    #[test]
    fn what_is_no_program_or_part_of_one_is_refused() {
        let stub = smallest();
        for end in [0, 2, 0x40, 0x84, 0x90, 0x98, 0x100, 0x180, 0x1A0, 0x5FF] {
            Layout::read(&stub[..end]).unwrap_err();
        }
        let mut other = stub;
        put_u16(&mut other, 0x98, 0x10B);
        assert_eq!(Layout::read(&other).unwrap_err(), Error::NotPe("not PE32+"));
    }
}
