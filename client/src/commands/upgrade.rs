//! `upgrade`: to the version in an installer image, followed to the end.

mod ahead;
mod dry_run;
mod needed;
mod prepare;

use std::time::Duration;

use instar_api::instar::ReplaceRequest;
use instar_api::machine::UpgradeRequest;
use instar_api::machine::upgrade_request::RebootMode;
use instar_client::{
    Failure, FailureKind, Node, Upgraded, ask_for_replacement, ask_for_upgrade, replace, upgrade,
};
use serde_json::json;

use self::needed::Need;
use crate::cli::{FetchTerms, Global, Upgrade, UpgradeMode};
use crate::progress::ProgressDisplay;
use crate::target;

pub(super) async fn run(global: &Global, arguments: &Upgrade) -> Result<(), Failure> {
    refuse_idle_terms(arguments)?;
    let arguments = &Upgrade {
        image: with_tag(&arguments.image, arguments.tag.as_deref()),
        ..arguments.clone()
    };
    let node = target::one(global).await?;
    if arguments.prepare {
        return ahead::run(global, &node, arguments).await;
    }
    if arguments.no_reboot {
        return prepare::run(global, &node, &arguments.image, arguments.force).await;
    }
    let request = request(arguments);
    if arguments.dry_run {
        return dry_run::run(global, &node, request, arguments.wipe).await;
    }
    if arguments.stage {
        // The reply comes when the upgrade is staged; the result of the next boot is not waited for.
        let staged = ask_for_upgrade(&node, request).await?;
        return global.output.show(
            || format!("{}: {}", node.name(), staged.ack),
            || json!({ "node": node.name(), "actor_id": staged.actor_id, "image": arguments.image, "staged": true }),
        );
    }
    if arguments.if_needed {
        let need = needed::judge(&node, &request, arguments.wait.timeout).await?;
        if let Need::Nothing { version } = need {
            return global.output.show(
                || format!("{}: {version} of this image runs already", node.name()),
                || json!({ "node": node.name(), "image": arguments.image, "version_before": version, "version_after": version }),
            );
        }
    }
    let call = Call::of(arguments, request);
    if !arguments.wait.wanted() {
        let actor = call.ask(&node).await?;
        return global.output.show(
            || format!("{}: accepted, actor {actor}", node.name()),
            || json!({ "node": node.name(), "actor_id": actor }),
        );
    }
    let mut display = ProgressDisplay::new(node.name());
    let upgraded = call
        .follow(&node, arguments.wait.timeout, &mut display)
        .await;
    display.finish();
    show(global, &node, &arguments.image, upgraded?)
}

/// The call that begins the change of versions.
enum Call {
    Upgrade(UpgradeRequest),
    Replace(ReplaceRequest),
}

impl Call {
    fn of(arguments: &Upgrade, request: UpgradeRequest) -> Self {
        match arguments.wipe {
            true => Self::Replace(ReplaceRequest {
                image: arguments.image.clone(),
                force: arguments.force,
            }),
            false => Self::Upgrade(request),
        }
    }

    /// Makes the call; returns the actor of the node's events.
    async fn ask(self, node: &Node) -> Result<String, Failure> {
        match self {
            Self::Upgrade(request) => Ok(ask_for_upgrade(node, request).await?.actor_id),
            Self::Replace(request) => ask_for_replacement(node, request).await,
        }
    }

    /// Makes the call, and follows the node until the version has proved itself.
    async fn follow(
        self,
        node: &Node,
        limit: Duration,
        display: &mut ProgressDisplay,
    ) -> Result<Upgraded, Failure> {
        match self {
            Self::Upgrade(request) => upgrade(node, request, limit, display).await,
            Self::Replace(request) => replace(node, request, limit, display).await,
        }
    }
}

fn show(global: &Global, node: &Node, image: &str, upgraded: Upgraded) -> Result<(), Failure> {
    let Upgraded {
        before,
        after,
        done,
    } = upgraded;
    let (boot_before, boot_after) = done.boot_ids.unzip();
    global.output.show(
        || {
            let unchanged = if before == after {
                " (the image holds the version that ran before)"
            } else {
                ""
            };
            format!(
                "{}: upgraded from {before} to {after} in {:.1} s{unchanged}",
                node.name(),
                done.took.as_secs_f64()
            )
        },
        || {
            json!({
                "node": node.name(),
                "actor_id": done.actor,
                "image": image,
                "version_before": before,
                "version_after": after,
                "boot_id_before": boot_before,
                "boot_id_after": boot_after,
                "seconds": done.took.as_secs_f64(),
            })
        },
    )
}

/// The request of an upgrade that begins at once.
fn request(arguments: &Upgrade) -> UpgradeRequest {
    UpgradeRequest {
        image: arguments.image.clone(),
        // Data is kept; another call erases it.
        preserve: true,
        stage: arguments.stage,
        force: arguments.force,
        reboot_mode: match arguments.reboot_mode {
            // For a dry run.
            _ if arguments.wipe => RebootMode::Powercycle,
            UpgradeMode::Default => RebootMode::Default,
            UpgradeMode::Powercycle => RebootMode::Powercycle,
            UpgradeMode::Kexec => RebootMode::Kexec,
        }
        .into(),
    }
}

/// Refuses terms that would have no effect.
fn refuse_idle_terms(arguments: &Upgrade) -> Result<(), Failure> {
    match arguments.prepare || arguments.terms == FetchTerms::default() {
        true => Ok(()),
        false => Err(Failure::new(
            FailureKind::Usage,
            "--window and --bandwidth are for --prepare: an upgrade begins at once",
        )),
    }
}

/// The image with this tag, if it has neither a tag nor a digest.
fn with_tag(image: &str, tag: Option<&str>) -> String {
    let last = image.rsplit('/').next().unwrap_or(image);
    match tag {
        Some(tag) if !last.contains([':', '@']) && !tag.is_empty() => format!("{image}:{tag}"),
        _ => image.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_for_a_name_without_one() {
        for (image, tag, expected) in [
            ("r:5000/i", Some("v1"), "r:5000/i:v1"),
            ("r:5000/i:v0", Some("v1"), "r:5000/i:v0"),
            ("r/i@sha256:abc", Some("v1"), "r/i@sha256:abc"),
            ("r/i", Some(""), "r/i"),
            ("r/i", None, "r/i"),
        ] {
            assert_eq!(with_tag(image, tag), expected);
        }
    }
}
