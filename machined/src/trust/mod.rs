//! The node's identity and the callers that it trusts: the certificate that apid shows, and the authorities of its callers.

mod ask_control_plane;
mod for_workers;
mod granted;
mod keys;
mod maintenance;
mod own_certificates;
mod remembered;
mod server_identity;
mod workers_port;

pub use ask_control_plane::{AskControlPlane, ControlPlane};
pub use for_workers::{ForWorkers, Lately, Refusal, Signed};
pub use granted::Granted;
pub use keys::Keys;
pub use maintenance::Maintenance;
pub use own_certificates::{OwnCertificates, if_readable};
pub use remembered::{Authorities, Remembered};
pub use server_identity::{KeepIdentity, Names, PinnedKey, Trust, own_names};
pub use workers_port::{WorkersPort, open_or_close};
