//! Reads the imports between a crate's modules, to check them against the order of its rooms.
//!
//! It reads text and not the compiler's view: that costs `make lint` a second instead of a build of the crate. It
//! cannot see a type that is used without its name, as a field or a result; an import does name a room. It has no
//! dependencies, so that it compiles as quickly.

mod circle;
mod imports;
mod members;
mod tokens;

pub use circle::{Arrows, circle, told};
pub use imports::{Import, imports};
pub use members::{members, root};
