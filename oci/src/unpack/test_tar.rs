//! Archives for tests, good and malicious, written header by header: tools refuse to write the malicious ones.

use std::io::Write;

use crate::manifest::Layer;
use instar_values::Digest;

/// Builds an archive.
#[derive(Default)]
pub(crate) struct TarBuilder {
    bytes: Vec<u8>,
}

/// The header of an entry; other fields have defaults.
pub(crate) struct TestEntry<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) kind: u8,
    pub(crate) link: &'a [u8],
    pub(crate) content: &'a [u8],
    pub(crate) mode: u32,
    pub(crate) owner: (u32, u32),
    pub(crate) mtime: u64,
    /// The size in the header, if it is to be wrong.
    pub(crate) size: Option<u64>,
}

impl Default for TestEntry<'_> {
    fn default() -> Self {
        TestEntry {
            name: b"",
            kind: b'0',
            link: b"",
            content: b"",
            mode: 0o644,
            owner: (0, 0),
            mtime: 1,
            size: None,
        }
    }
}

impl TarBuilder {
    pub(crate) fn entry(mut self, entry: TestEntry<'_>) -> Self {
        let mut header = [0_u8; 512];
        let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &entry.name[..entry.name.len().min(100)]);
        put(100, format!("{:07o}", entry.mode).as_bytes());
        put(108, format!("{:07o}", entry.owner.0).as_bytes());
        put(116, format!("{:07o}", entry.owner.1).as_bytes());
        put(
            124,
            format!("{:011o}", entry.size.unwrap_or(entry.content.len() as u64)).as_bytes(),
        );
        put(136, format!("{:011o}", entry.mtime).as_bytes());
        put(148, b"        ");
        put(156, &[entry.kind]);
        put(157, &entry.link[..entry.link.len().min(100)]);
        put(257, b"ustar\x0000");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.bytes.extend_from_slice(&header);
        self.bytes.extend_from_slice(entry.content);
        self.bytes.resize(self.bytes.len().next_multiple_of(512), 0);
        self
    }

    pub(crate) fn file(self, name: &str, content: &[u8]) -> Self {
        self.entry(TestEntry {
            name: name.as_bytes(),
            content,
            ..TestEntry::default()
        })
    }

    pub(crate) fn directory(self, name: &str) -> Self {
        self.entry(TestEntry {
            name: name.as_bytes(),
            kind: b'5',
            mode: 0o755,
            ..TestEntry::default()
        })
    }

    pub(crate) fn symlink(self, name: &str, target: &str) -> Self {
        self.entry(TestEntry {
            name: name.as_bytes(),
            kind: b'2',
            link: target.as_bytes(),
            mode: 0o777,
            ..TestEntry::default()
        })
    }

    pub(crate) fn hard_link(self, name: &str, target: &str) -> Self {
        self.entry(TestEntry {
            name: name.as_bytes(),
            kind: b'1',
            link: target.as_bytes(),
            ..TestEntry::default()
        })
    }

    /// A pax header for the next entry.
    pub(crate) fn pax(self, records: &[(&str, &[u8])]) -> Self {
        let mut content = Vec::new();
        for (key, value) in records {
            let rest = key.len() + value.len() + 3;
            let mut length = rest + 1;
            while length != rest + length.to_string().len() {
                length = rest + length.to_string().len();
            }
            content.extend_from_slice(format!("{length} {key}=").as_bytes());
            content.extend_from_slice(value);
            content.push(b'\n');
        }
        self.entry(TestEntry {
            name: b"PaxHeader",
            kind: b'x',
            content: &content,
            ..TestEntry::default()
        })
    }

    /// The archive, with its end mark.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.bytes.extend_from_slice(&[0; 1024]);
        self.bytes
    }
}

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder
        .write_all(bytes)
        .and_then(|()| encoder.finish())
        .unwrap_or_default()
}

pub(crate) fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 1).unwrap_or_default()
}

/// The true description of a blob.
pub(crate) fn describe(blob: &[u8], unpacked: &[u8]) -> Layer {
    Layer {
        digest: Digest::of(blob),
        size: blob.len() as u64,
        diff_id: Digest::of(unpacked),
    }
}
