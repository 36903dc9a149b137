//! The answers of an Instar node, as the engine takes them.

use instar_api::definitions::instar::Outcome;
use instar_api::definitions::runtime::MachineStage;
use instar_api::instar::upgrade_service_client::UpgradeServiceClient;
use instar_api::instar::{UpgradePlanRequest, UpgradePlanResponse};
use instar_api::machine::UpgradeRequest;
use instar_client::{Failure, FailureKind, Node, Standing, is_busy, version_in_tag};
use instar_rollout::{Condition, Fact, NotedFailure, Release, Report};

/// The fact of a machine that is busy with an action of this driver.
pub fn busy() -> Fact {
    Fact {
        condition: Condition::Busy,
        ..Fact::away("")
    }
}

/// The engine's view of a node's standing.
pub fn fact(standing: &Standing) -> Fact {
    let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let release = standing.release.clone().unwrap_or_default();
    Fact {
        condition: condition(standing),
        running: Some(Release {
            version: standing.version.clone(),
            digest: release.digest.parse().ok(),
            image: given(&release.image),
        }),
        history: standing.history.last().map_or(0, |(number, _)| *number),
        failure: standing
            .newest(Outcome::Failed)
            .map(|(number, record)| NotedFailure {
                number: *number,
                why: record.reason.clone(),
            }),
        hold: None,
    }
}

fn condition(standing: &Standing) -> Condition {
    let status = standing.status.clone().unwrap_or_default();
    let inner = status.status.clone().unwrap_or_default();
    match standing.stage() {
        // A node that does not tell is taken at its version.
        None => Condition::Ready,
        Some(MachineStage::Running) if inner.ready => Condition::Ready,
        Some(MachineStage::Running) => {
            let unmet = inner.unmet_conditions.iter();
            let unmet = unmet.map(|unmet| format!("{}: {}", unmet.name, unmet.reason));
            Condition::NotReady(unmet.collect::<Vec<_>>().join("; "))
        }
        Some(MachineStage::Maintenance) => {
            Condition::NotReady("it has no machine config".to_owned())
        }
        Some(_) => Condition::Busy,
    }
}

/// A node's own plan of an upgrade; none if it makes none.
///
/// # Errors
/// It would refuse the upgrade, is busy now, or did not answer.
pub async fn plan(node: &Node, image: &str) -> Result<Option<UpgradePlanResponse>, Failure> {
    let upgrade = UpgradeRequest {
        image: image.to_owned(),
        preserve: true,
        ..UpgradeRequest::default()
    };
    let request = node.request(UpgradePlanRequest {
        upgrade: Some(upgrade),
    });
    let reply = UpgradeServiceClient::new(node.channel())
        .plan(request)
        .await;
    match reply {
        Ok(plan) => Ok(Some(plan.into_inner())),
        Err(status) if status.code() == tonic::Code::Unimplemented => Ok(None),
        Err(status) => Err(node.explain("would not take the upgrade", status)),
    }
}

/// The version behind the image's name, by what nodes planned. All machines get the image that the first one has found there.
///
/// # Errors
/// No node could say which version the image has.
pub fn target<'a>(
    image: &str,
    answers: impl Iterator<Item = &'a Result<Option<UpgradePlanResponse>, Failure>> + Clone,
) -> Result<Release, Failure> {
    let mut plans = answers
        .clone()
        .filter_map(|answer| answer.as_ref().ok()?.as_ref());
    if let Some(plan) = plans.next() {
        return Ok(Release {
            version: plan.version.clone(),
            digest: plan.digest.parse().ok(),
            image: Some(image.to_owned()),
        });
    }
    let mut failures = answers.clone().filter_map(|answer| answer.as_ref().err());
    if let Some(failure) = failures.next() {
        // A node that is busy has refused nothing: it may be asked later.
        let kind = match is_busy(failure) {
            true => FailureKind::Unreachable,
            false => failure.kind(),
        };
        return Err(Failure::new(kind, failure.chain()));
    }
    match version_in_tag(image) {
        Some(version) if answers.clone().next().is_some() => Ok(Release {
            version: version.to_owned(),
            digest: None,
            image: Some(image.to_owned()),
        }),
        _ => Err(Failure::new(
            FailureKind::Unreachable,
            "no node could say which version the image has",
        )),
    }
}

/// The image's name with its digest, which always means this very image.
pub fn pinned(release: &Release) -> Option<String> {
    let image = release.image.as_ref()?;
    match release.digest {
        Some(digest) if !image.contains('@') => Some(format!("{image}@{digest}")),
        _ => Some(image.clone()),
    }
}

/// The report of a failure. A node that is busy or cannot be reached has not failed: the facts show what becomes of it.
pub fn report(failure: &Failure) -> Option<Report> {
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

    #[test]
    fn a_target_is_what_a_node_found_behind_the_name() {
        let none: [Result<Option<UpgradePlanResponse>, Failure>; 0] = [];
        assert!(target("r/i:v0.2.0", none.iter()).is_err());
        let silent = [Ok(None)];
        assert_eq!(
            target("r/i:v0.2.0", silent.iter()).unwrap().version,
            "v0.2.0"
        );
        assert!(target("r/i:latest", silent.iter()).is_err());
        let refused = [Err(Failure::new(FailureKind::Refused, "below its floor"))];
        let error = target("r/i:v0.2.0", refused.iter()).unwrap_err();
        assert!(error.chain().contains("floor"));
        let busy = "the machine is busy: reset has been running for 3 s";
        let busy = [Err(Failure::new(FailureKind::Refused, busy))];
        let error = target("r/i:v0.2.0", busy.iter()).unwrap_err();
        assert_eq!(error.kind(), FailureKind::Unreachable);
    }
}
