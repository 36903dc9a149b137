//! Values that several domains name alike: each is checked when it is made, so one that exists is well formed.

pub mod digest;
mod image_reference;

pub use digest::Digest;
pub use image_reference::{ImageReference, ReferenceError};
