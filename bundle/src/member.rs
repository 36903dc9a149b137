//! The files of a bundle by their names.

use std::fmt;

use instar_values::Digest;

/// The name of a file of a bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Name {
    Layout,
    Index,
    Summary,
    Blob(Digest),
}

/// A file of a bundle: its name, and its size in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) name: Name,
    pub(crate) size: u64,
}

/// The content of the file `oci-layout`.
pub(crate) const LAYOUT: &[u8] = b"{\"imageLayoutVersion\":\"1.0.0\"}";

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Name::Layout => f.write_str("oci-layout"),
            Name::Index => f.write_str("index.json"),
            Name::Summary => f.write_str("instar-bundle.json"),
            Name::Blob(digest) => write!(f, "blobs/sha256/{}", digest.hex()),
        }
    }
}
