//! A client that asks for the version ten times a second. It retries nothing, so each failed call is reported.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use instar_api::machine::machine_service_client::MachineServiceClient;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Endpoint};

/// Time from the start of one call to the start of the next.
const PACE: Duration = Duration::from_millis(100);

/// A client at work.
#[derive(Debug)]
pub struct SteadyCalls {
    stop: watch::Sender<bool>,
    calling: JoinHandle<Calling>,
}

impl SteadyCalls {
    /// Calls over one connection.
    pub fn over(channel: Channel) -> Self {
        Self::begin(move || version_over(channel.clone()))
    }

    /// Calls over a new connection each time.
    pub fn anew(way_in: Endpoint) -> Self {
        Self::begin(move || version_anew(way_in.clone()))
    }

    fn begin<Asking>(ask: impl Fn() -> Asking + Send + Sync + 'static) -> Self
    where
        Asking: Future<Output = Result<String>> + Send + 'static,
    {
        let (stop, stopped) = watch::channel(false);
        let calling = tokio::spawn(call_on_and_on(stopped, ask));
        Self { stop, calling }
    }

    /// Ends the client after the call that is under way.
    pub async fn end(self) -> Result<Calling> {
        self.stop.send(true)?;
        self.calling.await.context("the client that calls")
    }
}

/// The results of a client's calls.
#[derive(Debug, Default)]
pub struct Calling {
    /// Number of calls.
    pub calls: usize,
    /// Time of the slowest answer.
    pub slowest: Duration,
    /// The errors of the failed calls.
    pub failed: Vec<String>,
    /// Number of calls that failed because a connection was refused.
    pub refused: usize,
    /// Number of calls that failed because the client's own connection ended before it had sent them. tonic does not send such a call again,
    /// as grpcio does, and drops it if GOAWAY comes while the call waits for a thread of the client.
    pub unsent: usize,
    /// Number of changes of the answering version, plus one for the first.
    pub versions: usize,
}

impl Calling {
    /// Reads the results that the Python client prints (`tests/peers/call_on_and_on.py`).
    pub fn told_by(said: &Value) -> Result<Self> {
        let list = |key: &str| said[key].as_array().cloned().context("no list");
        let failed: Vec<_> = list("failed")?.iter().map(Value::to_string).collect();
        let calls = said["calls"].as_u64().context("no number of calls")?;
        Ok(Self {
            calls: usize::try_from(calls)?,
            slowest: Duration::from_secs_f64(said["slowest"].as_f64().context("no time")?),
            refused: failed.iter().filter(|why| is_refusal(why)).count(),
            unsent: 0,
            failed,
            versions: list("versions")?.len(),
        })
    }
}

impl fmt::Display for Calling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} calls, {} failed, {} of them unsent, {} refused connections, the slowest answer took {:.0} ms",
            self.calls,
            self.failed.len(),
            self.unsent,
            self.refused,
            self.slowest.as_secs_f64() * 1000.0
        )
    }
}

fn is_refusal(why: &str) -> bool {
    why.contains("Connection refused") || why.contains("ConnectionRefused")
}

/// hyper's word for a request that its connection has not taken.
fn is_unsent(why: &str) -> bool {
    why.contains("hyper::Error(Canceled")
}

async fn call_on_and_on<Asking>(stopped: watch::Receiver<bool>, ask: impl Fn() -> Asking) -> Calling
where
    Asking: Future<Output = Result<String>>,
{
    let mut calling = Calling::default();
    let mut newest = String::new();
    let began = Instant::now();
    while !*stopped.borrow() {
        let begin = Instant::now();
        calling.calls += 1;
        match ask().await {
            Ok(version) if version != newest => {
                newest = version;
                calling.versions += 1;
            }
            Ok(_) => {}
            Err(error) => {
                let why = format!("{error:?}");
                calling.refused += usize::from(is_refusal(&why));
                calling.unsent += usize::from(is_unsent(&why));
                let (asked, answered) = (begin - began, began.elapsed());
                let when = format!("asked after {asked:.1?}, answered after {answered:.1?}");
                calling.failed.push(format!("{when}: {why}"));
            }
        }
        let took = begin.elapsed();
        calling.slowest = calling.slowest.max(took);
        tokio::time::sleep(PACE.saturating_sub(took)).await;
    }
    calling
}

/// Returns the node's version.
pub async fn version_over(channel: Channel) -> Result<String> {
    let answer = MachineServiceClient::new(channel).version(()).await?;
    let of_this_node = answer.into_inner().messages.into_iter().next();
    let version = of_this_node.and_then(|message| message.version);
    Ok(version.context("an empty answer")?.tag)
}

async fn version_anew(way_in: Endpoint) -> Result<String> {
    version_over(way_in.connect().await?).await
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_failure_and_each_version_is_told() {
        let asked = AtomicU32::new(0);
        let calls = SteadyCalls::begin(move || {
            let number = asked.fetch_add(1, Ordering::SeqCst);
            async move {
                match number {
                    0..10 => Ok("v1".to_owned()),
                    10 => anyhow::bail!("Connection refused"),
                    11 => anyhow::bail!("reset"),
                    12 => anyhow::bail!("hyper::Error(Canceled, \"connection closed\")"),
                    _ => Ok("v2".to_owned()),
                }
            }
        });
        tokio::time::sleep(Duration::from_secs(2)).await;
        let calling = calls.end().await.unwrap();
        assert!(calling.calls > 13, "{calling:?}");
        assert_eq!((calling.versions, calling.refused), (2, 1));
        assert_eq!((calling.failed.len(), calling.unsent), (3, 1));
    }
}
