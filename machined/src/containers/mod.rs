//! OCI images and containers: from a name at a registry to a running process.

pub mod digest;
pub mod manifest;
pub mod reference;
pub mod unpack;

pub use digest::Digest;
pub use manifest::{ImageConfig, Layer};
pub use reference::ImageReference;
pub use unpack::{Limits, Ownership, UnpackError};
