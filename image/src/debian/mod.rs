//! Debian packages without touching the machine's own: apt resolves and fetches them with an apt state of its own, so
//! that every byte has passed apt's signature checks; then they are unpacked beside each other. Works as an ordinary
//! user.
//!
//! Lists in the repository name the versions and their digests; `image packages` renews them.

mod apt;
pub mod copyright;
mod mirror;
mod packages;
mod source;

pub use mirror::Mirror;
pub use packages::{Fetched, Package, Request, fetch, renew};
pub use source::{Missing, Source};
