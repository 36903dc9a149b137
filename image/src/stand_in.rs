//! A stand-in for a library that a program names but is never meant to use: it has all symbols that the program
//! imports, and each returns `ENOSYS`.
//!
//! Every byte of a library is RAM on every node: a program that is linked to a large one for a single feature would
//! cost more than the program itself. The file is made here, so that it is the same on every build machine (elf(5);
//! Linux Standard Base, "Symbol Versioning").

use std::collections::BTreeSet;

use object::write::elf::{FileHeader, ProgramHeader, Sym, Verdef, Writer};
use object::write::{self, StringId};
use object::{Endianness, elf};

use crate::elf::Import;

/// `endbr64; mov $-38, %rax; ret`: returns `-ENOSYS`, with which the replaced library reports an unsupported feature.
const CODE: [u8; 12] = [
    0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0xc7, 0xc0, 0xda, 0xff, 0xff, 0xff, 0xc3,
];

const PROGRAM_HEADERS: u32 = 3;
const SYMBOL_BYTES: u64 = 24;

/// Returns the library `name` with these functions. It has no sections, which only linkers read, and is loaded
/// unchanged: offsets in it are addresses too.
///
/// # Errors
/// Never in practice: a part is too large for the format.
pub fn library(name: &str, imports: &[Import]) -> Result<Vec<u8>, write::Error> {
    let versions: BTreeSet<&str> = imports
        .iter()
        .map(|import| import.version.as_str())
        .collect();
    let versions: Vec<&str> = versions.into_iter().collect();

    let mut file = Vec::new();
    let mut head = Vec::new();
    let mut writer = Writer::new_single_phase(Endianness::Little, true, &mut file);
    writer.write_file_header(&FileHeader {
        e_type: elf::ET_DYN,
        e_machine: elf::EM_X86_64,
        ..FileHeader::default()
    })?;
    writer.write_program_headers_placeholder(PROGRAM_HEADERS);
    let soname = writer.add_dynamic_string(name.as_bytes());
    let code = writer.write_align(16);
    writer.write(&CODE);

    let symbols = writer.write_null_dynamic_symbol();
    for import in imports {
        let name = writer.add_dynamic_string(import.name.as_bytes());
        let name = writer.dynamic_string_offset(Some(name));
        writer.write_dynamic_symbol(&function(name, code));
    }
    let count = imports.len() as u32 + 1;
    let hashes = writer.write_hash(1, count, |symbol| {
        let import = imports.get((symbol as usize).checked_sub(1)?)?;
        Some(elf::hash(import.name.as_bytes()))
    });

    // For each symbol the number of its version.
    let indices = writer.write_null_gnu_versym();
    for import in imports {
        let position = versions.iter().position(|it| *it == import.version);
        let position = position.map_or(0, |position| position + 1);
        writer.write_gnu_versym(number(position).into());
    }
    let ids: Vec<StringId> = versions
        .iter()
        .map(|version| writer.add_dynamic_string(version.as_bytes()))
        .collect();
    let definitions = writer.write_align_gnu_verdef(versions.len() as u16 + 1);
    let names = std::iter::once((name, soname)).chain(versions.iter().copied().zip(ids));
    for (position, (name, id)) in names.enumerate() {
        let id = writer.dynamic_string_offset(Some(id));
        writer.write_gnu_verdef(&version(name, id, position));
    }

    let (strings, string_bytes) = writer.write_dynstr()?;
    let dynamic = writer.write_align_dynamic();
    writer.write_dynamic_string(elf::DT_SONAME, soname)?;
    for (tag, value) in [
        (elf::DT_HASH, hashes),
        (elf::DT_STRTAB, strings),
        (elf::DT_STRSZ, string_bytes.into()),
        (elf::DT_SYMTAB, symbols),
        (elf::DT_SYMENT, SYMBOL_BYTES),
        (elf::DT_VERSYM, indices),
        (elf::DT_VERDEF, definitions),
        (elf::DT_VERDEFNUM, versions.len() as u64 + 1),
        (elf::DT_NULL, 0),
    ] {
        writer.write_dynamic(tag, value)?;
    }
    let end = writer.len();
    let load = segment(elf::PT_LOAD, elf::PF_R | elf::PF_X, 0, end, 4096);
    let dynamic = segment(elf::PT_DYNAMIC, elf::PF_R, dynamic, end - dynamic, 8);
    // Without this segment the program's stack would become executable.
    let stack = segment(elf::PT_GNU_STACK, elf::PF_R | elf::PF_W, 0, 0, 16);
    writer.write_headers_to(&mut head, &[load, dynamic, stack])?;
    file[..head.len()].copy_from_slice(&head);
    Ok(file)
}

/// Returns the number of a version. The first number is the library's own name.
fn number(position: usize) -> elf::VersionIndex {
    elf::VER_NDX_GLOBAL + position as u16
}

/// Returns the definition of the version whose name is the string `id`.
fn version(name: &str, id: u32, position: usize) -> Verdef {
    Verdef {
        version: elf::VER_DEF_CURRENT,
        flags: match position {
            0 => elf::VER_FLG_BASE,
            _ => elf::VersionFlags::default(),
        },
        index: number(position),
        aux_count: 1,
        name: id,
        hash: elf::hash(name.as_bytes()),
    }
}

fn function(name: u32, code: u64) -> Sym {
    Sym {
        section: None,
        st_name: name,
        st_info: elf::SymbolInfo::new(elf::STB_GLOBAL, elf::STT_FUNC),
        st_other: elf::SymbolOther::default(),
        // Any number but 0, which marks an undefined symbol: there are no sections.
        st_shndx: elf::SymbolSection(1),
        st_value: code,
        st_size: CODE.len() as u64,
    }
}

fn segment(
    p_type: elf::ProgramType,
    p_flags: elf::ProgramFlags,
    start: u64,
    bytes: u64,
    alignment: u64,
) -> ProgramHeader {
    ProgramHeader {
        p_type,
        p_flags,
        p_offset: start,
        p_vaddr: start,
        p_paddr: start,
        p_filesz: bytes,
        p_memsz: bytes,
        p_align: alignment,
    }
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
        let stand_in = library("liblarge.so.1", &imports).unwrap();
        let soname = elf::read(&stand_in).unwrap().soname;
        assert_eq!(soname.as_deref(), Some("liblarge.so.1"));
        fs::write(folder.path().join("lib/liblarge.so.1"), stand_in).unwrap();
        let output = run();
        assert_eq!(output.status.code(), Some(7));
        // The loader complains about missing versions.
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    }
}
