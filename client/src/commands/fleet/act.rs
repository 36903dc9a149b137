//! Carries out one action of the engine on one node.

use std::time::Duration;

use instar_api::machine::UpgradeRequest;
use instar_client::{Failure, FailureKind, Node, Progress as _, is_busy, roll_back, upgrade};
use instar_rollout::{Action, Release, Report};
use instar_rollout_driver::{pinned, report};

use crate::commands::image;
use crate::progress::ProgressDisplay;

/// An action of the engine, and the means to carry it out.
pub(super) struct Order {
    pub(super) action: Action,
    pub(super) node: Node,
    /// The version that the action leads to.
    pub(super) to: Option<Release>,
    pub(super) limit: Duration,
    pub(super) display: ProgressDisplay,
}

impl Order {
    /// Carries it out; returns a report if there is something to report that the facts do not show better.
    pub(super) async fn carry_out(mut self) -> Option<Report> {
        let done = match &self.action {
            Action::Prepare(_) => self.fetch().await.map(|()| Some(Report::Done)),
            Action::Switch(_) => self.switch().await.map(|()| Some(Report::Done)),
            // The version that runs shows whether it went back.
            Action::Return(_) => self.go_back().await.map(|()| None),
        };
        self.display.finish();
        done.unwrap_or_else(|failure| report(&failure))
    }

    async fn fetch(&mut self) -> Result<(), Failure> {
        let image = self.image()?;
        self.display.note(&format!("fetches {image}"));
        image::bring_with(&self.node, &image, |_, _| {}).await?;
        self.display.note("has the image");
        Ok(())
    }

    async fn switch(&mut self) -> Result<(), Failure> {
        let request = UpgradeRequest {
            image: self.image()?,
            preserve: true,
            ..UpgradeRequest::default()
        };
        upgrade(&self.node, request, self.limit, &mut self.display)
            .await
            .map(|_| ())
    }

    /// Into the other version on its disk; to the previous image if the node has no disk.
    async fn go_back(&mut self) -> Result<(), Failure> {
        match roll_back(&self.node, false, self.limit, &mut self.display).await {
            Err(refused) if refused.kind() == FailureKind::Refused && !is_busy(&refused) => {
                match self.image() {
                    Ok(_) => self.switch().await,
                    Err(_) => Err(refused),
                }
            }
            other => other.map(|_| ()),
        }
    }

    fn image(&self) -> Result<String, Failure> {
        let image = self.to.as_ref().and_then(pinned);
        image.ok_or_else(|| {
            Failure::new(
                FailureKind::Refused,
                "the previous version came from no image",
            )
        })
    }
}
