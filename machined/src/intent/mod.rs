//! The machine config translated into specs in each domain's own terms.
//!
//! The config does not know the domains and they do not know the config; only this module knows both.

mod check;
mod client_configuration;
mod container;
mod disk;
mod gate;
mod granted_certificate;
mod kept;
mod kernel;
mod known_identity;
mod link_warnings;
mod network;
pub mod next_config;
mod node_certificate;
mod registries;
mod remember_trust;
mod time;
mod trust;

pub use check::check;
pub use client_configuration::{ClientFiles, NewClient, NewClientError, client_configuration};
pub use container::{end_living_containers, end_unnamed_containers, living_service, service};
use disk::disk;
pub use disk::{disk_on_command_line, disk_to_own};
pub use gate::gate_probes;
pub use kept::kept_by;
pub use kernel::kernel;
pub use link_warnings::link_warnings;
pub use network::network;
pub use node_certificate::{
    CertificateStanding, GrantError, certificate_standing, grant_certificate, show_request,
};
pub use registries::{puller, puller_at_pace, puller_with_credentials, trust as trusted_servers};
pub use remember_trust::remember_trust;
pub use time::time;
pub use trust::{accepted_authorities, authorities_made, for_workers, keep_identity};
