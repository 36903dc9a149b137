//! Follows an action to its end: reads events until the goal, over broken links and restarts of the node.

use std::time::Duration;

use instar_api::machine::{Event, EventsRequest};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tonic::{Code, Status, Streaming};

use crate::event_history::event_history;
use crate::failure::{Failure, FailureKind};
use crate::node::Node;
use crate::tracker::{Goal, Tracker, Update, Verdict};

/// The whole history, so that events during a broken link are not missed.
const WHOLE_HISTORY: i32 = -1;
/// Timeout for the node's greeting; then the action is started anyway.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// First retry pause of the link: short, because a change of generations takes a fraction of a second.
const FIRST_RETRY: Duration = Duration::from_millis(200);
/// Number of short pauses; then they are longer, because a boot takes many seconds.
const QUICK_RETRIES: u32 = 20;
const LATER_RETRY: Duration = Duration::from_secs(1);
/// Timeout of one attempt to reconnect.
const RETRY_TIMEOUT: Duration = Duration::from_secs(15);
/// The last part of the time of an action, one of this many: without an answer by then the request is given up. What a node begins later would be
/// over after its caller has stopped to follow it, and the node may hear of a broken link a minute late.
const LAST_PART: u32 = 10;
/// Interval of reading the boot id while everything else looks done.
const BOOT_ID_INTERVAL: Duration = Duration::from_millis(500);

/// Receives the progress of an action.
pub trait Progress {
    /// A message about the following itself: the request was accepted, the link is down, the node is back.
    fn note(&mut self, text: &str);

    /// News from the node.
    fn update(&mut self, update: &Update);
}

/// An action that reached its goal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// The actor id: the events of this action carry it.
    pub actor: String,
    /// Boot ids before and after; `None` if they may not be read, or do not matter.
    pub boot_ids: Option<(String, String)>,
    /// The time from the subscription to the goal.
    pub took: Duration,
}

/// Starts the action and follows it to its goal.
///
/// `act` sends the request and returns the actor id of the reply.
///
/// # Errors
/// The node refused it, failed at it, rolled it back ([`FailureKind::RolledBack`]), or did not reach the goal within `limit`, or gave no answer to
/// the request before the last part of it ([`FailureKind::TimedOut`]). An upgrade whose image is still being pulled then ends with the request.
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
    // Without a greeting the action is started anyway; after one, no event of it can be missed.
    let _ = timeout(HELLO_TIMEOUT, events.message()).await;
    let answer = began + (limit - limit / LAST_PART);
    let actor = answered(node.name(), answer, act(node)).await?;
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

/// Waits for the answer to a request until a moment, and gives the request up then: the call is reset, so that the node hears of it.
async fn answered(
    name: &str,
    until: Instant,
    asking: impl Future<Output = Result<String, Failure>>,
) -> Result<String, Failure> {
    let asked = Instant::now();
    match timeout_at(until, asking).await {
        Ok(answer) => answer,
        Err(_) => {
            let waited = asked.elapsed().as_secs();
            let text =
                format!("{name}: no answer to the request within {waited} s, so it is given up");
            Err(Failure::new(FailureKind::TimedOut, text).advise(
                "a node that was still pulling the image changes nothing; look whether its registry is slow, or give it more time",
            ))
        }
    }
}

/// The error of this actor's action in the node's history, if there is one.
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

/// The boot id; `None` for a caller who may act but not read files.
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

/// One action that is being followed.
struct Way<'a, P> {
    node: &'a Node,
    progress: &'a mut P,
    before: Option<String>,
    tracker: Tracker,
}

impl<P: Progress> Way<'_, P> {
    /// Follows the action to its end; returns the boot id then, if it is known.
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
                    // Without boot ids it counts as done if the action was seen to begin.
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
                    // A node that is shut down does not come back.
                    if *self.tracker.verdict() != Verdict::Done {
                        events = self.reconnect().await?;
                    }
                }
            }
        }
    }

    /// Subscribes again, however long it takes.
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

    /// The failure of the action's own sequence: with the boot id it shows whether the node went back, or never left.
    async fn failed(&mut self, error: &str) -> Failure {
        let name = self.node.name();
        let Some(before) = &self.before else {
            return Failure::new(FailureKind::Failed, format!("{name}: {error}"));
        };
        match timeout(RETRY_TIMEOUT, self.node.boot_id()).await {
            Ok(Ok(after)) if after != *before => Failure::new(
                FailureKind::RolledBack,
                format!("{name}: rolled back: {error}"),
            )
            .advise(
                "the previous version runs again; `instarctl logs machined` on the node tells more",
            ),
            _ => Failure::new(FailureKind::Failed, format!("{name}: {error}"))
                .advise("the node runs on as before"),
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

/// Whether a node that is restarting may answer with this code.
pub(crate) fn comes_back(code: Code) -> bool {
    !matches!(
        code,
        Code::Unimplemented
            | Code::PermissionDenied
            | Code::Unauthenticated
            | Code::InvalidArgument
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::future::{pending, ready};

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_request_without_an_answer_is_given_up() {
        let soon = Instant::now() + Duration::from_secs(90);
        let answer = answered("n1", soon, ready(Ok("actor".to_owned()))).await;
        assert_eq!(answer.unwrap(), "actor");

        // The call is dropped, by which the node hears of it.
        let (held, dropped) = oneshot::channel::<()>();
        let pulling = async move {
            let _held = held;
            pending().await
        };
        let given_up = answered("n1", soon, pulling).await.unwrap_err();
        assert_eq!(given_up.kind(), FailureKind::TimedOut);
        assert!(
            given_up
                .chain()
                .starts_with("n1: no answer to the request within 90 s")
        );
        assert!(dropped.await.is_err());
    }
}
