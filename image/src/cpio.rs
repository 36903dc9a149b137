//! The archive that the kernel unpacks at boot: cpio in the `newc` format (Documentation/driver-api/early-userspace/buffer-format.rst).

use std::io::{self, Write};

use crate::tree::{Content, Node, Tree};

const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const SYMLINK: u32 = 0o120_000;
const CHARACTER_DEVICE: u32 = 0o020_000;
const TRAILER: &str = "TRAILER!!!";

/// Writes the archive of a tree: every owner root, every time 0. Archives can be concatenated.
///
/// # Errors
/// A file of 4 GiB or more, or a failing `out`.
pub fn write(tree: &Tree, out: &mut impl Write) -> io::Result<()> {
    // Inode numbers only tie hard links together. There are no hard links, so each entry gets a number of its own.
    for (inode, (path, node)) in (1..).zip(tree.iter()) {
        write_entry(path, inode, node, out)?;
    }
    let trailer = Node {
        mode: 0,
        content: Content::File([].into()),
    };
    write_header(TRAILER, 0, 0, &trailer, 0, out)
}

fn write_entry(path: &str, inode: u32, node: &Node, out: &mut impl Write) -> io::Result<()> {
    let (kind, data): (u32, &[u8]) = match &node.content {
        Content::Directory => (DIRECTORY, &[]),
        Content::File(bytes) => (REGULAR, bytes),
        Content::Symlink(target) => (SYMLINK, target.as_bytes()),
        Content::CharacterDevice { .. } => (CHARACTER_DEVICE, &[]),
    };
    let size = u32::try_from(data.len()).map_err(|_| {
        io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("{path}: cpio holds files below 4 GiB"),
        )
    })?;
    write_header(path, inode, kind | node.mode, node, size, out)?;
    out.write_all(data)?;
    pad(data.len(), out)
}

fn write_header(
    path: &str,
    inode: u32,
    mode: u32,
    node: &Node,
    size: u32,
    out: &mut impl Write,
) -> io::Result<()> {
    let (major, minor) = match node.content {
        Content::CharacterDevice { major, minor } => (major, minor),
        _ => (0, 0),
    };
    let (uid, gid, links, mtime, disk_major, disk_minor, checksum) = (0, 0, 1, 0, 0, 0, 0);
    let name_size = path.len() + 1;
    write!(
        out,
        "070701{inode:08X}{mode:08X}{uid:08X}{gid:08X}{links:08X}{mtime:08X}{size:08X}\
         {disk_major:08X}{disk_minor:08X}{major:08X}{minor:08X}{name_size:08X}{checksum:08X}{path}\0"
    )?;
    const HEADER_BYTES: usize = 110;
    pad(HEADER_BYTES + name_size, out)
}

/// Pads to a multiple of four bytes, on which names and data end.
fn pad(written: usize, out: &mut impl Write) -> io::Result<()> {
    out.write_all(&[0; 3][..written.next_multiple_of(4) - written])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn an_entry_has_the_layout_that_the_kernel_reads() {
        let mut tree = Tree::new();
        tree.file("init", 0o755, *b"hello").unwrap();
        let mut archive = Vec::new();
        write(&tree, &mut archive).unwrap();
        let header = "070701\
            00000001000081ED0000000000000000000000010000000000000005\
            0000000000000000000000000000000000000005\
            00000000init\0\0";
        assert_eq!(String::from_utf8_lossy(&archive[..header.len()]), header);
        assert_eq!(header.len() % 4, 0);
        assert_eq!(&archive[header.len()..header.len() + 8], b"hello\0\0\0");
        assert_eq!(archive.len() % 4, 0);
    }

    /// GNU cpio is the second opinion.
    #[test]
    fn gnu_cpio_reads_devices_and_links() {
        let mut first = Tree::new();
        first.character_device("dev/console", 0o600, 5, 1).unwrap();
        first.symlink("sbin", "usr/sbin").unwrap();
        let mut archive = Vec::new();
        write(&first, &mut archive).unwrap();

        let mut cpio = Command::new("cpio")
            .args(["-itv", "--quiet", "--numeric-uid-gid"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the cpio program is needed: make deps");
        cpio.stdin.take().unwrap().write_all(&archive).unwrap();
        let listing = String::from_utf8(cpio.wait_with_output().unwrap().stdout).unwrap();
        let lines: Vec<_> = listing.lines().collect();
        assert_eq!(lines.len(), 3, "{listing}");
        assert!(lines[0].starts_with("drwxr-xr-x"), "{listing}");
        assert!(
            lines[1].starts_with("crw-------") && lines[1].contains("5,   1"),
            "{listing}"
        );
        assert!(
            lines[2].starts_with("lrwxrwxrwx") && lines[2].ends_with("sbin -> usr/sbin"),
            "{listing}"
        );
    }
}
