//! A library that takes the place of one that a program names but is never meant to use: all that the program takes from
//! it is there, and fails with `ENOSYS` when it is called.
//!
//! Every byte of a library is RAM on every node: a program that is linked to a large one for a single feature would cost
//! more than the program itself. The file is made here, byte by byte, so that it is the same wherever it is built (elf(5);
//! Linux Standard Base, "Symbol Versioning").

use std::collections::BTreeSet;

use crate::elf::Import;

/// `endbr64; mov $-38, %rax; ret`: `-ENOSYS`, which is how such a library tells that it cannot do something.
const CODE: [u8; 12] = [
    0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0xc7, 0xc0, 0xda, 0xff, 0xff, 0xff, 0xc3,
];

const HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;
const SYMBOL: u64 = 24;

/// The library `name` with these functions.
#[must_use]
pub fn library(name: &str, imports: &[Import]) -> Vec<u8> {
    let mut strings = Strings::default();
    let soname = strings.add(name);
    let versions: Vec<(&str, u32)> = imports
        .iter()
        .map(|import| import.version.as_str())
        .collect::<BTreeSet<_>>()
        .into_iter()
        .map(|version| (version, strings.add(version)))
        .collect();
    let names: Vec<u32> = imports
        .iter()
        .map(|import| strings.add(&import.name))
        .collect();

    let mut file = File(vec![0; HEADER + 3 * PROGRAM_HEADER]);
    let code = file.place(CODE.to_vec());
    let symbols = file.place(symbol_table(&names, code));
    let hashes = file.place(hash_table(imports.len() as u32));
    let indices = file.place(version_indices(imports, &versions));
    let definitions = file.place(version_definitions(name, soname, &versions));
    let string_bytes = strings.0.len() as u64;
    let strings = file.place(strings.0);
    let tags = [
        (Tag::Soname, u64::from(soname)),
        (Tag::Hash, hashes),
        (Tag::StringTable, strings),
        (Tag::StringTableSize, string_bytes),
        (Tag::SymbolTable, symbols),
        (Tag::SymbolSize, SYMBOL),
        (Tag::VersionIndices, indices),
        (Tag::VersionDefinitions, definitions),
        (Tag::VersionDefinitionCount, versions.len() as u64 + 1),
        (Tag::End, 0),
    ];
    let mut dynamic = Vec::new();
    for (tag, value) in tags {
        dynamic.extend((tag as u64).to_le_bytes());
        dynamic.extend(value.to_le_bytes());
    }
    let dynamic_bytes = dynamic.len() as u64;
    let dynamic = file.place(dynamic);
    file.finish(dynamic, dynamic_bytes)
}

/// Entries of the dynamic section that a loader wants.
#[derive(Clone, Copy)]
enum Tag {
    End = 0,
    Hash = 4,
    StringTable = 5,
    SymbolTable = 6,
    StringTableSize = 10,
    SymbolSize = 11,
    Soname = 14,
    VersionIndices = 0x6fff_fff0,
    VersionDefinitions = 0x6fff_fffc,
    VersionDefinitionCount = 0x6fff_fffd,
}

/// Names, each with a NUL, that others point into. The first is empty.
struct Strings(Vec<u8>);

impl Default for Strings {
    fn default() -> Self {
        Self(vec![0])
    }
}

impl Strings {
    fn add(&mut self, text: &str) -> u32 {
        let at = self.0.len() as u32;
        self.0.extend(text.as_bytes());
        self.0.push(0);
        at
    }
}

/// The library as far as it is written. It is loaded as it is, so offsets in it are addresses too.
struct File(Vec<u8>);

impl File {
    fn place(&mut self, bytes: Vec<u8>) -> u64 {
        self.0.resize(self.0.len().next_multiple_of(8), 0);
        let at = self.0.len() as u64;
        self.0.extend(bytes);
        at
    }

    fn finish(mut self, dynamic: u64, dynamic_bytes: u64) -> Vec<u8> {
        const LIBRARY: u16 = 3;
        const X86_64: u16 = 62;
        const CURRENT: u32 = 1;
        const LOAD: u32 = 1;
        const DYNAMIC: u32 = 2;
        const STACK: u32 = 0x6474_e551;
        const EXECUTE: u32 = 1;
        const WRITE: u32 = 2;
        const READ: u32 = 4;

        let size = self.0.len() as u64;
        let mut head = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
        head.extend(LIBRARY.to_le_bytes());
        head.extend(X86_64.to_le_bytes());
        head.extend(CURRENT.to_le_bytes());
        // No entry point; program headers follow this one; no sections.
        for offset in [0, HEADER as u64, 0] {
            head.extend(offset.to_le_bytes());
        }
        head.extend(0_u32.to_le_bytes());
        for number in [HEADER as u16, PROGRAM_HEADER as u16, 3, 64, 0, 0] {
            head.extend(number.to_le_bytes());
        }
        for (kind, access, start, bytes, alignment) in [
            (LOAD, READ | EXECUTE, 0, size, 4096_u64),
            (DYNAMIC, READ, dynamic, dynamic_bytes, 8),
            // Without this one the program's stack would become executable.
            (STACK, READ | WRITE, 0, 0, 16),
        ] {
            head.extend(kind.to_le_bytes());
            head.extend(access.to_le_bytes());
            for number in [start, start, start, bytes, bytes, alignment] {
                head.extend(u64::to_le_bytes(number));
            }
        }
        self.0[..head.len()].copy_from_slice(&head);
        self.0
    }
}

/// One function at `code` for each name, after the first entry, which means none.
fn symbol_table(names: &[u32], code: u64) -> Vec<u8> {
    const GLOBAL_FUNCTION: u8 = 0x12;
    /// Any number but 0, which is for what is taken from elsewhere: there are no sections.
    const DEFINED: u16 = 1;
    let mut table = vec![0; SYMBOL as usize];
    for name in names {
        table.extend(name.to_le_bytes());
        table.extend([GLOBAL_FUNCTION, 0]);
        table.extend(DEFINED.to_le_bytes());
        table.extend(code.to_le_bytes());
        table.extend((CODE.len() as u64).to_le_bytes());
    }
    table
}

/// With one bucket for all symbols: a chain from each to the next.
fn hash_table(symbols: u32) -> Vec<u8> {
    let first = u32::from(symbols > 0);
    let next = (1..=symbols).map(|symbol| if symbol < symbols { symbol + 1 } else { 0 });
    [1, symbols + 1, first, 0]
        .into_iter()
        .chain(next)
        .flat_map(u32::to_le_bytes)
        .collect()
}

/// Of each symbol, the number of its version. 1 is the library's own name.
fn version_indices(imports: &[Import], versions: &[(&str, u32)]) -> Vec<u8> {
    let index = |import: &Import| {
        let position = versions
            .iter()
            .position(|(version, _)| *version == import.version);
        position.map_or(1, |position| position as u16 + 2)
    };
    std::iter::once(0)
        .chain(imports.iter().map(index))
        .flat_map(u16::to_le_bytes)
        .collect()
}

/// Elf64_Verdef, each followed by its Elf64_Verdaux: the library itself, then its versions.
fn version_definitions(name: &str, soname: u32, versions: &[(&str, u32)]) -> Vec<u8> {
    const BASE: u16 = 1;
    let mut table = Vec::new();
    let all = std::iter::once((name, soname)).chain(versions.iter().copied());
    for (position, (version, text)) in all.enumerate() {
        let flags = if position == 0 { BASE } else { 0 };
        for number in [1, flags, position as u16 + 1, 1] {
            table.extend(number.to_le_bytes());
        }
        let next: u32 = if position < versions.len() { 28 } else { 0 };
        for number in [hash(version), 20, next, text, 0] {
            table.extend(number.to_le_bytes());
        }
    }
    table
}

/// The System V ABI's hash of a name.
fn hash(name: &str) -> u32 {
    name.bytes().fold(0, |hash: u32, byte| {
        let hash = (hash << 4).wrapping_add(byte.into());
        let high = hash & 0xf000_0000;
        (hash ^ (high >> 24)) & !high
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::{fs, path::Path, process::Command};

    use super::*;
    use crate::elf;

    fn compile(folder: &Path, arguments: &[&str]) {
        let status = Command::new("gcc")
            .current_dir(folder)
            .args(arguments)
            .status();
        assert!(status.unwrap().success(), "gcc {arguments:?}");
    }

    #[test]
    fn a_program_starts_with_it_and_its_calls_fail() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write(
            "large.c",
            "int one(void) {return 0;} int two(void) {return 0;}",
        );
        write("large.map", "V1 { global: one; }; V2 { global: two; };");
        write(
            "program.c",
            "int one(void); int two(void); int main(void) {return one() == -38 && two() == -38 ? 7 : 1;}",
        );
        fs::create_dir(folder.path().join("lib")).unwrap();
        let versions = "-Wl,-soname=liblarge.so.1,--version-script=large.map";
        compile(
            folder.path(),
            &["-shared", "-o", "lib/liblarge.so.1", "large.c", versions],
        );
        compile(
            folder.path(),
            &[
                "-o",
                "program",
                "program.c",
                "lib/liblarge.so.1",
                "-Wl,-z,now",
            ],
        );
        let run = || {
            let mut command = Command::new(folder.path().join("program"));
            command.env("LD_LIBRARY_PATH", folder.path().join("lib"));
            command.output().unwrap()
        };
        assert_eq!(run().status.code(), Some(1));

        let program = fs::read(folder.path().join("program")).unwrap();
        let mut imports = elf::imports(&program, "liblarge.so.1").unwrap();
        imports.sort();
        let import = |name: &str, version: &str| Import {
            name: name.to_owned(),
            version: version.to_owned(),
        };
        assert_eq!(imports, [import("one", "V1"), import("two", "V2")]);
        let stand_in = library("liblarge.so.1", &imports);
        let soname = elf::read(&stand_in).unwrap().soname;
        assert_eq!(soname.as_deref(), Some("liblarge.so.1"));
        fs::write(folder.path().join("lib/liblarge.so.1"), stand_in).unwrap();
        let output = run();
        assert_eq!(output.status.code(), Some(7));
        // The loader complains of versions that it misses.
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    }

    #[test]
    fn hashes_names_as_the_abi_says() {
        assert_eq!(hash(""), 0);
        assert_eq!(hash("printf"), 0x077905a6);
        assert_eq!(hash("GLIBC_2.2.5"), 0x09691a75);
    }
}
