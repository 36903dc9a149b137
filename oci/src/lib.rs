//! OCI images: from a name at a registry to an unpacked root filesystem in a store.
//!
//! [`ImageReference`](instar_values::ImageReference) → [`Puller::resolve`] → [`ResolvedImage`] → [`Puller::verify`] → [`Verified`] →
//! [`Puller::pull`] → [`VerifiedImage`], a [`PulledImage`] in the [`ImageStore`].
//!
//! The decision: layers go from the network straight into the unpacking, which never follows a path out of its own tree (openat2), and
//! nothing is run that was not checked against its digest. containerd's store was the other choice: a daemon beside the node, blobs stored
//! twice, and 30 MiB of memory on machines that have 256.

#![forbid(unsafe_code)]

pub mod bundled;
#[cfg(feature = "fuzzing")]
pub mod decoders;
pub mod manifest;
mod pull;
#[cfg(test)]
mod pull_tests;
pub mod registries;
pub mod registry;
pub mod store;
pub mod unpack;
pub mod verification;

pub use manifest::{ImageConfig, Layer};
pub use pull::{Progress, PullError, Puller};
pub use registries::Registries;
pub use registry::{RegistryError, ResolvedImage, Retries};
pub use store::{ImageStore, Incoming, NewImage, PulledImage, StoreError};
pub use unpack::{Limits, Ownership, UnpackError};
pub use verification::{Policy, Verified, VerifiedImage};
