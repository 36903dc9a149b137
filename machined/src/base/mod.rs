//! What every room may use: it knows nothing of the machine.

pub(crate) mod blocking_io;
pub(crate) mod error_chain;
mod process_exit;
pub mod quota;
pub(crate) mod sealed_json;
pub(crate) mod whole_file;

pub use process_exit::Exit;
