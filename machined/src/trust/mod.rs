//! Who the node is and whom it believes: the certificate that apid shows, and the authorities of its callers.

mod server_identity;

pub use server_identity::{KeepIdentity, Names, Trust};
