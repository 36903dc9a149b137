//! An upgrade and the way back, from the request to a version that has proved itself.

use std::time::Duration;

use instar_api::instar::ReplaceRequest;
use instar_api::instar::upgrade_service_client::UpgradeServiceClient;
use instar_api::machine::{RollbackRequest, UpgradeRequest};

use crate::failure::{Failure, FailureKind};
use crate::follow::{Done, Progress, follow, remembered_failure};
use crate::node::Node;
use crate::tracker::Goal;

/// How a busy node begins its refusal: another operation is running, and nothing is wrong with the request.
const BUSY: &str = "the machine is busy: ";

/// An upgrade that was kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upgraded {
    /// The version before, as in `v0.1.0`.
    pub before: String,
    /// The version that runs now.
    pub after: String,
    /// How it went.
    pub done: Done,
}

/// Sends the request; returns the node's reply.
///
/// # Errors
/// The node refused it.
pub async fn ask_for_upgrade(
    node: &Node,
    request: UpgradeRequest,
) -> Result<instar_api::machine::Upgrade, Failure> {
    let reply = node.machine().upgrade(node.request(request)).await;
    let reply = reply.map_err(|status| node.explain("did not take the upgrade", status))?;
    node.only(reply.into_inner().messages)
}

/// Asks for a replacement of the machine by an image; returns the actor of its events.
///
/// # Errors
/// The node refused it.
pub async fn ask_for_replacement(node: &Node, request: ReplaceRequest) -> Result<String, Failure> {
    let mut client = UpgradeServiceClient::new(node.channel());
    let reply = client.replace(node.request(request)).await;
    let reply = reply.map_err(|status| node.explain("did not take the replacement", status))?;
    Ok(reply.into_inner().actor_id)
}

/// Replaces a machine by an image: an upgrade by a reboot that leaves nothing on EPHEMERAL. Follows it until the version has proved itself.
///
/// # Errors
/// The errors of [`upgrade`].
pub async fn replace(
    node: &Node,
    request: ReplaceRequest,
    limit: Duration,
    progress: &mut impl Progress,
) -> Result<Upgraded, Failure> {
    let image = request.image.clone();
    let act = async |node: &Node| ask_for_replacement(node, request).await;
    follow_to_version(node, &image, limit, progress, act).await
}

/// Upgrades a node, and follows it until the version has proved itself.
///
/// # Errors
/// The node refused it, failed at it, went back to the version before ([`FailureKind::RolledBack`]), or took longer than `limit`.
pub async fn upgrade(
    node: &Node,
    request: UpgradeRequest,
    limit: Duration,
    progress: &mut impl Progress,
) -> Result<Upgraded, Failure> {
    let image = request.image.clone();
    let act = async |node: &Node| Ok(ask_for_upgrade(node, request).await?.actor_id);
    follow_to_version(node, &image, limit, progress, act).await
}

/// Begins a change to the version in an image, and follows it until the version has proved itself.
async fn follow_to_version(
    node: &Node,
    image: &str,
    limit: Duration,
    progress: &mut impl Progress,
    act: impl AsyncFnOnce(&Node) -> Result<String, Failure>,
) -> Result<Upgraded, Failure> {
    let before = node.tag().await?;
    let done = follow(node, Goal::NewBoot, limit, progress, act).await?;
    let after = node.tag().await?;
    check_version(node, image, &before, &after, &done.actor).await?;
    Ok(Upgraded {
        before,
        after,
        done,
    })
}

/// Asks for a reboot into the other version on the node's disk.
///
/// # Errors
/// The node refused it.
pub async fn ask_for_rollback(node: &Node, force: bool) -> Result<(), Failure> {
    let request = node.request(RollbackRequest { force });
    let reply = node.machine().rollback(request).await;
    let reply = reply.map_err(|status| node.explain("did not roll back", status))?;
    node.only(reply.into_inner().messages).map(|_| ())
}

/// Reboots a node into the other version on its disk, and follows it until it is ready.
///
/// # Errors
/// The node refused it, or took longer than `limit`.
pub async fn roll_back(
    node: &Node,
    force: bool,
    limit: Duration,
    progress: &mut impl Progress,
) -> Result<Done, Failure> {
    // The reply names no actor: the boot id shows when it is done.
    let act = async |node: &Node| {
        ask_for_rollback(node, force).await?;
        Ok(String::new())
    };
    follow(node, Goal::NewBoot, limit, progress, act).await
}

/// Whether a node refused a request only because another operation runs, so that it may take the same request later.
pub fn is_busy(failure: &Failure) -> bool {
    failure.kind() == FailureKind::Refused && failure.chain().contains(BUSY)
}

/// Checks the running version: if it is the previous one, the upgrade was rolled back, unless the image holds that very version.
async fn check_version(
    node: &Node,
    image: &str,
    before: &str,
    after: &str,
    actor: &str,
) -> Result<(), Failure> {
    if before != after {
        return Ok(());
    }
    let rolled_back = |why: &str| {
        Failure::new(
            FailureKind::RolledBack,
            format!("{}: rolled back to {after}: {why}", node.name()),
        )
        .advise("`instarctl logs machined` on the node tells more")
    };
    if let Some(why) = remembered_failure(node, actor).await {
        return Err(rolled_back(&why));
    }
    match version_in_tag(image) {
        Some(wanted) if wanted != after => Err(rolled_back(&format!(
            "it came up again, but not with {wanted}, and did not tell why"
        ))),
        _ => Ok(()),
    }
}

/// The version in a reference's tag, if the tag looks like one.
pub fn version_in_tag(image: &str) -> Option<&str> {
    let without_digest = image.split_once('@').map_or(image, |(name, _)| name);
    let last = without_digest.rsplit('/').next()?;
    let (_, tag) = last.split_once(':')?;
    let digits = tag.strip_prefix('v')?;
    let numbers: Vec<&str> = digits.splitn(3, '.').collect();
    let is_number = |text: &&str| text.starts_with(|letter: char| letter.is_ascii_digit());
    (numbers.len() == 3 && numbers.iter().all(is_number)).then_some(tag)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_version_in_the_tag_counts() {
        for (image, expected) in [
            ("10.0.2.2:5000/instar/installer:v0.2.0", Some("v0.2.0")),
            ("r/i:v0.2.0-rc.1", Some("v0.2.0-rc.1")),
            ("r/i:v0.2.0@sha256:abc", Some("v0.2.0")),
            ("localhost:5000/i", None),
            ("r/i:latest", None),
            ("r/i:v2", None),
            ("r/i@sha256:abc", None),
            ("", None),
        ] {
            assert_eq!(version_in_tag(image), expected, "{image}");
        }
    }
}
