//! Carries out one action of the engine on one node.

use std::time::Duration;

use instar_api::machine::UpgradeRequest;
use instar_client::{Failure, FailureKind, Node, Progress as _, is_busy, roll_back, upgrade};
use instar_rollout::{Action, Release, Report};

use crate::commands::image;
use crate::progress::ProgressDisplay;

/// What an action needs to know.
pub(super) struct Task {
    pub(super) action: Action,
    pub(super) node: Node,
    /// The version that the action leads to.
    pub(super) to: Option<Release>,
    pub(super) limit: Duration,
    pub(super) display: ProgressDisplay,
}

impl Task {
    /// Carries it out; returns a report if there is something to report that the facts do not show better.
    pub(super) async fn run(mut self) -> (Action, Option<Report>) {
        let done = match &self.action {
            Action::Prepare(_) => self.fetch().await.map(|()| Some(Report::Done)),
            Action::Switch(_) => self.switch().await.map(|()| Some(Report::Done)),
            // The version that runs shows whether it went back.
            Action::Return(_) => self.go_back().await.map(|()| None),
        };
        self.display.finish();
        let report = done.unwrap_or_else(|failure| report(&failure));
        (self.action, report)
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

    /// Into the other version on its disk; to the image of before if the node has no disk.
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
                "the version of before came from no image",
            )
        })
    }
}

/// The image's name with its digest, which always means this very image.
fn pinned(release: &Release) -> Option<String> {
    let image = release.image.as_ref()?;
    match release.digest {
        Some(digest) if !image.contains('@') => Some(format!("{image}@{digest}")),
        _ => Some(image.clone()),
    }
}

/// The report of a failure. A node that is busy or cannot be reached has not failed: the facts show what becomes of it.
fn report(failure: &Failure) -> Option<Report> {
    if is_busy(failure) || failure.kind() == FailureKind::Unreachable {
        return None;
    }
    Some(Report::Failed(failure.chain()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_image_is_named_with_its_digest() {
        let digest = format!("sha256:{}", "a".repeat(64));
        let release = |image: Option<&str>, digest: Option<&str>| Release {
            version: "v0.2.0".to_owned(),
            digest: digest.map(|digest| digest.parse().unwrap()),
            image: image.map(str::to_owned),
        };
        let named = pinned(&release(Some("r/i:v2"), Some(&digest)));
        assert_eq!(named, Some(format!("r/i:v2@{digest}")));
        assert_eq!(
            pinned(&release(Some("r/i:v2"), None)),
            Some("r/i:v2".to_owned())
        );
        assert_eq!(pinned(&release(None, Some(&digest))), None);
    }

    #[test]
    fn only_what_the_node_says_about_the_version_is_a_failure() {
        let refused = |why: &str| {
            Failure::new(FailureKind::Refused, "n: did not take the upgrade").because(why)
        };
        assert_eq!(
            report(&refused(
                "the machine is busy: reset has been running for 3 s"
            )),
            None
        );
        assert_eq!(report(&Failure::new(FailureKind::Unreachable, "n")), None);
        let bad = report(&refused(
            "version v0.2.0 of this very image failed here before",
        ));
        assert!(matches!(bad, Some(Report::Failed(why)) if why.contains("failed here before")));
    }
}
