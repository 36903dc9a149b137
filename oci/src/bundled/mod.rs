//! Images that come in bundles ([`instar_bundle`]): gathered from registries, and taken from a bundle as from a registry.
//!
//! ```text
//! registry ─ gather ─► Gathered ─ write ─► a bundle ─ instar_bundle::verify ─► VerifiedBundle ─ resolve ─► ResolvedImage
//! a store ─ StoredBundle ─► the archive of a bundle, for another machine
//! ResolvedImage ─ Policy::verify_offline ─► Verified ─ import ─► VerifiedImage, without a registry
//! VerifiedBundle ─ keep_file ─► the file of an extension, as a blob ─ copy_file ─► whoever knows its digest
//! ```
//!
//! A signature is gathered wherever the search for signatures would look for it, whatever its key: the policy that judges it is that of the
//! machine that takes the bundle.

mod from_store;
mod gather;
mod import;
mod keep_file;
mod resolve;
mod signatures;
mod write;

pub use from_store::{StoredBundle, StoredBundleError, StoredWriteError};
pub use gather::{GatherError, Gathered};
pub use import::{Naming, import};
pub use keep_file::{KeepFileError, copy_file, keep_file, kept_files, kept_size};
pub use resolve::{BundledImageError, resolve};
pub use write::{BundleError, LocalFile, Target, write};
