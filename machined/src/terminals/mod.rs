//! The terminals at which a person may stand: the machine's own screen with its keyboard, and serial consoles.

mod screen;
mod terminal;

pub use screen::{exists, shown};
pub use terminal::Terminal;
