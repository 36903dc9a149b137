//! A small initramfs: the kernel's `newc` archive (Documentation/driver-api/early-userspace/buffer-format.rst).

/// An archive under construction.
#[derive(Debug, Default)]
pub struct Initramfs {
    bytes: Vec<u8>,
    entries: u32,
}

/// An entry of the archive.
struct Entry<'a> {
    name: &'a str,
    mode: u32,
    device: (u32, u32),
    content: &'a [u8],
}

const DIRECTORY: u32 = 0o040_000;
const CHARACTER_DEVICE: u32 = 0o020_000;
const FILE: u32 = 0o100_000;

impl Initramfs {
    /// Returns an archive with the console, the kernel's log and a directory for /proc.
    pub fn new() -> Self {
        Self::default()
            .directory("dev")
            .directory("proc")
            .character_device("dev/console", 5, 1)
            .character_device("dev/kmsg", 1, 11)
    }

    /// Adds a program.
    pub fn program(self, name: &str, content: &[u8]) -> Self {
        self.entry(&Entry {
            name,
            mode: FILE | 0o755,
            device: (0, 0),
            content,
        })
    }

    /// Adds a file.
    pub fn file(self, name: &str, content: &[u8]) -> Self {
        self.entry(&Entry {
            name,
            mode: FILE | 0o644,
            device: (0, 0),
            content,
        })
    }

    fn directory(self, name: &str) -> Self {
        self.entry(&Entry {
            name,
            mode: DIRECTORY | 0o755,
            device: (0, 0),
            content: &[],
        })
    }

    fn character_device(self, name: &str, major: u32, minor: u32) -> Self {
        self.entry(&Entry {
            name,
            mode: CHARACTER_DEVICE | 0o600,
            device: (major, minor),
            content: &[],
        })
    }

    fn entry(mut self, entry: &Entry<'_>) -> Self {
        self.entries += 1;
        let length = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let links = if entry.mode & DIRECTORY == 0 { 1 } else { 2 };
        let fields = [
            self.entries,
            entry.mode,
            0, // uid
            0, // gid
            links,
            0, // mtime
            length(entry.content.len()),
            0, // device of the file: major, minor
            0,
            entry.device.0,
            entry.device.1,
            length(entry.name.len() + 1),
            0, // checksum, not used
        ];
        self.bytes.extend(b"070701");
        for field in fields {
            self.bytes.extend(format!("{field:08X}").bytes());
        }
        self.bytes.extend(entry.name.bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(entry.content);
        self.pad();
        self
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    /// Returns the finished archive.
    pub fn finish(self) -> Vec<u8> {
        self.entry(&Entry {
            name: "TRAILER!!!",
            mode: 0,
            device: (0, 0),
            content: &[],
        })
        .bytes
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_entry_is_aligned_and_found_again() {
        let archive = Initramfs::new().program("init", b"12345").finish();
        let text = String::from_utf8_lossy(&archive);
        let starts: Vec<_> = text.match_indices("070701").map(|(at, _)| at).collect();
        assert_eq!(starts.len(), 6);
        assert!(starts.iter().all(|at| at % 4 == 0));
        let header = &text[starts[4]..];
        assert_eq!(&header[54..62], "00000005", "size");
        assert_eq!(&header[110..115], "init\0");
        assert_eq!(&header[116..121], "12345");
        assert_eq!(archive.len() % 4, 0);
    }
}
