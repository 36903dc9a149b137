//! The dashboard: what nodes are and do, on a terminal of text.
//!
//! Three parts that know nothing of each other: [`feed`] asks nodes and tells [`Update`]s, [`Screen`] is what is known and what is
//! looked at, [`view`] draws it. The first talks to the network, the other two are values and functions of them, so that a test can
//! show any situation on any size of terminal. [`run`] ties them to a terminal and its keys.
//!
//! The decision: drawing is a function of a value. Widgets that ask for their own data and keep it were the other choice: what they show
//! depends on when they were answered, so only a terminal and a node together could test it.

#![forbid(unsafe_code)]

mod feed;
mod known;
mod log;
mod run;
mod screen;
mod series;
mod terminal;
mod view;

pub use known::{Update, Watched};
pub use run::{Error, Keys, run};
pub use terminal::Look;
