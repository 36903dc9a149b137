//! A page that shows rollouts as they go, and takes the commands of people: pause, approve, roll back and the others.
//!
//! ```text
//!   browser ── GET /, /page.css, /page.js ──► the same files for everybody: they show nothing of a fleet
//!           ── GET /rollouts ──────────────► a line of JSON at once, and one whenever something changes
//!           ── POST /commands ─────────────► one command
//! ```
//!
//! - [`Rollouts`]: where the rollouts are: a folder of `instarctl fleet`, or a cluster.
//! - [`View`]: all that is shown of one rollout.
//! - [`serve()`]: the server.
//!
//! # The key decision: who knows the key may do everything
//!
//! The address of the page ends in `#KEY`, which a browser sends to no server by itself; the page's script sends it with each request. So no
//! other site can make a visitor's browser send commands, nor can a name that is made to lead here. Names and passwords of people were the
//! other choice: they need TLS and a place to keep them, which a command that runs for an evening has not.
//!
//! The page is three files without a build step. A framework would be larger than all of this, and another thing to keep up to date.

#![forbid(unsafe_code)]

mod key;
mod serve;
mod view;

use std::future::Future;

pub use instar_rollout::Command;
pub use key::Key;
pub use serve::serve;
pub use view::{MachineView, Seen, SeenMachine, View};

/// The rollouts that a page shows.
pub trait Rollouts: 'static {
    /// Returns all rollouts as they are now; an error is a sentence for the visitor.
    fn views(&self) -> impl Future<Output = Result<Vec<View>, String>>;

    /// Carries out a command on the rollout of this name; an error is a sentence for the visitor.
    fn command(&self, rollout: &str, command: Command) -> impl Future<Output = Result<(), String>>;
}
