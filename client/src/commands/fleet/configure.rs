//! The parts of `fleet apply` beside a change of one node's config: the way to the node, and a bar that shows how far it is.

use instar_api::machine::ApplyConfiguration;
use instar_client::{Failure, Node, Progress as _, Target};
use instar_rollout::{Action, Report};
use instar_rollout_driver::{ConfigOrder, ConfigSite, report};

use super::look::connect;
use super::members::Way;
use super::store::Folder;
use crate::progress::ProgressDisplay;

/// The surroundings of the change of one node's config.
pub(super) struct Site {
    pub(super) target: Target,
    pub(super) way: Way,
    pub(super) display: ProgressDisplay,
}

impl ConfigSite for Site {
    async fn connect(&self) -> Result<Node, Failure> {
        connect(&self.target, &self.way).await
    }

    /// The command knows of nothing that has to leave a node.
    async fn make_way(&mut self, _: &ApplyConfiguration) -> Result<(), Failure> {
        Ok(())
    }

    /// The command asks nobody but the node.
    async fn heard(&self) -> Result<Option<String>, String> {
        Ok(None)
    }

    fn note(&mut self, text: &str) {
        self.display.note(text);
    }
}

/// Carries an order out; returns a report if there is something to report that the facts do not show better.
pub(super) async fn carry_out(mut order: ConfigOrder<Folder, Site>) -> Option<Report> {
    let done = order.carry_out().await;
    order.site.display.finish();
    match (done, &order.action) {
        // The config in force shows whether it went back.
        (Ok(()), Action::Return(_)) => None,
        (Ok(()), Action::Prepare(_) | Action::Switch(_)) => Some(Report::Done),
        (Err(failure), _) => report(&failure),
    }
}
