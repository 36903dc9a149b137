//! Debian packages without touching the machine's own: resolved and fetched by apt with an apt state of its own, so that
//! every byte passed apt's signature checks, then unpacked beside each other. Works as an ordinary user.
//!
//! What was resolved is kept: later builds take the same versions, from the cache, without a network.

mod apt;
pub mod copyright;
mod mirror;
mod packages;

pub use mirror::Mirror;
pub use packages::{Fetched, Package, Request, fetch};
