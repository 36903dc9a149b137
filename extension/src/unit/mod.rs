//! Units as services: what a unit and its drop-ins ask for, as far as machined serves it.
//!
//! Text becomes sections and assignments (`syntax`), these one service (`service`), whose commands are words with variables and
//! specifiers (`words`).

mod service;
mod syntax;
mod words;

pub use service::{KillMode, Limit, Restart, ServiceKind, ServiceUnit, Unserved};
pub use words::Command;

pub use syntax::NotAUnit;
pub(crate) use syntax::{Assignment, parse};
