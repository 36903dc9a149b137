//! Extensions of the machine itself.

use super::{ExtensionFile, ImageReference};

/// An extension of the machine itself: it adds files to the machine's `/usr`, or to its `/etc`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OsExtension {
    /// Its name, the same as in its release file.
    pub name: String,
    /// Where it comes from.
    pub source: OsExtensionSource,
}

/// The source of an extension of the machine itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OsExtensionSource {
    /// An image whose files are the extension.
    Image(ImageReference),
    /// A squashfs with the files of the extension, as sysexts and confexts are published.
    File(ExtensionFile),
}

impl std::fmt::Display for OsExtensionSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Image(image) => image.fmt(f),
            Self::File(file) => file.url.fmt(f),
        }
    }
}
