//! Changes of versions: planned ones, and a background of others that goes on throughout the test.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use instar_api::machine::UpgradeRequest;
use instar_tests::Outcome;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::{Code, Status};

use super::{Chaos, GIVES_UP};
use crate::installed::INSTALLER;

/// Time from the start of one change to the start of the next.
const EACH: Duration = Duration::from_secs(30);
/// Timeout for an answer. The node fetches the image before it answers.
const ANSWER: Duration = Duration::from_secs(60);
const PATIENCE: Duration = Duration::from_secs(240);
/// Number of characters kept of a refusal.
const WORDS: usize = 100;

/// Upgrades and rollbacks by turns, and the answer to each.
pub(super) struct Changes {
    stop: watch::Sender<bool>,
    changing: JoinHandle<BTreeMap<String, usize>>,
}

impl Changes {
    pub(super) fn begin(chaos: &Arc<Chaos>) -> Self {
        let (stop, stopped) = watch::channel(false);
        let changing = tokio::spawn(change_on_and_on(chaos.clone(), stopped));
        Self { stop, changing }
    }

    /// Stops the changes; returns each answer and its count.
    pub(super) async fn end(self) -> anyhow::Result<BTreeMap<String, usize>> {
        self.stop.send(true)?;
        self.changing.await.context("who changes versions")
    }
}

async fn change_on_and_on(
    chaos: Arc<Chaos>,
    mut stopped: watch::Receiver<bool>,
) -> BTreeMap<String, usize> {
    let mut said = BTreeMap::new();
    for tag in ["v0.2.0", GIVES_UP, "v0.1.0", GIVES_UP].iter().cycle() {
        *said.entry(chaos.said_to_a_change(tag).await).or_default() += 1;
        if tokio::time::timeout(EACH, stopped.changed()).await.is_ok() {
            break;
        }
    }
    said
}

/// Shortens an answer to the part that is the same each time.
pub(super) fn in_short(status: &Status) -> String {
    let words = status.message().split(" for ").next().unwrap_or_default();
    let words: String = words.chars().take(WORDS).collect();
    format!("{:?}: {words}", status.code())
}

impl Chaos {
    /// Asks for a change to a version; returns the answer.
    async fn said_to_a_change(&self, tag: &str) -> String {
        let _alone = self.changing.lock().await;
        match tokio::time::timeout(ANSWER, self.ask_for(tag)).await {
            Ok(Ok(())) => "taken".to_owned(),
            Ok(Err(status)) => in_short(&status),
            Err(_) => "no answer".to_owned(),
        }
    }

    /// Asks for a version, whatever became of earlier requests.
    pub(super) async fn ask_for(&self, tag: &str) -> Result<(), Status> {
        let host = self.registry.host_for_guest();
        let request = UpgradeRequest {
            image: format!("{host}/{INSTALLER}:{tag}"),
            preserve: true,
            force: true,
            ..UpgradeRequest::default()
        };
        let machine = self.node.machine().await;
        let mut machine = machine.map_err(|error| Status::unavailable(format!("{error:#}")))?;
        machine.upgrade(request).await.map(drop)
    }

    /// As [`Self::ask_for`], repeated until the machine is free.
    pub(super) async fn ask_when_free(&self, tag: &str) -> Outcome {
        self.node
            .wait_until("an upgrade is taken", PATIENCE, async || {
                let answer = tokio::time::timeout(ANSWER, self.ask_for(tag)).await?;
                Ok(answer?)
            })
            .await
    }

    /// Changes to a version, and waits until it runs, or is rolled back.
    pub(super) async fn change_to(&self, tag: &str) -> Outcome {
        let _alone = self.changing.lock().await;
        self.ask_when_free(tag).await?;
        // Read only now: an earlier change may run until the lock is taken.
        let before = self.node.version().await?.tag;
        let mark = self.node.vm().console_mark()?;
        self.another_generation_runs().await?;
        let (runs, line) = match tag {
            GIVES_UP => (before.as_str(), "it is to fail"),
            tag => (tag, "upgraded from"),
        };
        self.node.vm().wait_for_line_after(mark, line, PATIENCE)?;
        self.is_well().await?;
        let now = self.node.version().await?.tag;
        ensure!(now == runs, "{now} runs after a change to {tag}");
        Ok(())
    }

    async fn another_generation_runs(&self) -> Outcome {
        let generation = self.node.boot_id().await?;
        let is_another = async || {
            let now = self.node.boot_id().await?;
            ensure!(now != generation, "it is the same generation");
            Ok(())
        };
        self.node
            .wait_until("another generation runs", PATIENCE, is_another)
            .await
    }
}

/// Whether the status only says that another operation is running.
pub(super) fn is_busy(status: &Status) -> bool {
    status.message().contains("busy") || status.code() == Code::Unavailable
}
