//! Values that several parts of the machine share: names, digests, references of images, quantities, addresses, selectors.
//!
//! The decision: a value is checked when it is made, so every value is well formed, and no function checks it again. Text that each
//! function checks for itself was the other choice; it is checked twice in harmless places and not at all in the harmful one. A type that
//! both the machine config and a domain use is here once, so that no code translates between two of the same.

#![forbid(unsafe_code)]

mod bandwidth;
mod cidr;
pub mod config_argument;
mod container;
pub mod digest;
mod disk_selector;
mod image_reference;
mod image_rule;
mod kernel_parameter;
mod log_destination;
mod name;
mod network;
mod public_key;
pub mod quantity;
mod registry;
mod release_tag;
mod revision;
mod secret;
mod system;
pub mod system_process;
mod text_form;
mod tls;
pub mod version;
mod version_ranges;
mod window;

pub use bandwidth::{Bandwidth, NotABandwidth};
pub use cidr::{Cidr, NotACidr};
pub use container::{
    Capabilities, CheckTarget, ContainerNetwork, HealthProbe, Mount, MountOption, MountSource,
    SecurityProfile,
};
pub use digest::Digest;
pub use disk_selector::{
    Comparison, DiskFields, DiskKind, DiskSelector, NotASizeCondition, SizeCondition,
};
pub use image_reference::{ImageReference, ReferenceError};
pub use image_rule::{ImagePattern, ImageRule, RuleEffect};
pub use kernel_parameter::{KernelParameter, NotAParameter};
pub use log_destination::{LogContent, LogDestination, LogEndpoint, LogTransport, NotALogEndpoint};
pub use name::{
    AbsolutePath, BadName, ContainerName, HostPort, Hostname, HttpUrl, LinkName, MachineName,
    RegistryHost, TimeServer, VolumeName,
};
pub use network::{HostnamePolicy, RouteSpec, StaticHost};
pub use public_key::{KeyAlgorithm, NotAKey, PublicKey};
pub use quantity::{ByteSize, Millicores, NotAQuantity};
pub use registry::{
    EndpointUrl, EndpointUrlError, Mirror, MirrorEndpoint, RegistryAuth, server_of,
};
pub use release_tag::{Contradiction, Level, NotAReleaseTag, ReleaseTag};
pub use secret::Secret;
pub use system::{EtcFile, KernelModule};
pub use tls::{ClientIdentity, HostTls};
pub use version::{NotAVersion, Version};
pub use version_ranges::{NotRanges, VersionRanges};
pub use window::{BadLength, NotAWindow, Openness, TimeOfDay, UtcOffset, Weekday, Window};
