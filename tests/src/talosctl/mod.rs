//! talosctl as recorded from two releases: each command's requests, by field number, the parts of the answers that it
//! needs, and its output. Where the recorded client crashes, this one reports that and ends with exit code 2.
//!
//! ```text
//! talosctl.run("get members")  ─►  Version, State/List(definitions), State/List(members)  ─►  a table, an exit code
//! ```
//!
//! Unlike the recorded client it keeps its connection: a handshake takes an emulated machine half a second.

mod commands;
mod config;
mod dashboard;
mod files;
mod images;
mod resources;
mod rotate;
mod screen;
mod session;
mod support;
mod tag;
mod tracked;
mod upgrade;
mod wait;
mod wire;

use anyhow::Result;

use crate::identity::Identity;
use crate::instarctl::Said;
use crate::node::Node;
use screen::{Screen, Stop};
use session::Session;

pub use rotate::rotate_ca;
pub use session::Release;
pub use tracked::{Followed, reboot_and_follow, upgrade_and_follow};
pub use upgrade::{Prepared, prepare_upgrade};
pub use wait::{Ending, First};
pub use wire::Fields;

/// The client and its node.
#[derive(Debug)]
pub struct Talosctl<'a> {
    node: &'a Node,
    identity: &'a Identity,
    session: Session,
}

/// The words of a command after its name.
struct Words<'a>(Vec<&'a str>);

impl<'a> Words<'a> {
    /// Removes a flag; returns whether it was there.
    fn flag(&mut self, name: &str) -> bool {
        let place = self.0.iter().position(|word| *word == name);
        place.map(|at| self.0.remove(at)).is_some()
    }

    /// Removes an option; returns its value.
    fn value(&mut self, name: &str) -> Option<&'a str> {
        let at = self.0.iter().position(|word| *word == name)?;
        self.0.remove(at);
        (at < self.0.len()).then(|| self.0.remove(at))
    }

    /// Removes an option with a number; returns the number.
    fn number(&mut self, name: &str) -> Option<i64> {
        self.value(name)?.parse().ok()
    }

    /// Removes the mode of a reboot; returns it as `RebootRequest.Mode`.
    fn reboot_mode(&mut self) -> i64 {
        match self.value("-m") {
            Some("powercycle") => 1,
            Some("force") => 2,
            _ => 0,
        }
    }
}

impl<'a> Talosctl<'a> {
    /// Connects to this node with the test's identity.
    pub async fn of(node: &'a Node, release: Release) -> Result<Self> {
        Self::by(node, node.identity(), release).await
    }

    /// Connects with another identity.
    pub async fn by(node: &'a Node, identity: &'a Identity, release: Release) -> Result<Self> {
        Ok(Self {
            node,
            identity,
            session: Session::open(node, identity, release).await?,
        })
    }

    /// Connects with `--insecure`.
    pub async fn insecure(node: &'a Node, release: Release) -> Result<Self> {
        Ok(Self {
            node,
            identity: node.identity(),
            session: Session::open_insecure(node, release).await?,
        })
    }

    /// Returns the same client with another `-n`.
    pub fn asking_for(&self, node: &str) -> Self {
        let mut session = self.session.clone();
        session.node = node.to_owned();
        Self { session, ..*self }
    }

    /// Runs a command to its end. Its words are separated by spaces.
    pub async fn run(&self, command: &str) -> Said {
        self.run_with(command, "").await
    }

    /// Runs a command with the content of the file that it reads, or that its editor leaves.
    pub async fn run_with(&self, command: &str, file: &str) -> Said {
        self.on_screen(command, file, Screen::default()).await
    }

    /// Runs a command until it has printed a line for which `is_meant` is true; there is no exit code then.
    pub async fn run_until(&self, command: &str, is_meant: fn(&str) -> bool) -> Said {
        self.on_screen(command, "", Screen::until(is_meant)).await
    }

    async fn on_screen(&self, command: &str, file: &str, mut screen: Screen) -> Said {
        let ended = self.execute(command, file, &mut screen).await;
        let code = match &ended {
            Ok(()) => Some(0),
            Err(Stop::Seen) => None,
            Err(Stop::Crash(_)) => Some(2),
            Err(Stop::Refused(_) | Stop::Failed(_)) => Some(1),
        };
        if let Err(stop) = ended {
            screen.complain(&stop.to_string());
        }
        screen.said(code)
    }
}
