//! The unified kernel image: systemd's stub with kernel, initramfs, command line and the version's name as sections of
//! one program (<https://uapi-group.org/specifications/specs/unified_kernel_image/>). One signature covers all of it,
//! the root filesystem in the initramfs included.

use instar_pe::{Error, Layout, SECTION_HEADER, put_u16, put_u32, u32_at};

/// The parts of a UKI.
#[derive(Clone, Copy, Debug)]
pub struct Parts<'a> {
    /// systemd's stub, `linuxx64.efi.stub`.
    pub stub: &'a [u8],
    /// The bzImage.
    pub kernel: &'a [u8],
    /// The kernel's `uname -r`.
    pub kernel_release: &'a str,
    /// The initramfs.
    pub initramfs: &'a [u8],
    /// The kernel's command line.
    pub command_line: &'a str,
    /// The text of an os-release file, which boot loaders show.
    pub os_release: &'a str,
}

/// Flags of a section with data: initialized data, may be read.
const DATA: u32 = 0x4000_0040;
/// Flags of the kernel's section: code, may be read and run.
const CODE: u32 = 0x6000_0020;

/// Builds the UKI, without a signature.
///
/// # Errors
/// The stub is no program, has no room for the sections' headers, or the whole is too large.
pub fn build(parts: &Parts<'_>) -> Result<Vec<u8>, Error> {
    add_sections(
        parts.stub,
        &[
            (".osrel", DATA, parts.os_release.as_bytes()),
            (".cmdline", DATA, parts.command_line.as_bytes()),
            (".uname", DATA, parts.kernel_release.as_bytes()),
            (".linux", CODE, parts.kernel),
            (".initrd", DATA, parts.initramfs),
        ],
    )
}

fn add_sections(program: &[u8], sections: &[(&str, u32, &[u8])]) -> Result<Vec<u8>, Error> {
    let layout = Layout::read(program)?;
    let last = layout
        .sections
        .last()
        .ok_or(Error::NotPe("it has no sections"))?;
    let table_end = layout.table + layout.sections.len() * SECTION_HEADER;
    let content = layout
        .sections
        .iter()
        .map(|section| section.file.start)
        .filter(|start| *start > 0)
        .min()
        .ok_or(Error::NotPe("its sections are empty"))?;
    let room = content.saturating_sub(table_end) / SECTION_HEADER;
    if room < sections.len() {
        return Err(Error::NoRoom {
            room,
            wanted: sections.len(),
        });
    }

    let mut file = program.to_vec();
    let mut address = next_address(program, &layout, last.address)?;
    let mut content_size =
        u32_at(program, layout.content_size()).ok_or(Error::NotPe("short headers"))?;
    let mut header = table_end;
    for (name, kind, bytes) in sections {
        let size = u32::try_from(bytes.len()).map_err(|_| Error::TooLarge)?;
        pad(&mut file, layout.file_alignment);
        let start = u32::try_from(file.len()).map_err(|_| Error::TooLarge)?;
        file.extend(*bytes);
        pad(&mut file, layout.file_alignment);
        let in_file = u32::try_from(file.len()).map_err(|_| Error::TooLarge)? - start;

        file[header..header + name.len()].copy_from_slice(name.as_bytes());
        for (offset, value) in [
            (8, size),
            (12, address),
            (16, in_file),
            (20, start),
            (36, *kind),
        ] {
            put_u32(&mut file, header + offset, value);
        }
        header += SECTION_HEADER;
        content_size = content_size.checked_add(in_file).ok_or(Error::TooLarge)?;
        address = aligned(address, size, layout.section_alignment)?;
    }
    let count = layout.sections.len() + sections.len();
    put_u16(
        &mut file,
        layout.section_count(),
        u16::try_from(count).map_err(|_| Error::TooLarge)?,
    );
    put_u32(&mut file, layout.content_size(), content_size);
    put_u32(&mut file, layout.image_size(), address);
    // The headers reach up to the first content: a signature covers every byte of the file.
    let headers = u32::try_from(content).map_err(|_| Error::TooLarge)?;
    put_u32(&mut file, layout.headers_size(), headers);
    put_u32(&mut file, layout.checksum(), 0);
    Ok(file)
}

/// Returns the first address after all sections. The last one counts with its size in memory, which may exceed its size
/// in the file.
fn next_address(program: &[u8], layout: &Layout, last: u32) -> Result<u32, Error> {
    let header = layout.table + (layout.sections.len() - 1) * SECTION_HEADER;
    let size = u32_at(program, header + 8).ok_or(Error::NotPe("short headers"))?;
    aligned(last, size, layout.section_alignment)
}

fn aligned(address: u32, size: u32, alignment: u32) -> Result<u32, Error> {
    address
        .checked_add(size)
        .and_then(|end| end.checked_next_multiple_of(alignment))
        .ok_or(Error::TooLarge)
}

fn pad(file: &mut Vec<u8>, alignment: u32) {
    file.resize(file.len().next_multiple_of(alignment as usize), 0);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::process::Command;

    use instar_pe::smallest;

    use super::*;

    fn parts(stub: &[u8]) -> Parts<'_> {
        Parts {
            stub,
            kernel: b"the kernel",
            kernel_release: "6.12.1",
            initramfs: &[7; 0x1234],
            command_line: "console=ttyS0",
            os_release: "ID=instar\n",
        }
    }

    #[test]
    fn sections_follow_the_stubs_in_file_and_memory() {
        let stub = smallest();
        let file = build(&parts(&stub)).unwrap();
        let layout = Layout::read(&file).unwrap();
        let names: Vec<&str> = layout
            .sections
            .iter()
            .map(|section| section.name.as_str())
            .collect();
        assert_eq!(
            names,
            [".text", ".osrel", ".cmdline", ".uname", ".linux", ".initrd"]
        );
        let initrd = layout.section(".initrd").unwrap();
        assert_eq!(initrd.address, 0x6000);
        assert_eq!(&file[initrd.file.start..][..initrd.bytes], &[7; 0x1234]);
        assert_eq!(initrd.file.end, file.len());
        assert_eq!(u32_at(&file, layout.image_size()), Some(0x8000));
        assert_eq!(u32_at(&file, layout.headers_size()), Some(0x400));
        for pair in layout.sections.windows(2) {
            assert_eq!(
                pair[0].file.end, pair[1].file.start,
                "no gap that a signature would leave out"
            );
        }
        assert_eq!(build(&parts(&stub)).unwrap(), file);
    }

    #[test]
    fn a_stub_without_room_is_refused() {
        let mut stub = smallest();
        // The only section begins right after its header.
        let table = Layout::read(&stub).unwrap().table;
        put_u32(&mut stub, table + 20, u32::try_from(table + 80).unwrap());
        put_u32(&mut stub, table + 16, 0x10);
        assert_eq!(
            build(&parts(&stub)).unwrap_err(),
            Error::NoRoom { room: 1, wanted: 5 }
        );
    }

    /// binutils is the second opinion.
    #[test]
    fn objdump_reads_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("uki.efi");
        std::fs::write(&path, build(&parts(&smallest())).unwrap()).unwrap();
        let output = Command::new("objdump")
            .arg("-h")
            .arg(&path)
            .output()
            .expect("objdump is needed: make deps");
        let text = String::from_utf8(output.stdout).unwrap();
        let line = text.lines().find(|line| line.contains(".linux")).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(
            &words[1..4],
            [".linux", "0000000a", "0000000000005000"],
            "{text}"
        );
    }
}
