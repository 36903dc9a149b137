//! The dashboard: shows the state of nodes on a text terminal.
//!
//! Three parts that know nothing of each other: [`feed`] asks nodes and sends [`Update`]s, [`Screen`] is the known state and the user's
//! selection, [`view`] draws it. The first talks to the network, the other two are values and functions of them, so that a test can show
//! any situation on any size of terminal. [`run`] connects them to a terminal and its keys.
//!
//! The decision: drawing is a function of a value. Widgets that ask for their own data and keep it were the other choice: their content
//! depends on the time of the answers, so only a terminal and a node together could test it.

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
