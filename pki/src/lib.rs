//! Certificates and roles of the machine API, and the client's configuration file.
//!
//! A machine has one [`CertificateAuthority`]. It signs the API server's certificate and those of clients, whose Organization
//! values are their [`Role`]s. The clock is always an argument.
//!
//! The decision: certificates are written here, with the few DER forms of [`der`]. A library that writes certificates was the other choice: the
//! available ones keep a subject as a map and so write at most one Organization, but a client may have several roles.

#![forbid(unsafe_code)]

mod authority;
mod certificate;
pub mod client_config;
pub mod der;
pub mod installer_signature;
mod kept;
mod key;
mod peer;
mod pem;
mod program_signature;
mod request;
mod role;
pub mod rootfs_signature;
mod sec1;
mod signature;
mod signed_part;

pub use authority::{AuthorityError, CertificateAuthority, IssuedCertificate};
pub use certificate::{CLOCK_TOLERANCE, SubjectName, ValidityError};
pub use kept::{KeptError, names_public_key, server_names, validity};
pub use key::{KeyError, PrivateKey};
pub use peer::{PeerError, client_roles, fingerprint_of, public_key_fingerprint};
pub use pem::{
    PemError, certificate_from_pem, certificate_to_pem, certificates_from_pem,
    private_key_from_pem, with_standard_label,
};
pub use program_signature::certificates_of_signature;
pub use request::{RequestError, ServerRequest, request_for_server};
pub use role::{Role, may_all, roles_from_list, roles_to_list};
pub use signature::is_signature;
pub use signed_part::{Sha, SignedPart};
