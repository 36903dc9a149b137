//! A page that shows rollouts as they go, and takes the commands of people: pause, approve, roll back and the others.
//!
//! ```text
//!   browser ── GET /, /page.css, /page.js ──► the same files for everybody: they show nothing of a fleet
//!           ── GET /rollouts ──────────────► a line of JSON at once, and one whenever something changes
//!           ── POST /commands ─────────────► one command
//! ```
//!
//! - [`Rollouts`]: where the rollouts are, and who may come in: a folder of `instarctl fleet`, or a cluster.
//! - [`View`]: all that is shown of one rollout.
//! - [`serve()`]: the server.
//!
//! # The key decision: a token behind the # of the address
//!
//! The address of the page ends in `#TOKEN`, which a browser sends to no server by itself; the page's script sends it with each request. So no
//! other site can make a visitor's browser send commands, nor can a name that is made to lead here. What a token is good for is the decision of
//! the rollouts: a folder has one [`Key`], and who knows it may do everything; in a cluster it is a token of the cluster, with the rights of
//! its bearer. Names and passwords of people were the other choice: they need a place to keep them, which neither has.
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

/// The rollouts that a page shows, and their door.
pub trait Rollouts: 'static {
    /// Who was let in.
    type Visitor: Visitor;

    /// Lets in who has this token.
    ///
    /// # Errors
    /// The token is not a good one.
    fn enter(&self, token: &str) -> Result<Self::Visitor, Denied>;
}

/// Who was let in.
pub trait Visitor: 'static {
    /// The rollouts as they go.
    type Views: Views;

    /// Begins to watch the rollouts.
    fn watch(&self) -> impl Future<Output = Result<Self::Views, Denied>>;

    /// Carries out a command on the rollout of this name.
    fn command(&self, rollout: &str, command: Command) -> impl Future<Output = Result<(), Denied>>;
}

/// The rollouts as they go.
pub trait Views: 'static {
    /// Returns all rollouts as they are: at once the first time, later when they may have changed. Nothing is lost if the future is dropped. An
    /// error is a sentence for the visitor, and the next call tries again.
    fn next(&mut self) -> impl Future<Output = Result<Vec<View>, String>>;
}

/// Why a visitor does not get what was asked for: a sentence for the visitor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Denied {
    /// Nobody knows this visitor.
    Unknown(String),
    /// This visitor may not do this.
    Forbidden(String),
    /// It cannot be done now.
    Impossible(String),
}
