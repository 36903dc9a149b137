//! The machine's one HTTP client: for registries, config servers and health checks.
//!
//! Every wait has a limit: for a name, a connection, a handshake, the head of an answer, the time between two pieces of it, and how slowly
//! they may come. Every answer is read up to a size that the caller names. A request that went out over TLS is never sent on without it,
//! and a server elsewhere cannot redirect the machine to itself or to its own link, where clouds keep credentials.
//!
//! The decision: one request per connection over hyper and rustls, without a pool. A node sends few requests to few servers; it needs
//! limits at each step, TLS settings for each host, and proxies. A client library with a pool (reqwest, hyper-util's own) was the other
//! choice: it has none of these limits, and adds 2 MB to the root filesystem.

#![forbid(unsafe_code)]

mod answer;
mod client;
mod error;
mod place;
mod proxies;
mod tls;

pub use answer::{Answer, SLOWEST};
pub use client::{Body, Client, Request};
pub use error::HttpError;
pub use place::Place;
pub use proxies::{BadProxy, Proxies};
pub use tls::{SYSTEM_BUNDLE, TlsError, Trust, client_config};
