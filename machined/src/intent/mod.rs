//! What the machine config means for each domain: its model translated into the domains' own words.
//!
//! The config knows nothing of the domains and they know nothing of it; this is the one place that knows both.

mod check;
mod client_configuration;
mod container;
mod disk;
mod gate;
mod kernel;
mod network;
mod registries;
mod remember_trust;
mod time;
mod trust;

pub use check::check;
pub use client_configuration::{ClientFiles, NewClient, NewClientError, client_configuration};
pub use container::{end_unnamed_containers, living_service, service};
pub use disk::disk;
pub use gate::gate_probes;
pub use kernel::kernel;
pub use network::network;
pub use registries::puller;
pub use remember_trust::remember_trust;
pub use time::time;
pub use trust::{accepted_authorities, authorities_made, keep_identity};
