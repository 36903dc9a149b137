//! The answers of nodes before a rollout begins: which version an image has, and whether they would take the change of their configs.

use std::time::Duration;

use instar_base::back_off::BackOff;
use instar_client::{Failure, FailureKind, is_busy};
use instar_rollout::{MachineName, Release};
use instar_rollout_driver::{ConfigChange, asked, plan, target};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};

use crate::cluster::{ASK, Cluster};
use crate::node::NodeView;
use crate::shown::Invalid;

/// Nodes that are asked what an image is in one try, before it is said that none can tell.
const ASKED: usize = 3;
/// Nodes that check their configs at once.
const AT_ONCE: usize = 16;
/// The time for all of these checks. Who was not asked by then is asked when it is its turn.
const CHECKS: Duration = Duration::from_secs(120);
/// The pauses before a node that has refused a change is asked again.
const PAUSES: BackOff = BackOff {
    first: Duration::from_secs(20),
    longest: Duration::from_secs(300),
};

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

/// The answers of nodes that were asked what an image is.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    /// How often in a row no node could tell.
    silent: usize,
    /// The nodes that have refused the image in the last try.
    pub(crate) refused: Vec<String>,
}

/// The version behind an image's name. `heard`: the answers of the tries before this one.
pub(crate) async fn version(
    cluster: &Cluster,
    image: &str,
    nodes: &[NodeView],
    heard: &mut Heard,
) -> Result<Release, Wait> {
    let mut answers = Vec::new();
    heard.refused.clear();
    let candidates = candidates(nodes, heard.silent);
    if candidates.is_empty() {
        let why = "no node is ready, and could tell what the image is";
        return Err(Wait::For(why.to_owned()));
    }
    for view in candidates {
        let ask = async {
            let node = cluster.connect(view).await?;
            plan(&node, image).await
        };
        let late = || Failure::new(FailureKind::Unreachable, "no answer");
        let answer = timeout(2 * ASK, ask).await.unwrap_or_else(|_| Err(late()));
        let tells = matches!(answer, Ok(Some(_)));
        if let Err(failure) = &answer
            && failure.kind() == FailureKind::Refused
            && !is_busy(failure)
        {
            heard.refused.push(view.name.clone());
        }
        answers.push(answer);
        if tells {
            break;
        }
    }
    let told = target(image, answers.iter()).map_err(|failure| {
        let why = failure.chain();
        match failure.kind() {
            FailureKind::Refused => Wait::Refused(Invalid::new("ImageRefused", why)),
            _ => Wait::For(format!(
                "no node could tell which version the image has: {why}"
            )),
        }
    });
    match told {
        Ok(_) => heard.silent = 0,
        // These have said something: they are asked again.
        Err(Wait::Refused(_)) => {}
        Err(Wait::For(_)) => heard.silent = heard.silent.wrapping_add(1),
    }
    told
}

/// The ready nodes that are asked in this try: each one goes on after those of the try before, and those that no person holds come first.
fn candidates(nodes: &[NodeView], silent: usize) -> Vec<&NodeView> {
    let ready = nodes.iter().filter(|node| node.unready.is_none());
    let (mut candidates, held): (Vec<_>, Vec<_>) = ready.partition(|node| node.hold.is_none());
    candidates.extend(held);
    let all = candidates.len();
    let first = silent.wrapping_mul(ASKED).checked_rem(all);
    let from = candidates.iter().cycle().skip(first.unwrap_or_default());
    from.take(ASKED.min(all)).copied().collect()
}

/// The change as what a rollout brings, once the nodes have checked their changed configs: one that a node refuses begins nowhere. The change is that
/// of a pool at this generation. A refusal is remembered.
pub(crate) async fn config(
    cluster: &Cluster,
    (change, generation): (&ConfigChange, Option<i64>),
    nodes: &[NodeView],
    refusal: &mut Option<Refusal>,
) -> Result<Release, Wait> {
    let asked = Asked {
        change: change.release(),
        generation,
    };
    let ready = nodes.iter();
    let ready = ready.filter(|node| node.unready.is_none() && node.hold.is_none());
    let ready: Vec<NodeView> = ready.cloned().collect();
    let known = refusal.take().filter(|known| known.asked == asked);
    let again = known.as_ref().and_then(|known| known.of(&ready));
    let surveyed = match (&known, again) {
        (Some(known), Some(view)) if !known.is_due(view, Instant::now()) => {
            let wait = Wait::Refused(known.why.clone());
            *refusal = Some(known.clone());
            return Err(wait);
        }
        // Who has refused is asked first, alone: the others have nothing to say while it refuses.
        (_, Some(view)) => {
            match Judged::default().take(&view.name, check(cluster, change, view).await) {
                Ok(()) => survey(cluster, change, &ready).await,
                Err(why) => Err(Unfit::Refused(why, Box::new(view.clone()))),
            }
        }
        (_, None) => survey(cluster, change, &ready).await,
    };
    match surveyed {
        Ok(()) => Ok(asked.change),
        Err(Unfit::Unheard(why)) => Err(Wait::For(why)),
        Err(Unfit::Refused(why, view)) => {
            let wait = Wait::Refused(why.clone());
            let new = Refusal::new(asked, &view, why, known.as_ref());
            *refusal = Some(new);
            Err(wait)
        }
    }
}

/// The question that a refusal answers.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Asked {
    change: Release,
    /// The generation of the pool: who has edited it wants an answer now.
    generation: Option<i64>,
}

/// A node's refusal of a change. It is remembered, as a survey reads the configs of all nodes: that node is asked again, after a pause that grows, or
/// when its object has changed.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    asked: Asked,
    node: String,
    /// The state of its object then.
    state: [Option<String>; 4],
    why: Invalid,
    at: Instant,
    /// Number of refusals of the same change in a row, with this one.
    in_a_row: u32,
}

impl Refusal {
    /// `before`: the refusal of the same change before this one.
    fn new(asked: Asked, view: &NodeView, why: Invalid, before: Option<&Self>) -> Self {
        Self {
            asked,
            node: view.name.clone(),
            state: view.state(),
            why,
            at: Instant::now(),
            in_a_row: before.map_or(1, |before| before.in_a_row.saturating_add(1)),
        }
    }

    /// The node that has refused, if it is one of these.
    fn of<'a>(&self, nodes: &'a [NodeView]) -> Option<&'a NodeView> {
        nodes.iter().find(|node| node.name == self.node)
    }

    /// Whether the node has to be asked again.
    fn is_due(&self, view: &NodeView, now: Instant) -> bool {
        self.state != view.state() || now >= self.at + PAUSES.after(self.in_a_row)
    }
}

/// Why a change does not begin.
enum Unfit {
    /// This node refuses it.
    Refused(Invalid, Box<NodeView>),
    /// No node could say anything.
    Unheard(String),
}

/// Has nodes check their changed configs, until one refuses.
async fn survey(cluster: &Cluster, change: &ConfigChange, nodes: &[NodeView]) -> Result<(), Unfit> {
    let mut due = nodes.iter().cloned();
    let mut judged = Judged::default();
    let mut checks = JoinSet::new();
    let until = Instant::now() + CHECKS;
    loop {
        while checks.len() < AT_ONCE
            && let Some(view) = due.next()
        {
            let (cluster, change) = (cluster.clone(), change.clone());
            checks.spawn_local(async move {
                let answer = check(&cluster, &change, &view).await;
                (view, answer)
            });
        }
        match timeout_at(until, checks.join_next()).await {
            Ok(Some(Ok((view, answer)))) => {
                let taken = judged.take(&view.name, answer);
                taken.map_err(|why| Unfit::Refused(why, Box::new(view)))?;
            }
            // A check that was lost, as all of its kind, is made again when it is the node's turn.
            Ok(Some(Err(_))) => {}
            Ok(None) | Err(_) => break,
        }
    }
    judged.end().map_err(Unfit::Unheard)
}

async fn check(cluster: &Cluster, change: &ConfigChange, view: &NodeView) -> Result<(), Failure> {
    let check = async {
        // Who cannot be reached has refused nothing.
        let away = |failure: Failure| Failure::new(FailureKind::Unreachable, failure.chain());
        let node = cluster.connect_as_administrator(view).await.map_err(away)?;
        let name = MachineName::from(view.name.as_str());
        asked(&node, &name, change).await.map(drop)
    };
    let late = || Failure::new(FailureKind::Unreachable, "no answer");
    timeout(2 * ASK, check)
        .await
        .unwrap_or_else(|_| Err(late()))
}

/// The answers of the nodes about their changed configs.
#[derive(Default)]
struct Judged {
    /// Nodes that would take it, or have it.
    would: usize,
    /// Why the last one could not say anything.
    silent: Option<String>,
}

impl Judged {
    fn take(&mut self, name: &str, answer: Result<(), Failure>) -> Result<(), Invalid> {
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
            FailureKind::NotAuthorized => Err(Invalid::new(
                "ConfigNotAuthorized",
                format!("{why}; the client configuration for configs needs the role os:admin"),
            )),
            FailureKind::Unreachable | FailureKind::TimedOut => {
                self.silent = Some(why);
                Ok(())
            }
            _ if is_busy(&failure) => {
                self.silent = Some(why);
                Ok(())
            }
            _ => Err(Invalid::new("ConfigRefused", why)),
        }
    }

    /// Why nobody has said anything, if it is so.
    fn end(self) -> Result<(), String> {
        match (self.would, self.silent) {
            (0, Some(why)) => Err(format!("no node could check its config: {why}")),
            (0, None) => {
                let why = "no node is ready with the pool's version, and could check its config";
                Err(why.to_owned())
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn view(name: &str, boot: &str) -> NodeView {
        let object = json!({"metadata": {"name": name}});
        NodeView {
            boot_id: boot.to_owned(),
            ..NodeView::of(&serde_json::from_value(object).unwrap())
        }
    }

    #[test]
    fn who_has_refused_is_asked_again_after_pauses_that_grow_or_when_it_has_changed() {
        let asked = || Asked {
            change: ConfigChange::Patches(vec!["{}".to_owned()]).release(),
            generation: Some(3),
        };
        let why = || Invalid::new("ConfigRefused", "n1: it says no");
        let node = view("n1", "1");
        let mut refusal = Refusal::new(asked(), &node, why(), None);
        for pause in [20, 40, 80, 160, 300, 300] {
            let pause = Duration::from_secs(pause);
            assert!(!refusal.is_due(&node, refusal.at + pause - Duration::from_secs(1)));
            assert!(refusal.is_due(&node, refusal.at + pause));
            assert!(
                refusal.is_due(&view("n1", "2"), refusal.at),
                "it has booted"
            );
            refusal = Refusal::new(asked(), &node, why(), Some(&refusal));
        }
        assert!(refusal.of(&[view("n0", "1"), node]).is_some());
        assert!(refusal.of(&[view("n0", "1")]).is_none());
    }

    #[test]
    fn each_try_asks_other_nodes_what_an_image_is() {
        let node = |name: &str, ready: &str, is_cordoned: bool| {
            let object = json!({
                "metadata": {"name": name}, "spec": {"unschedulable": is_cordoned},
                "status": {"conditions": [{"type": "Ready", "status": ready}]},
            });
            NodeView::of(&serde_json::from_value(object).unwrap())
        };
        let nodes = [
            node("n0", "True", true),
            node("n1", "True", false),
            node("n2", "False", false),
            node("n3", "True", false),
            node("n4", "True", false),
            node("n5", "True", false),
        ];
        for (silent, expected) in [
            (0, ["n1", "n3", "n4"]),
            (1, ["n5", "n0", "n1"]),
            (2, ["n3", "n4", "n5"]),
        ] {
            let asked = candidates(&nodes, silent);
            let names = asked.iter().map(|node| node.name.as_str());
            assert_eq!(names.collect::<Vec<_>>(), expected, "try {silent}");
        }
        assert_eq!(candidates(&nodes[..1], 7).len(), 1);
        assert!(candidates(&nodes[2..3], 7).is_empty());
    }

    fn judged(answers: &[Option<FailureKind>]) -> Result<(), Wait> {
        let mut judged = Judged::default();
        for (number, kind) in answers.iter().enumerate() {
            let answer = match kind {
                Some(kind) => Err(Failure::new(*kind, "it says no")),
                None => Ok(()),
            };
            let taken = judged.take(&format!("n{number}"), answer);
            taken.map_err(Wait::Refused)?;
        }
        judged.end().map_err(Wait::For)
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
