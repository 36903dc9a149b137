//! Seeing an action through: events from before it until the goal, over broken links and restarts of the node.

use std::time::Duration;

use instar_api::machine::{Event, EventsRequest};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tonic::{Code, Status, Streaming};

use crate::event_history::event_history;
use crate::failure::{Failure, FailureKind};
use crate::node::Node;
use crate::tracker::{Goal, Tracker, Update, Verdict};

/// The whole history: what happened while the link was down must not be missed.
const WHOLE_HISTORY: i32 = -1;
/// A node that greets later than this is asked anyway.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// Wait before the link is tried again: short at first, because a change of generations takes a fraction of a second...
const FIRST_RETRY: Duration = Duration::from_millis(200);
/// ...and longer after this many times, because a boot takes many.
const QUICK_RETRIES: u32 = 20;
const LATER_RETRY: Duration = Duration::from_secs(1);
/// A link that is being made anew is given up after this, and made once more.
const RETRY_TIMEOUT: Duration = Duration::from_secs(15);
/// How often the boot id is asked for while everything else looks done.
const BOOT_ID_INTERVAL: Duration = Duration::from_millis(500);

/// Hears of an action while it is followed.
pub trait Progress {
    /// Something about the following itself, in words: the request was accepted, the link is down, the node is back.
    fn note(&mut self, text: &str);

    /// News from the node.
    fn update(&mut self, update: &Update);
}

/// An action that reached its goal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// The action's id: events that have it are of this action.
    pub actor: String,
    /// Boot ids before and after; none where they may not be read, or don't matter.
    pub boot_ids: Option<(String, String)>,
    /// From the subscription to the goal.
    pub took: Duration,
}

/// Starts the action and follows it to its goal.
///
/// `act` sends the request and gives the actor id of the reply.
///
/// # Errors
/// The node refused it, failed at it, rolled it back ([`FailureKind::RolledBack`]), or did not get there within `limit`
/// ([`FailureKind::TimedOut`]).
pub async fn follow(
    node: &Node,
    goal: Goal,
    limit: Duration,
    progress: &mut impl Progress,
    act: impl AsyncFnOnce(&Node) -> Result<String, Failure>,
) -> Result<Done, Failure> {
    let began = Instant::now();
    let before = match goal {
        Goal::NewBoot => boot_id_before(node, progress).await?,
        Goal::Stopped => None,
    };
    let mut events = subscribe(node, EventsRequest::default())
        .await
        .map_err(|status| {
            node.explain("cannot follow its events; --no-wait does without", status)
        })?;
    // Events of the action cannot be missed once the node has greeted.
    let _ = timeout(HELLO_TIMEOUT, events.message()).await;
    let actor = act(node).await?;
    progress.note(&format!("accepted, actor {actor}"));

    let mut way = Way {
        node,
        progress,
        before,
        tracker: Tracker::new(goal, actor.clone()),
    };
    let result = match timeout_at(began + limit, way.walk(events)).await {
        Ok(result) => result,
        Err(_) => Err(way.too_late(limit)),
    };
    let before = way.before;
    let after = result?;
    Ok(Done {
        actor,
        boot_ids: before.zip(after),
        took: began.elapsed(),
    })
}

/// The failure that the node remembers of this actor, if any.
pub async fn remembered_failure(node: &Node, actor: &str) -> Option<String> {
    let mut tracker = Tracker::new(Goal::NewBoot, actor.to_owned());
    let (events, _) = event_history(node).await;
    for event in events.iter().filter(|event| event.actor_id == actor) {
        tracker.observe(event);
    }
    match tracker.verdict() {
        Verdict::Failed(error) => Some(error.clone()),
        _ => None,
    }
}

async fn subscribe(node: &Node, request: EventsRequest) -> Result<Streaming<Event>, Status> {
    let events = node.machine().events(node.request(request)).await?;
    Ok(events.into_inner())
}

/// The boot id, or none for somebody who may act but not read files.
async fn boot_id_before(
    node: &Node,
    progress: &mut impl Progress,
) -> Result<Option<String>, Failure> {
    match node.boot_id().await {
        Ok(id) => Ok(Some(id)),
        Err(status) if status.code() == Code::PermissionDenied => {
            progress.note("may not read the boot id; trusting the events alone");
            Ok(None)
        }
        Err(status) => Err(node.explain("cannot read the boot id", status)),
    }
}

/// One action on its way.
struct Way<'a, P> {
    node: &'a Node,
    progress: &'a mut P,
    before: Option<String>,
    tracker: Tracker,
}

impl<P: Progress> Way<'_, P> {
    /// To the end; gives the boot id there, if it is known.
    async fn walk(&mut self, mut events: Streaming<Event>) -> Result<Option<String>, Failure> {
        loop {
            let looks_done = match self.tracker.verdict() {
                Verdict::Done => return Ok(None),
                Verdict::Failed(error) => {
                    let error = error.clone();
                    return Err(self.failed(&error).await);
                }
                Verdict::LooksDone => true,
                Verdict::Continue => false,
            };
            if looks_done {
                match &self.before {
                    // Without boot ids: good enough once the action was seen to begin.
                    None if self.tracker.under_way() => return Ok(None),
                    None => {}
                    Some(before) => {
                        if let Ok(Ok(after)) = timeout(RETRY_TIMEOUT, self.node.boot_id()).await
                            && after != *before
                        {
                            return Ok(Some(after));
                        }
                    }
                }
            }
            let next = if looks_done {
                match timeout(BOOT_ID_INTERVAL, events.message()).await {
                    Ok(next) => next,
                    Err(_) => continue,
                }
            } else {
                events.message().await
            };
            match next {
                Ok(Some(event)) => {
                    if let Some(update) = self.tracker.observe(&event) {
                        self.progress.update(&update);
                    }
                }
                broken => {
                    let why = match &broken {
                        Err(status) => status.message(),
                        Ok(_) => "the node ended its event stream",
                    };
                    self.progress.note(&format!("the link is down ({why})"));
                    self.tracker.link_down();
                    // A node that was told to stop does not come back.
                    if *self.tracker.verdict() != Verdict::Done {
                        events = self.reconnect().await?;
                    }
                }
            }
        }
    }

    /// Subscribes anew, for as long as it takes.
    async fn reconnect(&mut self) -> Result<Streaming<Event>, Failure> {
        let mut tries = 0;
        loop {
            sleep(if tries < QUICK_RETRIES {
                FIRST_RETRY
            } else {
                LATER_RETRY
            })
            .await;
            tries += 1;
            let request = EventsRequest {
                tail_events: WHOLE_HISTORY,
                ..EventsRequest::default()
            };
            match timeout(RETRY_TIMEOUT, subscribe(self.node, request)).await {
                Ok(Ok(events)) => {
                    self.progress.note("the node is back");
                    return Ok(events);
                }
                Ok(Err(status)) if !comes_back(status.code()) => {
                    return Err(self
                        .node
                        .explain("cannot follow its events any more", status));
                }
                Ok(Err(_)) | Err(_) => {}
            }
        }
    }

    /// The own sequence failed: did the node go back, or never leave?
    async fn failed(&mut self, error: &str) -> Failure {
        let name = self.node.name();
        let Some(before) = &self.before else {
            return Failure::new(FailureKind::Failed, format!("{name}: {error}"));
        };
        match timeout(RETRY_TIMEOUT, self.node.boot_id()).await {
            Ok(Ok(after)) if after != *before => Failure::new(FailureKind::RolledBack, format!("{name}: rolled back: {error}"))
                .advise("the version of before runs again; `instarctl dmesg` and `instarctl logs` on the node tell more"),
            _ => Failure::new(FailureKind::Failed, format!("{name}: {error}")).advise("the node runs on as before"),
        }
    }

    fn too_late(&self, limit: Duration) -> Failure {
        let name = self.node.name();
        let last = self.tracker.last().unwrap_or("nothing");
        Failure::new(
            FailureKind::TimedOut,
            format!(
                "{name}: not done after {} s; the last thing it told: {last}",
                limit.as_secs()
            ),
        )
        .advise("it may still go on: `instarctl events --tail -1` shows what the node did")
    }
}

/// Whether an answer of this kind can be that of a node on its way.
pub(crate) fn comes_back(code: Code) -> bool {
    !matches!(
        code,
        Code::Unimplemented
            | Code::PermissionDenied
            | Code::Unauthenticated
            | Code::InvalidArgument
    )
}
