//! Where the machine config comes from: which source there is, fetching from a server, the copy on STATE. What it says is the business of
//! the crate `instar-config`.

pub mod fetch;
#[cfg(test)]
mod fetch_tests;
pub mod persisted;
pub mod source;

pub use source::Secrets;
