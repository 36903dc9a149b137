//! Why a bundle is refused, and where in it.

use std::fmt;
use std::io;

use instar_values::Digest;

use crate::index::{NotAnIndex, Platform};

/// A bundle that is refused.
#[derive(Debug, thiserror::Error)]
#[error("the bundle is refused at {place}")]
pub struct Refused {
    /// The place of the fault.
    pub place: Place,
    /// The fault.
    #[source]
    pub fault: Box<Fault>,
}

/// A place in a bundle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The file of the bundle, or a part of the archive.
    pub what: String,
    /// The offset in the archive, in bytes; none in a directory.
    pub at: Option<u64>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.at {
            Some(at) => write!(f, "byte {at} ({})", self.what),
            None => f.write_str(&self.what),
        }
    }
}

/// A defect of a bundle.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// It cannot be read.
    #[error("it cannot be read; copy it again")]
    Io(#[from] io::Error),
    /// It ends too early.
    #[error("it is incomplete: it ends here; copy it again")]
    Incomplete,
    /// A file is missing in the directory.
    #[error("it is incomplete: the file is missing; copy it again")]
    Missing,
    /// The archive ends where a member has to be.
    #[error("it is incomplete: {0} has to be here, and the archive ends; copy it again")]
    Lacks(String),
    /// The header of a member is not the one that follows from the documents before it.
    #[error(
        "it is altered: the header is not that of {expected}, which has to be here; the header names {found:?}"
    )]
    Header {
        /// The member that has to be here.
        expected: String,
        /// The name in the header.
        found: String,
    },
    /// There is no bundle at all.
    #[error("it is no bundle: it does not begin as the bundles of instarctl do")]
    NotABundle,
    /// Bytes that have to be zero are not.
    #[error("it is altered: a byte that has to be zero is not")]
    NotZero,
    /// There is more after the end.
    #[error("it is altered: there are more bytes after its end")]
    Surplus,
    /// A file in the directory that the bundle does not name.
    #[error("it is altered: it does not name the file {0:?}")]
    Stranger(String),
    /// A file has another size.
    #[error("it is altered or incomplete: the file has {found} bytes instead of {expected}")]
    Size {
        /// The size that the documents name.
        expected: u64,
        /// The file's size.
        found: u64,
    },
    /// A file is no regular file.
    #[error("it is altered: this is no regular file")]
    NotAFile,
    /// The content has another digest than its name.
    #[error("it is altered: the content has the digest {0}")]
    Digest(Digest),
    /// A file whose content follows from the others has another content.
    #[error("it is altered: the content is not the one that follows from the rest of the bundle")]
    Content,
    /// index.json and the summary do not belong together.
    #[error("it is altered: instar-bundle.json is not about this index.json")]
    OtherIndex,
    /// The summary is of a newer format.
    #[error(
        "it has the format {0}, this program reads format {own}; use a newer version",
        own = crate::FORMAT
    )]
    Format(u64),
    /// index.json is not as it would be written.
    #[error("index.json is not one of a bundle")]
    Index(#[from] Box<NotAnIndex>),
    /// A document is not JSON, or lacks fields.
    #[error("the {what} cannot be read")]
    Json {
        /// The kind of document.
        what: &'static str,
        /// The error with its position.
        source: serde_json::Error,
    },
    /// An index does not name an image that is said to be from it.
    #[error("the index does not name the image {0}, which is said to be from it")]
    NotOfIndex(Digest),
    /// The config is for another platform than index.json says.
    #[error("the config is for {found}, but index.json says {expected}")]
    Platform {
        /// The platform of index.json.
        expected: Platform,
        /// The platform of the config.
        found: String,
    },
    /// Two documents name a blob with different sizes.
    #[error("the blob {digest} is named with {one} bytes and with {other}")]
    TwoSizes {
        /// The blob.
        digest: Digest,
        /// One of the sizes.
        one: u64,
        /// The other one.
        other: u64,
    },
    /// Something is larger than the limit.
    #[error("{digest} has {size} bytes; at most {limit} are taken here")]
    TooLarge {
        /// The blob.
        digest: Digest,
        /// Its size in bytes.
        size: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// A file of metadata is larger than the limit.
    #[error("it has {size} bytes; at most {limit} are taken")]
    MetadataTooLarge {
        /// Its size in bytes.
        size: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// There are more of something than the limit.
    #[error("there are {count} {what}; at most {limit} are taken")]
    TooMany {
        /// Plural of the thing.
        what: &'static str,
        /// Their number.
        count: usize,
        /// The limit.
        limit: usize,
    },
}

impl Fault {
    /// Whether the bundle is cut off rather than altered: the rest of it may still come.
    pub fn is_incomplete(&self) -> bool {
        match self {
            Fault::Incomplete | Fault::Missing | Fault::Lacks(_) => true,
            Fault::Size { expected, found } => found < expected,
            _ => false,
        }
    }

    /// Adds the place.
    pub(crate) fn at(self, place: Place) -> Refused {
        Refused {
            place,
            fault: Box::new(self),
        }
    }
}
