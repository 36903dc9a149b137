//! What nodes say before a rollout begins: which version an image has, and whether they would take the change of their configs.

use std::time::Duration;

use instar_client::{Failure, FailureKind, is_busy};
use instar_rollout::{MachineName, Release};
use instar_rollout_driver::{ConfigChange, asked, plan, target};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};

use crate::cluster::{ASK, Cluster};
use crate::node::NodeView;
use crate::shown::Invalid;

/// Nodes that are asked what an image is, before it is said that none can tell.
const ASKED: usize = 3;
/// Nodes that check their configs at once.
const AT_ONCE: usize = 16;
/// The time for all of these checks. Who was not asked by then is asked when it is its turn.
const CHECKS: Duration = Duration::from_secs(120);

/// Why a rollout cannot begin yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Something has to come first.
    For(String),
    /// The nodes refuse the image or the patches, or the pool's policy makes no sense for its nodes.
    Refused(Invalid),
}

impl Wait {
    pub(crate) fn text(&self) -> String {
        match self {
            Self::For(why) => why.clone(),
            Self::Refused(why) => why.message.clone(),
        }
    }
}

/// The version behind an image's name.
pub(crate) async fn version(
    cluster: &Cluster,
    image: &str,
    nodes: &[NodeView],
) -> Result<Release, Wait> {
    let mut answers = Vec::new();
    let mut ready = nodes
        .iter()
        .filter(|node| node.unready.is_none())
        .peekable();
    if ready.peek().is_none() {
        let why = "no node is ready, and could tell what the image is";
        return Err(Wait::For(why.to_owned()));
    }
    for view in ready.take(ASKED) {
        let ask = async {
            let node = cluster.connect(view).await?;
            plan(&node, image).await
        };
        let late = || Failure::new(FailureKind::Unreachable, "no answer");
        let answer = timeout(2 * ASK, ask).await.unwrap_or_else(|_| Err(late()));
        let tells = matches!(answer, Ok(Some(_)));
        answers.push(answer);
        if tells {
            break;
        }
    }
    target(image, answers.iter()).map_err(|failure| {
        let why = failure.chain();
        match failure.kind() {
            FailureKind::Refused => Wait::Refused(Invalid::new("ImageRefused", why)),
            _ => Wait::For(format!(
                "no node could tell which version the image has: {why}"
            )),
        }
    })
}

/// The change as what a rollout brings, once the nodes have checked their changed configs: one that a node refuses begins nowhere.
pub(crate) async fn config(
    cluster: &Cluster,
    change: &ConfigChange,
    nodes: &[NodeView],
) -> Result<Release, Wait> {
    let ready = nodes
        .iter()
        .filter(|node| node.unready.is_none() && node.hold.is_none());
    let mut due = ready.cloned();
    let mut judged = Judged::default();
    let mut checks = JoinSet::new();
    let until = Instant::now() + CHECKS;
    loop {
        while checks.len() < AT_ONCE
            && let Some(view) = due.next()
        {
            let (cluster, change) = (cluster.clone(), change.clone());
            checks.spawn_local(async move {
                (view.name.clone(), check(&cluster, &change, &view).await)
            });
        }
        match timeout_at(until, checks.join_next()).await {
            Ok(Some(Ok((name, answer)))) => judged.take(&name, answer)?,
            // A check that was lost, as all of its kind, is made again when it is the node's turn.
            Ok(Some(Err(_))) => {}
            Ok(None) | Err(_) => break,
        }
    }
    judged.end().map(|()| change.release())
}

async fn check(cluster: &Cluster, change: &ConfigChange, view: &NodeView) -> Result<(), Failure> {
    let check = async {
        // Who cannot be reached has refused nothing.
        let away = |failure: Failure| Failure::new(FailureKind::Unreachable, failure.chain());
        let node = cluster.connect_for_configs(view).await.map_err(away)?;
        let name = MachineName::from(view.name.as_str());
        asked(&node, &name, change).await.map(drop)
    };
    let late = || Failure::new(FailureKind::Unreachable, "no answer");
    timeout(2 * ASK, check)
        .await
        .unwrap_or_else(|_| Err(late()))
}

/// What the nodes have said of their changed configs.
#[derive(Default)]
struct Judged {
    /// Nodes that would take it, or have it.
    would: usize,
    /// Why the last one could not say anything.
    silent: Option<String>,
}

impl Judged {
    fn take(&mut self, name: &str, answer: Result<(), Failure>) -> Result<(), Wait> {
        let Err(failure) = answer else {
            self.would += 1;
            return Ok(());
        };
        let why = failure.chain();
        let own = format!("{name}: ");
        let why = match why.starts_with(&own) {
            true => why,
            false => own + &why,
        };
        match failure.kind() {
            FailureKind::NotAuthorized => Err(Wait::Refused(Invalid::new(
                "ConfigNotAuthorized",
                format!("{why}; the client configuration for configs needs the role os:admin"),
            ))),
            FailureKind::Unreachable | FailureKind::TimedOut => {
                self.silent = Some(why);
                Ok(())
            }
            _ if is_busy(&failure) => {
                self.silent = Some(why);
                Ok(())
            }
            _ => Err(Wait::Refused(Invalid::new("ConfigRefused", why))),
        }
    }

    fn end(self) -> Result<(), Wait> {
        match (self.would, self.silent) {
            (0, Some(why)) => Err(Wait::For(format!("no node could check its config: {why}"))),
            (0, None) => {
                let why = "no node is ready, and could check its config";
                Err(Wait::For(why.to_owned()))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(answers: &[Option<FailureKind>]) -> Result<(), Wait> {
        let mut judged = Judged::default();
        for (number, kind) in answers.iter().enumerate() {
            let answer = match kind {
                Some(kind) => Err(Failure::new(*kind, "it says no")),
                None => Ok(()),
            };
            judged.take(&format!("n{number}"), answer)?;
        }
        judged.end()
    }

    #[test]
    fn a_change_that_one_node_refuses_begins_nowhere() {
        use FailureKind::{NotAuthorized, Refused, Unreachable, Usage};
        assert_eq!(judged(&[None, Some(Unreachable)]), Ok(()));
        for (answers, reason) in [
            (&[None, Some(Refused)][..], "ConfigRefused"),
            // Such as a patch that removes what is not there.
            (&[Some(Usage)], "ConfigRefused"),
            (&[Some(NotAuthorized)], "ConfigNotAuthorized"),
        ] {
            match judged(answers) {
                Err(Wait::Refused(invalid)) => {
                    assert_eq!(invalid.reason, reason);
                    assert!(
                        invalid.message.contains(": it says no"),
                        "{}",
                        invalid.message
                    );
                }
                other => assert!(matches!(other, Err(Wait::Refused(_))), "{other:?}"),
            }
        }
    }

    #[test]
    fn somebody_has_to_have_checked_it() {
        for (answers, why) in [
            (&[][..], "no node is ready"),
            (&[Some(FailureKind::Unreachable)], "n0: it says no"),
        ] {
            let wait = judged(answers).map_err(|wait| wait.text());
            assert!(
                wait.as_ref().is_err_and(|text| text.contains(why)),
                "{wait:?}"
            );
        }
    }
}
