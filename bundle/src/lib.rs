//! Bundles: images with their signatures in one file or one directory, for places without a registry.
//!
//! ```text
//! oci-layout                 always the same bytes
//! index.json                 the images by reference, the indexes that they were taken from, the manifests of signatures, files of
//!                            channels (lists of releases with their signatures), and files of extensions
//! instar-bundle.json         follows from index.json and the sizes: digest of index.json, number and bytes of blobs, architectures
//! blobs/sha256/<64 digits>   1. all documents that index.json names
//!                            2. what the manifests of signatures name: payloads, sigstore bundles
//!                            3. the images' configs
//!                            4. their layers, and the files of extensions; each group by digest, each blob once
//! ```
//!
//! A file is an uncompressed tar archive of these members in this order, a directory has them as files; both are OCI layouts, which other
//! tools for images read. The digest of index.json names the bundle: every other byte follows from it.
//!
//! Who reads knows each next header before it comes: the documents so far name what follows. So [`verify`] compares headers instead of
//! interpreting them, and one altered byte anywhere is refused with its place. Memory is bounded by the limits in `limits`, whatever a
//! bundle says of itself.
//!
//! [`Index`] → [`Plan`] → [`Writer`] makes a bundle; [`Files`] → [`verify`] → [`VerifiedBundle`] reads one; [`AsArchive`] sends either form.
//!
//! The decision: an OCI layout, whose bytes are a function of its images. An archive of a registry's own storage was the other choice: it
//! needs that registry to be read, its order is that of a directory, and no two are the same.

#![forbid(unsafe_code)]

mod archive;
mod as_archive;
mod bundled_file;
mod channel_file;
mod directory;
mod document;
mod fault;
mod files;
mod find;
mod index;
mod limits;
mod member;
mod pace;
mod plan;
mod root;
mod summary;
#[cfg(test)]
mod tests;
mod verify;
mod write;

pub use as_archive::AsArchive;
pub use bundled_file::{BundledFile, EMPTY_CONFIG, NotAFile};
pub use channel_file::{ChannelFile, ChannelPart};
pub use document::Description;
pub use fault::{Fault, Place, Refused};
pub use files::Files;
pub use find::{FOLDER, OnMedium, find, folder};
pub use index::{Image, Index, NotAnIndex, Platform, Signature};
pub use limits::{LARGEST_BLOB, LARGEST_DOCUMENT, LARGEST_FILE};
pub use plan::{Group, Plan, Planned};
pub use root::Document;
pub use summary::Summary;
pub use verify::{BlobReader, VerifiedBundle, verify};
pub use write::{WriteError, Writer, archive_bytes, has_bundle, remove_bundle};

/// The version of the format that is written and read.
pub const FORMAT: u64 = 1;
