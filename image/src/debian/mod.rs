//! Debian packages without touching the machine's own: resolved and fetched by apt with an apt state of its own, so that
//! every byte passed apt's signature checks, then unpacked beside each other. Works as an ordinary user.
//!
//! Which versions, with which digests, is written in lists in the repository; `image packages` renews them.

mod apt;
pub mod copyright;
mod mirror;
mod packages;
mod source;

pub use mirror::Mirror;
pub use packages::{Fetched, Package, Request, fetch, renew};
pub use source::{Missing, Source};
