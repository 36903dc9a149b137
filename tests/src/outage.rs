//! Measures the outage of an API: asks for its version again and again, each time on a new connection.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Pause between two questions, so that the probe does not keep the node busy.
const PAUSE: Duration = Duration::from_millis(10);

/// An outage between two versions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outage {
    /// Time from the last answer of the old version to the first of the new one, by the probe's clock.
    pub length: Duration,
    /// Number of the old version's answers.
    pub answers_before: u32,
    /// Number of tries that ended in an error; a delayed answer is none.
    pub failures: u32,
    /// The new version.
    pub version: String,
}

/// A running probe; it ends with the first answer of another version than the first one.
#[derive(Debug)]
pub struct OutageProbe {
    task: JoinHandle<Result<Outage>>,
    answers: watch::Receiver<u32>,
}

impl OutageProbe {
    /// Starts a probe. `version` connects and asks; `clock` returns the time that is measured.
    pub fn start<Asked>(
        version: impl Fn() -> Asked + Send + Sync + 'static,
        clock: impl Fn() -> Result<Duration> + Send + Sync + 'static,
    ) -> Self
    where
        Asked: Future<Output = Result<String>> + Send,
    {
        let clock = Arc::new(clock);
        let (count, answers) = watch::channel(0);
        let task = tokio::spawn(async move {
            let mut first: Option<String> = None;
            let mut last_answer = Duration::ZERO;
            let mut failures = 0;
            loop {
                let Ok(version) = version().await else {
                    failures += 1;
                    tokio::time::sleep(PAUSE).await;
                    continue;
                };
                let clock = clock.clone();
                let now = tokio::task::spawn_blocking(move || clock())
                    .await
                    .context("the clock's thread")??;
                if first.get_or_insert_with(|| version.clone()) != &version {
                    return Ok(Outage {
                        length: now.saturating_sub(last_answer),
                        answers_before: *count.borrow(),
                        failures,
                        version,
                    });
                }
                last_answer = now;
                count.send_modify(|count| *count += 1);
                tokio::time::sleep(PAUSE).await;
            }
        });
        Self { task, answers }
    }

    /// Waits until the old version has answered often enough to show that the probe works.
    pub async fn warm(&mut self) -> Result<()> {
        self.answers
            .wait_for(|answers| *answers >= 3)
            .await
            .context("the probe ended early")?;
        Ok(())
    }

    /// Waits for the new version.
    pub async fn outage(self, within: Duration) -> Result<Outage> {
        tokio::time::timeout(within, self.task)
            .await
            .context("no other version answers")?
            .context("the probe's task")?
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[tokio::test]
    async fn counts_from_the_last_old_answer_to_the_first_new_one() {
        let asked = Arc::new(AtomicU64::new(0));
        let step = asked.clone();
        let mut probe = OutageProbe::start(
            move || {
                let number = step.fetch_add(1, Ordering::SeqCst);
                async move {
                    match number {
                        0..10 => Ok("v1".to_owned()),
                        10..12 => anyhow::bail!("away"),
                        _ => Ok("v2".to_owned()),
                    }
                }
            },
            move || Ok(Duration::from_secs(asked.load(Ordering::SeqCst))),
        );
        probe.warm().await.unwrap();
        let outage = probe.outage(Duration::from_secs(5)).await.unwrap();
        assert_eq!(outage.length, Duration::from_secs(3));
        assert_eq!((outage.answers_before, outage.failures), (10, 2));
        assert_eq!(outage.version, "v2");
    }
}
