//! The sources of the machine config: choosing one, fetching from a server, and the copy on STATE. The crate `instar-config`
//! parses the config.

pub mod fetch;
#[cfg(test)]
mod fetch_tests;
pub mod persisted;
pub mod source;

pub use source::Secrets;
