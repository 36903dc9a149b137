//! The protocol between init and machined: version 1, as `docs/contracts.md` fixes it.
//!
//! One packet of a SEQPACKET socket is one message: UTF-8 lines, at most [`MAX_PACKET`] bytes. The first line is
//! `instar 1 VERB`, the others are `key value` in any order. Unknown keys are ignored; an unknown verb or another
//! version is an error. Descriptors go with a packet by SCM_RIGHTS.
//!
//! Every value that a message holds fits on one line and has a bounded length, so a message that exists can always be
//! encoded: [`Request::encode`] and [`Reply::encode`] cannot fail.
//!
//! This version has to serve for years: the init of a machine stays while its generations change.
//!
//! The decision: lines of text, encoded by hand. A serialisation library was the other choice: PID 1 would hold its code for years, and its
//! messages could be read by programs alone.

#![forbid(unsafe_code)]

mod message;
mod packet;
mod socket;
mod values;

pub use message::{NextGeneration, Reply, Request, Welcome};
pub use packet::ParseError;
pub use rustix::net::{RecvFlags, SendFlags};
pub use socket::{receive, send};
pub use values::{
    Blake3, BootId, Domain, End, ErrorCode, FdName, InvalidValue, Line, Scope, StartReason,
    Workloads,
};

/// The version that this crate speaks.
pub const VERSION: u32 = 1;

/// The longest packet, in bytes.
pub const MAX_PACKET: usize = 4096;

/// The longest [`Line`], in bytes. The longest message (a `welcome` with 64 kept names) still fits into a packet.
pub const MAX_LINE: usize = 512;

/// Limit on the descriptors that init keeps for machined, all scopes together.
pub const MAX_KEPT: usize = 64;

/// The longest time, in seconds, that init waits after a `next` for machined to finish its work.
pub const MAX_FINISH: u32 = 5;

/// machined's end of the socket.
pub const SOCKET_FD: i32 = 3;

#[cfg(test)]
mod tests;
