//! The API's view during a fault.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use instar_api::machine::ServiceInfo;
use instar_tests::Node;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Timeout for an answer.
const ANSWER: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(250);
/// Number of characters kept of a service's event.
const WORDS: usize = 90;

type Happening = (String, String, String);

/// A client that watches the node throughout a fault.
pub(super) struct Shown {
    before: BTreeSet<Happening>,
    stop: watch::Sender<bool>,
    looking: JoinHandle<Duration>,
}

impl Shown {
    pub(super) async fn begin(node: &Arc<Node>) -> anyhow::Result<Self> {
        let before = listed(node).await?;
        let (stop, stopped) = watch::channel(false);
        Ok(Self {
            before,
            stop,
            looking: tokio::spawn(silence(node.clone(), stopped)),
        })
    }

    /// Ends the watching. Returns all that was seen, after `said`: the answers to the fault's own calls.
    pub(super) async fn end(self, node: &Node, said: Vec<String>) -> anyhow::Result<Seen> {
        self.stop.send(true)?;
        let silence = self.looking.await.context("who looked")?;
        let after = listed(node).await?;
        let happened = after.difference(&self.before);
        let told = happened.filter(|(_, state, _)| state != "Running" && state != "Starting");
        let told = told.map(|(id, state, message)| {
            let message: String = message.chars().take(WORDS).collect();
            format!("{id} {state}: {message}")
        });
        let told = said.into_iter().chain(told).collect();
        Ok(Seen { silence, told })
    }
}

/// Returns how long the API did not answer in all, until it is stopped.
async fn silence(node: Arc<Node>, stopped: watch::Receiver<bool>) -> Duration {
    let mut silence = Duration::ZERO;
    while !*stopped.borrow() {
        let asked = Instant::now();
        match tokio::time::timeout(ANSWER, node.version()).await {
            Ok(Ok(_)) => tokio::time::sleep(PAUSE).await,
            _ => {
                tokio::time::sleep(PAUSE.saturating_sub(asked.elapsed())).await;
                silence += asked.elapsed();
            }
        }
    }
    silence
}

pub(super) struct Seen {
    silence: Duration,
    told: Vec<String>,
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.silence.is_zero() {
            true => f.write_str("always answered")?,
            false => write!(f, "no answer for {:.1} s", self.silence.as_secs_f64())?,
        }
        for told in &self.told {
            write!(f, "; {told}")?;
        }
        Ok(())
    }
}

async fn listed(node: &Node) -> anyhow::Result<BTreeSet<Happening>> {
    let services = || happenings(node);
    node.wait_until("services are listed", crate::PATIENCE, services)
        .await
}

async fn happenings(node: &Node) -> anyhow::Result<BTreeSet<Happening>> {
    let of_one = |service: ServiceInfo| {
        let id = service.id;
        let events = service.events.unwrap_or_default().events;
        events
            .into_iter()
            .map(move |event| (id.clone(), event.state, event.msg))
    };
    Ok(node
        .services()
        .await?
        .into_iter()
        .flat_map(of_one)
        .collect())
}
