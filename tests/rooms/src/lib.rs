//! Reads the imports between a crate's modules, to check them against the order of its rooms.
//!
//! The decision: it reads text. The compiler's view was the other choice: it costs `make lint` a build of each crate, where this takes a second.
//! Text does not show a type that is used without its name, as a field or a result; an import does name a room. For the same second it has
//! no dependencies.

mod circle;
mod imports;
mod members;
mod tokens;

pub use circle::{Arrows, circle, told};
pub use imports::{Import, imports};
pub use members::{members, root};
