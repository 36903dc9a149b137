//! `upgrade`: to the version in an installer image, followed to the end.

mod ahead;
mod dry_run;
mod needed;
mod prepare;

use instar_api::machine::UpgradeRequest;
use instar_api::machine::upgrade_request::RebootMode;
use instar_client::{Failure, FailureKind, Goal, Node, remembered_failure};
use serde_json::json;

use self::needed::Need;
use crate::cli::{FetchTerms, Global, Upgrade, UpgradeMode};
use crate::follow::follow;
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
    let request = UpgradeRequest {
        image: arguments.image.clone(),
        // Data is always kept.
        preserve: true,
        stage: arguments.stage,
        force: arguments.force,
        reboot_mode: match arguments.reboot_mode {
            UpgradeMode::Default => RebootMode::Default,
            UpgradeMode::Powercycle => RebootMode::Powercycle,
            UpgradeMode::Kexec => RebootMode::Kexec,
        }
        .into(),
    };
    if arguments.dry_run {
        return dry_run::run(global, &node, request).await;
    }
    let ask = async |node: &Node| {
        let reply = node.machine().upgrade(node.request(request.clone())).await;
        let reply = reply.map_err(|status| node.explain("did not take the upgrade", status))?;
        node.only(reply.into_inner().messages)
    };
    if arguments.stage {
        // The reply comes when the upgrade is staged; the result of the next boot is not waited for.
        let staged = ask(&node).await?;
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
    let act = async |node: &Node| Ok(ask(node).await?.actor_id);
    if !arguments.wait.wanted() {
        let actor = act(&node).await?;
        return global.output.show(
            || format!("{}: accepted, actor {actor}", node.name()),
            || json!({ "node": node.name(), "actor_id": actor }),
        );
    }
    let before = node.tag().await?;
    let done = follow(&node, Goal::NewBoot, arguments.wait.timeout, act).await?;
    let after = node.tag().await?;
    check_version(&node, &arguments.image, &before, &after, &done.actor).await?;
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
                "image": arguments.image,
                "version_before": before,
                "version_after": after,
                "boot_id_before": boot_before,
                "boot_id_after": boot_after,
                "seconds": done.took.as_secs_f64(),
            })
        },
    )
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

/// Checks the running version: if it is the one of before, the upgrade was rolled back, unless the image holds that very version.
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
        .advise("`instarctl dmesg` and `instarctl logs` on the node tell more")
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

/// The image with this tag, if it has neither a tag nor a digest.
fn with_tag(image: &str, tag: Option<&str>) -> String {
    let last = image.rsplit('/').next().unwrap_or(image);
    match tag {
        Some(tag) if !last.contains([':', '@']) && !tag.is_empty() => format!("{image}:{tag}"),
        _ => image.to_owned(),
    }
}

/// The version in a reference's tag, if the tag looks like one.
fn version_in_tag(image: &str) -> Option<&str> {
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
