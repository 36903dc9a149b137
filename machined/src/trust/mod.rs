//! The node's identity and the callers that it trusts: the certificate that apid shows, and the authorities of its callers.

mod keys;
mod maintenance;
mod own_certificates;
mod remembered;
mod server_identity;

pub use keys::Keys;
pub use maintenance::Maintenance;
pub use own_certificates::{OwnCertificates, if_readable};
pub use remembered::{Authorities, Remembered};
pub use server_identity::{KeepIdentity, Names, PinnedKey, Trust};
