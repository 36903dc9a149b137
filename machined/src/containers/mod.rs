//! Containers: [`ContainerSpec`] and a [`PulledImage`](crate::oci::PulledImage) → [`Runtime::start`] → [`RunningContainer`]. Images are the
//! crate `oci`'s.

mod disposition;
mod exec_program;
pub mod host_files;
mod host_path;
mod identity;
mod image_digests;
mod in_force;
mod keepable;
#[cfg(test)]
pub(crate) mod registry_for_tests;
mod reserve;
pub mod rootfs;
pub mod runtime;
mod sameness;
pub mod spec;
mod tail;
pub mod update;
mod updates;
mod volume;
mod wrong_tag;

pub use identity::Identity;
pub use image_digests::ImageDigests;
pub use in_force::{ImageInForce, ImagesInForce, InForce, Named};
pub use keepable::{NotKeepable, keepable, mounts_are_keepable, no_foreign_devices};
pub use runtime::{Record, RunningContainer, Runtime, RuntimeError, Streams};
pub use sameness::Described;
pub use spec::{ContainerSpec, HostView, ResourceLimits, RunAs, SpecError};
pub use tail::Tail;
pub use updates::{ImageUpdate, ImageUpdates, Look, Updates};
pub use wrong_tag::{Held, check_tag};
