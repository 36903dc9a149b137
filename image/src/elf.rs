//! The needs of a program at its start: the interpreter, the libraries and the imports of 64-bit little-endian ELF
//! files (elf(5)).

use object::elf::{self, FileHeader64, ProgramHeader64};
use object::read::elf::{Dyn, FileHeader as _, ProgramHeader as _, SectionHeader as _, Sym as _};
use object::read::{self, StringTable};
use object::{LittleEndian, SymbolIndex};
use thiserror::Error;

/// The parts of a file that the dynamic loader reads.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Dynamic {
    /// The loader, by absolute path; programs have one, libraries mostly don't.
    pub interpreter: Option<String>,
    /// Names of the libraries that must be loaded with it.
    pub needed: Vec<String>,
    /// The library's own name.
    pub soname: Option<String>,
}

/// Why a file could not be read as ELF.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum Error {
    /// Not ELF of 64 bits, e.g. a script.
    #[error("not an ELF file for 64-bit little-endian machines")]
    NotElf64,
    /// An offset or a length points outside the file, or a value is invalid.
    #[error("the ELF file is damaged")]
    Damaged(#[from] read::Error),
    /// The names of libraries are in no segment.
    #[error("the ELF file is damaged: its string table lies outside the file")]
    NoStrings,
}

type Header = FileHeader64<LittleEndian>;

const ENDIAN: LittleEndian = LittleEndian;

fn header(file: &[u8]) -> Result<&Header, Error> {
    let header = Header::parse(file).map_err(|_| Error::NotElf64)?;
    if !header.is_little_endian() {
        return Err(Error::NotElf64);
    }
    Ok(header)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Reads a file as the loader does: by its segments, without its sections. A file that is not ELF is an error; a static
/// program needs no libraries.
///
/// # Errors
/// See [`Error`].
pub fn read(file: &[u8]) -> Result<Dynamic, Error> {
    let segments = header(file)?.program_headers(ENDIAN, file)?;
    let mut dynamic = Dynamic::default();
    for segment in segments {
        if let Some(name) = segment.interpreter(ENDIAN, file)? {
            dynamic.interpreter = Some(text(name));
        }
        let entries = segment.dynamic(ENDIAN, file)?.unwrap_or_default();
        let entries: Vec<_> = entries
            .iter()
            .map(|entry| (entry.tag(ENDIAN), entry.val(ENDIAN)))
            .take_while(|(tag, _)| *tag != elf::DT_NULL)
            .collect();
        let value = |wanted| {
            let entry = entries.iter().find(|(tag, _)| *tag == wanted);
            entry.map(|(_, value)| *value)
        };
        let place = value(elf::DT_STRTAB).zip(value(elf::DT_STRSZ));
        let Some((address, bytes)) = place else {
            continue;
        };
        let strings = loaded(file, segments, address, bytes).ok_or(Error::NoStrings)?;
        let strings = StringTable::new(strings, 0, strings.len() as u64);
        let name = |offset: u64| {
            let offset = u32::try_from(offset).map_err(|_| Error::NoStrings)?;
            strings.get(offset).map(text).map_err(|()| Error::NoStrings)
        };
        for (tag, value) in &entries {
            match *tag {
                elf::DT_NEEDED => dynamic.needed.push(name(*value)?),
                elf::DT_SONAME => dynamic.soname = Some(name(*value)?),
                _ => {}
            }
        }
    }
    Ok(dynamic)
}

/// Returns the bytes of the file from an address in memory on; the dynamic section speaks of memory.
fn loaded<'file>(
    file: &'file [u8],
    segments: &[ProgramHeader64<LittleEndian>],
    address: u64,
    bytes: u64,
) -> Option<&'file [u8]> {
    segments
        .iter()
        .filter(|segment| segment.p_type(ENDIAN) == elf::PT_LOAD)
        .find_map(|segment| segment.data_range(ENDIAN, file, address, bytes).ok()?)
}

/// A function or variable that a program takes from a library.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Import {
    /// The symbol's name.
    pub name: String,
    /// The version that the program was linked to, e.g. `LIBSYSTEMD_221`.
    pub version: String,
}

/// Returns the program's imports from the library of this name that have a version, in the order of the symbol table.
///
/// # Errors
/// See [`Error`].
pub fn imports(file: &[u8], library: &str) -> Result<Vec<Import>, Error> {
    let sections = header(file)?.sections(ENDIAN, file)?;
    let Some(versions) = sections.versions(ENDIAN, file)? else {
        return Ok(Vec::new());
    };
    let symbols = sections.symbols(ENDIAN, file, elf::SHT_DYNSYM)?;
    let version_of =
        |index: SymbolIndex| versions.version(versions.version_index(ENDIAN, index).index());
    let mut imports = Vec::new();
    for (index, symbol) in symbols.enumerate() {
        let Some(version) = version_of(index)? else {
            continue;
        };
        if version.file() == Some(library.as_bytes()) {
            imports.push(Import {
                name: text(symbol.name(ENDIAN, symbols.strings())?),
                version: text(version.name()),
            });
        }
    }
    Ok(imports)
}

/// Returns the bytes of the first section of this name; `None` if there is none.
///
/// # Errors
/// See [`Error`].
pub fn section<'file>(file: &'file [u8], name: &str) -> Result<Option<&'file [u8]>, Error> {
    let sections = header(file)?.sections(ENDIAN, file)?;
    match sections.section_by_name(ENDIAN, name.as_bytes()) {
        Some((_, section)) => Ok(Some(section.data(ENDIAN, file)?)),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::stand_in;

    /// A small library: one segment, no sections, its name and a function.
    fn small_library() -> Vec<u8> {
        let import = Import {
            name: "one".to_owned(),
            version: "V1".to_owned(),
        };
        stand_in::library("liba.so.1", &[import]).unwrap()
    }

    fn this_program() -> Vec<u8> {
        std::fs::read(std::env::current_exe().unwrap()).unwrap()
    }

    #[test]
    fn reads_segments_where_there_are_no_sections() {
        let library = Dynamic {
            soname: Some("liba.so.1".to_owned()),
            ..Dynamic::default()
        };
        assert_eq!(read(&small_library()), Ok(library));
    }

    #[test]
    fn reads_the_program_that_runs_this_test() {
        let dynamic = read(&this_program()).unwrap();
        if cfg!(target_env = "gnu") {
            assert!(dynamic.interpreter.unwrap().contains("ld-linux"));
            assert!(dynamic.needed.iter().any(|name| name == "libc.so.6"));
        }
    }

    #[test]
    fn finds_a_section_by_its_name() {
        let this = this_program();
        assert!(section(&this, ".text").unwrap().unwrap().len() > 1000);
        assert_eq!(section(&this, ".no-such-section").unwrap(), None);
        assert_eq!(section(b"text", ".text"), Err(Error::NotElf64));
        assert!(section(&this[..100], ".text").is_err());
    }

    #[test]
    fn a_damaged_file_is_an_error_and_never_a_panic() {
        assert_eq!(read(b"#!/bin/sh\n"), Err(Error::NotElf64));
        let whole = small_library();
        for length in 0..whole.len() {
            assert!(read(&whole[..length]).is_err(), "{length}");
        }
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] = 0xff;
            // Any result is right: only a panic would be wrong.
            let _ = read(&damaged);
            let _ = section(&damaged, ".modinfo");
            let _ = imports(&damaged, "liba.so.1");
        }
    }
}
