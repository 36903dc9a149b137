//! OCI images: from a name at a registry to an unpacked root filesystem in a store.
//!
//! [`ImageReference`](instar_values::ImageReference) → [`Puller::resolve`] → [`ResolvedImage`] → [`Puller::verify`] → [`Verified`] →
//! [`Puller::pull`] → [`VerifiedImage`], a [`PulledImage`] in the [`ImageStore`].
//!
//! The decision: layers are unpacked while they arrive, by code that never follows a path out of its own tree (openat2), and nothing is run
//! that was not checked against its digest. On a disk their blobs are kept, so that an image can be made again without its registry.
//! containerd's store was the other choice: a daemon beside the node, and 30 MiB of memory on machines that have 256.

#![forbid(unsafe_code)]

pub mod blobs;
pub mod bundled;
#[cfg(feature = "fuzzing")]
pub mod decoders;
mod files;
pub mod local_image;
pub mod manifest;
mod objects;
mod pull;
#[cfg(test)]
mod pull_tests;
pub mod registries;
pub mod registry;
mod seal;
pub mod store;
mod store_error;
mod time_of_change;
pub mod unpack;
pub mod verification;

pub use blobs::{Blobs, CheckedBlob, HeldBlobs, IncomingBlob, Receiving, StoredBlob};
pub use files::{file_of, image_of_file, name_of_file, take_file};
pub use manifest::{ImageConfig, Layer, base_variant};
pub use pull::{Progress, PullError, Puller, import, room_for_all};
pub use registries::Registries;
pub use registry::{Pace, RegistryError, ResolvedImage, Retries};
pub use store::{
    ImageStore, Incoming, Keeps, NewImage, NoRoom, PulledImage, RoomForAll, StoreError, Urgency,
    Wholeness, reserve_of,
};
pub use unpack::{Limits, Ownership, UnpackError};
pub use verification::{Policy, Unjudged, Verified, VerifiedImage};
