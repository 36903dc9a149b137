//! Values that several parts of the machine name alike: digests, references of images, kernel parameters.
//!
//! The decision: a value is checked when it is made, so one that exists is well formed, and no function checks it again. Text that each
//! function checks for itself was the other choice; it is checked twice where it does no harm and not at all where it does.

#![forbid(unsafe_code)]

pub mod digest;
mod image_reference;
mod kernel_parameter;
pub mod system_process;

pub use digest::Digest;
pub use image_reference::{ImageReference, ReferenceError};
pub use kernel_parameter::{KernelParameter, NotAParameter};
