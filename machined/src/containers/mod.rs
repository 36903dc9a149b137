//! Containers: [`ContainerSpec`] and a [`PulledImage`](crate::oci::PulledImage) → [`Runtime::start`] → [`RunningContainer`]. Images are the
//! crate `oci`'s.

mod disposition;
mod host_path;
mod in_force;
pub mod rootfs;
pub mod runtime;
pub mod spec;
mod tail;
mod volume;

pub use in_force::{ImageInForce, ImagesInForce, InForce};
pub use runtime::{RunningContainer, Runtime, RuntimeError, Streams};
pub use spec::{
    Capabilities, ContainerName, ContainerSpec, HostView, Mount, MountSource, NetworkMode, Profile,
    ResourceLimits, RunAs, SpecError,
};
