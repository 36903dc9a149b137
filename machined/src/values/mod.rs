//! Values that several domains name alike: each is checked when it is made, so one that exists is well formed.

pub mod digest;
mod image_reference;
mod kernel_parameter;

pub use digest::Digest;
pub use image_reference::{ImageReference, ReferenceError};
pub use kernel_parameter::{KernelParameter, NotAParameter};
