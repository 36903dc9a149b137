//! The limits that bound the memory of a reader.

/// Largest document, in bytes: a manifest, a config, a payload of a signature. Registries take up to 4 MiB; real ones have a few KiB.
pub const LARGEST_DOCUMENT: u64 = 1 << 20;
/// Largest blob, in bytes: the largest size that a tar header can hold.
pub const LARGEST_BLOB: u64 = (8 << 30) - 1;
/// Largest file of an extension, in bytes: the largest that is published, with Kubernetes, has some 100 MB.
pub const LARGEST_FILE: u64 = 2 << 30;
/// Limit on the blobs of a bundle.
pub(crate) const MOST_BLOBS: usize = 16 << 10;
/// Limit on the documents that index.json names.
pub(crate) const MOST_DOCUMENTS: usize = 2 << 10;
/// Limit on the files of extensions of a bundle: each of them is a thing that a machine has to decide about.
pub(crate) const MOST_FILES: usize = 64;
/// Limit on the layers of a manifest.
pub(crate) const MOST_LAYERS: usize = 256;
/// Longest build time of an image, in bytes: RFC 3339 with a fraction has some 35.
pub(crate) const LONGEST_TIME: usize = 64;
/// Limit on the text of a bundle in an error: it may be hostile.
const LONGEST_QUOTE: usize = 100;

/// Text of a bundle for an error, shortened.
pub(crate) fn quote(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.chars().take(LONGEST_QUOTE).collect()
}
