//! Programs of UEFI: the PE format (Microsoft's "PE Format", UEFI specification 2.10, 2.1.1), as far as Instar makes such programs
//! and takes them apart: unified kernel images hold kernel, initramfs and command line as sections.
//!
//! The decision: offsets into the file's bytes, each checked when it is read. A library for object files was the other choice: those at hand
//! read programs or write new ones, but do not add sections to a program that has to stay the same everywhere else.

#![forbid(unsafe_code)]

use std::ops::Range;

use thiserror::Error;

/// Bytes of an entry in the section table.
pub const SECTION_HEADER: usize = 40;
/// The magic of PE32+, which 64 bit programs have.
const PE32_PLUS: u16 = 0x20B;
/// Which of the data directories leads to signatures.
const CERTIFICATES: usize = 4;

/// Why a file is not taken for a program.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Error {
    /// It is something else.
    #[error("not a 64 bit UEFI program: {0}")]
    NotPe(&'static str),
    /// The section table has no place for more.
    #[error("the headers have room for {room} more sections, {wanted} are needed")]
    NoRoom {
        /// How many more it could hold.
        room: usize,
        /// How many shall be added.
        wanted: usize,
    },
    /// A part of it is larger than the format can say.
    #[error("it would be larger than 4 GiB")]
    TooLarge,
}

/// A section: what is loaded as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// Its name, such as `.linux`.
    pub name: String,
    /// Where it is in the file. Its content may end before: see `bytes`.
    pub file: Range<usize>,
    /// Where it is in memory, counted from where the program is loaded.
    pub address: u32,
    /// How many bytes of it count.
    pub bytes: usize,
}

/// Where things are in a program's file.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Of the COFF header.
    coff: usize,
    /// Of the optional header.
    optional: usize,
    /// Of the section table.
    pub table: usize,
    /// In memory, each section begins at a multiple of this.
    pub section_alignment: u32,
    /// In the file, each section begins at a multiple of this.
    pub file_alignment: u32,
    /// In the order of the table.
    pub sections: Vec<Section>,
}

impl Layout {
    /// Reads it.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn read(file: &[u8]) -> Result<Self, Error> {
        Self::of_headers(file, file.len())
    }

    /// Reads it from the first bytes of a file of `length` bytes: a few KiB hold the headers of any program.
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

    /// The section of this name.
    #[must_use]
    pub fn section(&self, name: &str) -> Option<&Section> {
        self.sections.iter().find(|section| section.name == name)
    }

    /// Where the number of sections stands.
    #[must_use]
    pub fn section_count(&self) -> usize {
        self.coff + 2
    }

    /// Where the size of all sections' content stands.
    #[must_use]
    pub fn content_size(&self) -> usize {
        self.optional + 8
    }

    /// Where the size in memory stands.
    #[must_use]
    pub fn image_size(&self) -> usize {
        self.optional + 56
    }

    /// Where the headers' size stands.
    #[must_use]
    pub fn headers_size(&self) -> usize {
        self.optional + 60
    }

    /// Where the checksum stands, which UEFI does not ask for.
    #[must_use]
    pub fn checksum(&self) -> usize {
        self.optional + 64
    }

    /// Where position and size of the signatures stand.
    #[must_use]
    pub fn certificates(&self) -> usize {
        self.optional + 112 + CERTIFICATES * 8
    }
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

/// The number of two bytes at this place; none past the end.
#[must_use]
pub fn u16_at(file: &[u8], at: usize) -> Option<u16> {
    let bytes = file.get(at..at.checked_add(2)?)?;
    Some(u16::from_le_bytes(bytes.try_into().ok()?))
}

/// The number of four bytes at this place; none past the end.
#[must_use]
pub fn u32_at(file: &[u8], at: usize) -> Option<u32> {
    let bytes = file.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

/// Writes a number of two bytes.
///
/// # Panics
/// The place is not in the file.
pub fn put_u16(file: &mut [u8], at: usize, value: u16) {
    file[at..at + 2].copy_from_slice(&value.to_le_bytes());
}

/// Writes a number of four bytes.
///
/// # Panics
/// The place is not in the file.
pub fn put_u32(file: &mut [u8], at: usize, value: u32) {
    file[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// The least that is a program: headers with room for sections, and one section of code. For tests of whoever makes programs.
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
