//! The node's identity and the callers that it trusts: the certificate that apid shows, and the authorities of its callers.

mod ask_control_plane;
mod by_hand;
mod control_plane;
mod for_workers;
mod granted;
mod issuer;
mod keys;
mod maintenance;
mod own_certificates;
mod ports;
mod remembered;
mod server_identity;

pub use ask_control_plane::AskControlPlane;
pub use by_hand::{NotGranted, Own, concern, grant};
pub use control_plane::ControlPlane;
pub use for_workers::{ForWorkers, Lately, Refusal, Signed};
pub use granted::Granted;
pub use keys::Keys;
pub use maintenance::Maintenance;
pub use own_certificates::OwnCertificates;
pub use ports::{MetricsPort, MetricsSpec, WorkersPort, follow_metrics, follow_workers};
pub use remembered::{Authorities, Remembered};
pub use server_identity::{KeepIdentity, Names, PinnedKey, Trust, own_names, request};
