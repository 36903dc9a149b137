//! OCI images and containers: from a name at a registry to a running process.
//!
//! Images: [`ImageReference`](crate::values::ImageReference) → [`Puller::resolve`] → [`ResolvedImage`] → [`Puller::pull`] → [`PulledImage`] in the
//! [`ImageStore`]. Containers: [`ContainerSpec`] and a [`PulledImage`] → [`Runtime::start`] → [`RunningContainer`].

mod disposition;
mod host_path;
mod in_force;
pub mod manifest;
mod pull;
#[cfg(test)]
mod pull_tests;
pub mod registries;
pub mod registry;
pub mod rootfs;
pub mod runtime;
pub mod spec;
pub mod store;
mod tail;
pub mod unpack;
mod volume;

pub use in_force::{ImageInForce, ImagesInForce, InForce};
pub use manifest::{ImageConfig, Layer};
pub use pull::{Progress, PullError, Puller};
pub use registries::{
    ClientIdentity, EndpointUrl, EndpointUrlError, Mirror, MirrorEndpoint, Registries,
    RegistryAuth, RegistryTls,
};
pub use registry::{RegistryError, ResolvedImage, Retries};
pub use runtime::{RunningContainer, Runtime, RuntimeError, Streams};
pub use spec::{
    Capabilities, ContainerName, ContainerSpec, HostView, Mount, MountSource, NetworkMode, Profile,
    ResourceLimits, RunAs, SpecError,
};
pub use store::{ImageStore, PulledImage, StoreError};
pub use unpack::{Limits, Ownership, UnpackError};
