//! Asks a node: figures every few seconds; changes and log lines as they come. A node that goes away is asked again until it is back.

mod logs;
mod polls;
mod watches;

use std::error::Error as _;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use instar_base::lock::Lock as _;
use instar_client::Node;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tonic::{Code, Status};

use crate::known::Update;

/// Pause before a stream that ended is opened again.
const RETRY: Duration = Duration::from_millis(500);
/// The same for a stream that the node refuses: the next version may serve it.
const REFUSED_RETRY: Duration = Duration::from_secs(30);
/// A node that was lost lists all its services again within this time: those of its disk come some seconds after its API.
const BACK_WITHIN: Duration = Duration::from_secs(60);

/// The tasks that ask a node; they end when this is dropped.
pub(crate) struct Feed {
    service_log: watch::Sender<Option<String>>,
    _tasks: JoinSet<()>,
}

impl Feed {
    /// Follows the log of this service from now on, or no log.
    pub(crate) fn want_log(&self, service: Option<&str>) {
        self.service_log.send_if_modified(|wanted| {
            let changed = wanted.as_deref() != service;
            if changed {
                *wanted = service.map(str::to_owned);
            }
            changed
        });
    }
}

/// Starts the tasks. Updates carry `index`, the number of the node.
pub(crate) fn start(
    index: usize,
    node: Node,
    interval: Duration,
    sender: mpsc::Sender<(usize, Update)>,
) -> Feed {
    let (service_log, wanted) = watch::channel(None);
    let teller = Teller::new(index, sender);
    let mut tasks = JoinSet::new();
    tasks.spawn(polls::run(node.clone(), interval, teller.clone()));
    tasks.spawn(logs::kernel(node.clone(), teller.clone()));
    tasks.spawn(logs::services(node.clone(), wanted, teller.clone()));
    watches::spawn(&mut tasks, &node, &teller);
    Feed {
        service_log,
        _tasks: tasks,
    }
}

/// Sends the updates of one node.
#[derive(Clone)]
struct Teller {
    index: usize,
    sender: mpsc::Sender<(usize, Update)>,
    /// The last time that a call did not reach the node.
    lost: Arc<Mutex<Option<Instant>>>,
}

impl Teller {
    fn new(index: usize, sender: mpsc::Sender<(usize, Update)>) -> Self {
        Self {
            index,
            sender,
            lost: Arc::default(),
        }
    }

    async fn tell(&self, update: Update) {
        if matches!(update, Update::Lost(_)) {
            *self.lost.locked() = Some(Instant::now());
        }
        // The send only fails when the dashboard ends, and this task with it.
        let _ = self.sender.send((self.index, update)).await;
    }

    /// Reports a failed call if the node cannot be reached, and waits for the next attempt.
    async fn failed(&self, status: &Status) {
        if !is_refusal(status.code()) {
            self.tell(Update::Lost(reason(status))).await;
        }
        let since_lost = self.lost.locked().map(|at| at.elapsed());
        tokio::time::sleep(pause(status.code(), since_lost)).await;
    }
}

/// The pause after a failed call, by the time since the node was lost.
fn pause(code: Code, since_lost: Option<Duration>) -> Duration {
    let comes_back = since_lost.is_some_and(|since| since < BACK_WITHIN);
    match code {
        Code::NotFound if comes_back => RETRY,
        code if is_refusal(code) => REFUSED_RETRY,
        _ => RETRY,
    }
}

/// Whether the node itself answered, with a refusal.
fn is_refusal(code: Code) -> bool {
    matches!(
        code,
        Code::Unimplemented
            | Code::PermissionDenied
            | Code::NotFound
            | Code::InvalidArgument
            | Code::FailedPrecondition
            | Code::ResourceExhausted
            | Code::OutOfRange
    )
}

/// The innermost cause: the outer ones only say "transport error".
fn reason(status: &Status) -> String {
    let mut deepest: Option<&dyn std::error::Error> = status.source();
    while let Some(next) = deepest.and_then(std::error::Error::source) {
        deepest = Some(next);
    }
    match deepest {
        Some(error) => error.to_string(),
        None if status.message().is_empty() => status.code().to_string(),
        None => status.message().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_node_lacks_just_after_it_was_lost_is_asked_for_soon() {
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        for (code, since_lost, expected) in [
            (Code::Unavailable, None, RETRY),
            (Code::NotFound, None, REFUSED_RETRY),
            (Code::NotFound, seconds(0), RETRY),
            (Code::NotFound, seconds(59), RETRY),
            (Code::NotFound, seconds(60), REFUSED_RETRY),
            (Code::PermissionDenied, seconds(0), REFUSED_RETRY),
            (Code::Unimplemented, seconds(0), REFUSED_RETRY),
        ] {
            let found = pause(code, since_lost);
            assert_eq!(found, expected, "{code:?} after {since_lost:?}");
        }
    }

    #[tokio::test]
    async fn a_log_that_is_not_there_yet_after_a_lost_link_is_asked_for_soon() {
        let (sender, mut updates) = mpsc::channel(1);
        let teller = Teller::new(0, sender);
        teller.failed(&Status::unavailable("going down")).await;
        assert!(matches!(updates.recv().await, Some((0, Update::Lost(_)))));
        // Another task of the same node shares what is known of the link.
        let other = teller.clone();
        let not_there = Status::not_found("no such service yet");
        let asked_again = tokio::time::timeout(2 * RETRY, other.failed(&not_there));
        assert!(asked_again.await.is_ok());
    }

    #[test]
    fn a_reason_is_said_in_the_clearest_words_there_are() {
        assert_eq!(reason(&Status::unavailable("going down")), "going down");
        assert!(!reason(&Status::unknown("")).is_empty());
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        assert_eq!(
            reason(&Status::from_error(Box::new(refused))),
            "connection refused"
        );
    }
}
