//! Helpers that know nothing of the machine: files that are replaced whole, work with a limit away from the runtime, quotas, sealed memory, sizes,
//! the table of mounts, connections to one of several addresses, text that no terminal obeys.
//!
//! The decision: a helper gets here when a second crate needs it, under the name of the one thing that it does. A crate of utilities was the
//! other choice; it becomes a heap in which no helper is found again.

#![forbid(unsafe_code)]

pub mod address_order;
pub mod back_off;
pub mod blocking_io;
pub mod byte_size;
pub mod error_chain;
pub mod first_address;
pub mod lock;
pub mod mount_table;
pub mod printable;
mod process_exit;
pub mod quota;
pub mod removal;
pub mod sealed_json;
pub mod task;
pub mod whole_file;

pub use process_exit::Exit;
