//! What a program needs to start: reads the interpreter, the `NEEDED` entries and the imports of 64-bit little-endian ELF files (elf(5)).

use std::collections::BTreeMap;

use thiserror::Error;

const PROGRAM_DYNAMIC: u32 = 2;
const PROGRAM_INTERPRETER: u32 = 3;
const PROGRAM_LOAD: u32 = 1;
const TAG_NEEDED: u64 = 1;
const TAG_STRING_TABLE: u64 = 5;
const TAG_SONAME: u64 = 14;

/// What the dynamic loader reads of a file.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Dynamic {
    /// The loader, by absolute path; programs have one, libraries mostly don't.
    pub interpreter: Option<String>,
    /// Names of the libraries that must be loaded with it.
    pub needed: Vec<String>,
    /// The name that a library goes by.
    pub soname: Option<String>,
}

/// Why a file could not be read as ELF.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum Error {
    /// Something else, such as a script.
    #[error("not an ELF file for 64-bit little-endian machines")]
    NotElf64,
    /// An offset or a length points outside the file.
    #[error("the ELF file is damaged: {0} lies outside the file")]
    Outside(&'static str),
}

/// A file that is no ELF file is an error; a static program needs nothing.
///
/// # Errors
/// See [`Error`].
pub fn read(file: &[u8]) -> Result<Dynamic, Error> {
    if file.get(..6) != Some(b"\x7fELF\x02\x01") {
        return Err(Error::NotElf64);
    }
    let segments = segments(file)?;
    let mut dynamic = Dynamic::default();
    for segment in &segments {
        match segment.kind {
            PROGRAM_INTERPRETER => {
                dynamic.interpreter = Some(string(file, segment.offset, "the interpreter's name")?)
            }
            PROGRAM_DYNAMIC => read_dynamic(file, segment, &segments, &mut dynamic)?,
            _ => {}
        }
    }
    Ok(dynamic)
}

/// A function or variable that a program takes from a library.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Import {
    /// Its name.
    pub name: String,
    /// The version of it that the program was linked to, such as `LIBSYSTEMD_221`.
    pub version: String,
}

/// What the program takes from the library of this name, as far as it has a version there; in the order of its symbol table.
///
/// # Errors
/// See [`Error`].
pub fn imports(file: &[u8], library: &str) -> Result<Vec<Import>, Error> {
    const WHAT: &str = "the symbols' versions";
    let part = |name| Ok::<_, Error>(section(file, name)?.unwrap_or_default());
    let (symbols, names) = (part(".dynsym")?, part(".dynstr")?);
    let (version_indices, libraries) = (part(".gnu.version")?, part(".gnu.version_r")?);

    // Elf64_Verneed and Elf64_Vernaux: a list of libraries, each with a list of versions, chained by offsets.
    let after = |entry: u64, offset| entry.checked_add(offset).ok_or(Error::Outside(WHAT));
    let half = |entry, offset| number::<2>(libraries, after(entry, offset)?, WHAT);
    let word = |entry, offset| number::<4>(libraries, after(entry, offset)?, WHAT);
    let mut versions = BTreeMap::new();
    let mut at = 0;
    while !libraries.is_empty() {
        if string(names, word(at, 4)?, WHAT)? == library {
            let mut version = after(at, word(at, 8)?)?;
            for _ in 0..half(at, 2)? {
                let name = string(names, word(version, 8)?, WHAT)?;
                versions.insert(half(version, 6)?, name);
                version = after(version, word(version, 12)?)?;
            }
        }
        match word(at, 12)? {
            0 => break,
            next => at = after(at, next)?,
        }
    }

    let mut imports = Vec::new();
    for (symbol, index) in symbols
        .chunks_exact(24)
        .zip(version_indices.chunks_exact(2))
    {
        if let Some(version) = versions.get(&number::<2>(index, 0, WHAT)?) {
            imports.push(Import {
                name: string(names, number::<4>(symbol, 0, WHAT)?, WHAT)?,
                version: version.clone(),
            });
        }
    }
    Ok(imports)
}

/// The bytes of the first section of this name; none is no error.
///
/// # Errors
/// See [`Error`].
pub fn section<'file>(file: &'file [u8], name: &str) -> Result<Option<&'file [u8]>, Error> {
    const WHAT: &str = "the section table";
    if file.get(..6) != Some(b"\x7fELF\x02\x01") {
        return Err(Error::NotElf64);
    }
    let table = number::<8>(file, 40, WHAT)?;
    let entry_size = number::<2>(file, 58, WHAT)?;
    let count = number::<2>(file, 60, WHAT)?;
    let names_index = number::<2>(file, 62, WHAT)?;
    let field = |index: u64, offset: u64| {
        table
            .checked_add(index * entry_size + offset)
            .ok_or(Error::Outside(WHAT))
    };
    let names = number::<8>(file, field(names_index, 24)?, WHAT)?;
    for index in 0..count {
        let name_at = number::<4>(file, field(index, 0)?, WHAT)?;
        if string(
            file,
            names.checked_add(name_at).ok_or(Error::Outside(WHAT))?,
            WHAT,
        )? == name
        {
            let offset = number::<8>(file, field(index, 24)?, WHAT)?;
            let size = number::<8>(file, field(index, 32)?, WHAT)?;
            return slice(file, offset, size, "a section").map(Some);
        }
    }
    Ok(None)
}

struct Segment {
    kind: u32,
    offset: u64,
    address: u64,
    size: u64,
}

fn segments(file: &[u8]) -> Result<Vec<Segment>, Error> {
    const WHAT: &str = "the program header";
    let table = number::<8>(file, 32, WHAT)?;
    let entry_size = number::<2>(file, 54, WHAT)?;
    let count = number::<2>(file, 56, WHAT)?;
    (0..count)
        .map(|index| {
            let at = (index * entry_size)
                .checked_add(table)
                .ok_or(Error::Outside(WHAT))?;
            let field = |offset: u64| at.checked_add(offset).ok_or(Error::Outside(WHAT));
            Ok(Segment {
                kind: u32::try_from(number::<4>(file, at, WHAT)?)
                    .map_err(|_| Error::Outside(WHAT))?,
                offset: number::<8>(file, field(8)?, WHAT)?,
                address: number::<8>(file, field(16)?, WHAT)?,
                size: number::<8>(file, field(32)?, WHAT)?,
            })
        })
        .collect()
}

fn read_dynamic(
    file: &[u8],
    segment: &Segment,
    segments: &[Segment],
    dynamic: &mut Dynamic,
) -> Result<(), Error> {
    const WHAT: &str = "the dynamic section";
    let mut entries = Vec::new();
    for index in 0..segment.size / 16 {
        let at = segment
            .offset
            .checked_add(index * 16)
            .ok_or(Error::Outside(WHAT))?;
        let tag = number::<8>(file, at, WHAT)?;
        if tag == 0 {
            break;
        }
        entries.push((
            tag,
            number::<8>(file, at.checked_add(8).ok_or(Error::Outside(WHAT))?, WHAT)?,
        ));
    }
    let Some((_, address)) = entries.iter().find(|(tag, _)| *tag == TAG_STRING_TABLE) else {
        return Ok(());
    };
    let names = file_offset(segments, *address)?;
    for (tag, value) in entries {
        let name = || {
            string(
                file,
                names.checked_add(value).ok_or(Error::Outside(WHAT))?,
                "a library's name",
            )
        };
        match tag {
            TAG_NEEDED => dynamic.needed.push(name()?),
            TAG_SONAME => dynamic.soname = Some(name()?),
            _ => {}
        }
    }
    Ok(())
}

/// The dynamic section speaks of addresses in memory; the file is read by offset.
fn file_offset(segments: &[Segment], address: u64) -> Result<u64, Error> {
    segments
        .iter()
        .filter(|segment| segment.kind == PROGRAM_LOAD)
        .find_map(|segment| {
            let inside = address.checked_sub(segment.address)?;
            (inside < segment.size).then(|| segment.offset.checked_add(inside))?
        })
        .ok_or(Error::Outside("the string table"))
}

fn number<const BYTES: usize>(file: &[u8], offset: u64, what: &'static str) -> Result<u64, Error> {
    let bytes = slice(file, offset, BYTES as u64, what)?;
    Ok(bytes
        .iter()
        .rev()
        .fold(0, |value, byte| (value << 8) | u64::from(*byte)))
}

fn slice<'file>(
    file: &'file [u8],
    offset: u64,
    size: u64,
    what: &'static str,
) -> Result<&'file [u8], Error> {
    let start = usize::try_from(offset).map_err(|_| Error::Outside(what))?;
    let size = usize::try_from(size).map_err(|_| Error::Outside(what))?;
    let end = start.checked_add(size).ok_or(Error::Outside(what))?;
    file.get(start..end).ok_or(Error::Outside(what))
}

fn string(file: &[u8], offset: u64, what: &'static str) -> Result<String, Error> {
    let start = usize::try_from(offset).map_err(|_| Error::Outside(what))?;
    let rest = file.get(start..).ok_or(Error::Outside(what))?;
    let end = rest
        .iter()
        .position(|byte| *byte == 0)
        .ok_or(Error::Outside(what))?;
    Ok(String::from_utf8_lossy(&rest[..end]).into_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// A program with two program headers (one LOAD of the whole file at address 0x1000, one DYNAMIC) and two needed libraries.
    fn program() -> Vec<u8> {
        let mut file = vec![0_u8; 64 + 2 * 56];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[32..40].copy_from_slice(&64_u64.to_le_bytes());
        file[54..56].copy_from_slice(&56_u16.to_le_bytes());
        file[56..58].copy_from_slice(&2_u16.to_le_bytes());
        let names = file.len() as u64;
        file.extend(b"\0liba.so.1\0libb.so.2\0");
        let dynamic = file.len() as u64;
        for (tag, value) in [
            (TAG_NEEDED, 1),
            (TAG_NEEDED, 11),
            (TAG_STRING_TABLE, 0x1000 + names),
            (0, 0),
        ] {
            file.extend(u64::to_le_bytes(tag));
            file.extend(u64::to_le_bytes(value));
        }
        let size = file.len() as u64;
        let mut header = |index: usize, kind: u32, offset: u64, address: u64, size: u64| {
            let at = 64 + index * 56;
            file[at..at + 4].copy_from_slice(&kind.to_le_bytes());
            file[at + 8..at + 16].copy_from_slice(&offset.to_le_bytes());
            file[at + 16..at + 24].copy_from_slice(&address.to_le_bytes());
            file[at + 32..at + 40].copy_from_slice(&size.to_le_bytes());
        };
        header(0, PROGRAM_LOAD, 0, 0x1000, size);
        header(1, PROGRAM_DYNAMIC, dynamic, 0x1000 + dynamic, 64);
        file
    }

    #[test]
    fn lists_the_needed_libraries_in_order() {
        assert_eq!(read(&program()).unwrap().needed, ["liba.so.1", "libb.so.2"]);
    }

    #[test]
    fn reads_the_program_that_runs_this_test() {
        let this = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let dynamic = read(&this).unwrap();
        if cfg!(target_env = "gnu") {
            assert!(dynamic.interpreter.unwrap().contains("ld-linux"));
            assert!(dynamic.needed.iter().any(|name| name == "libc.so.6"));
        }
    }

    #[test]
    fn finds_a_section_by_its_name() {
        let this = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(section(&this, ".text").unwrap().unwrap().len() > 1000);
        assert_eq!(section(&this, ".no-such-section").unwrap(), None);
        assert_eq!(section(b"text", ".text"), Err(Error::NotElf64));
        assert!(section(&this[..100], ".text").is_err());
    }

    #[test]
    fn a_damaged_file_is_an_error_and_never_a_panic() {
        assert_eq!(read(b"#!/bin/sh\n"), Err(Error::NotElf64));
        let whole = program();
        // The last value of the dynamic section is never read.
        for length in 6..whole.len() - 8 {
            read(&whole[..length]).unwrap_err();
        }
        for at in 6..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] = 0xff;
            let _ = read(&damaged);
            let _ = section(&damaged, ".modinfo");
            let _ = imports(&damaged, "liba.so.1");
        }
    }
}
