//! Reads which modules a crate imports from itself, to hold its rooms against their order.
//!
//! It reads text and not the compiler's view: that costs `make lint` a second instead of a build of the crate. What it
//! cannot see is a type that arrives without its name, as a field or a result; naming rooms is what an import does.
//! It has no dependencies, so that it compiles as quickly.

mod imports;
mod tokens;

pub use imports::{Import, imports};
