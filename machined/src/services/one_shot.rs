//! A container that does one piece of work and ends, such as the installer: its end, its exit status, its last words, and its removal.

use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::process::Signal;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::base::Exit;
use crate::containers::{RunningContainer, Runtime};
use crate::init_link::InitLink;
use crate::oci::ImageStore;

/// Time limit from SIGKILL to the end of every process that does not hang in the kernel.
const DEATH: Duration = Duration::from_secs(10);
/// Time limit for init's report of the exit, and for the rest of the output; both follow at once.
const RIGHT_BEHIND: Duration = Duration::from_secs(5);
/// Time limit for two calls of crun, with a minute each, and the removal of the container's files.
const REMOVAL: Duration = Duration::from_secs(180);

/// A container that is to end by itself.
pub struct OneShot<'a> {
    /// Its name in errors, as in "the installer".
    pub what: &'static str,
    /// Its first process.
    pub running: RunningContainer,
    /// The runtime that has made it.
    pub runtime: &'a Runtime,
    /// The store of its image.
    pub store: &'a ImageStore,
    /// Reports its exit status.
    pub init: &'a InitLink,
}

/// A one-shot container that has ended and is removed.
pub struct Ended {
    what: &'static str,
    /// An error if it was killed because it took too long, or could not be watched.
    in_time: anyhow::Result<()>,
    exit: Option<Exit>,
}

impl OneShot<'_> {
    /// Waits until it has ended, at most `patience`, then kills it; removes it and its mounts.
    ///
    /// # Errors
    /// It cannot be removed.
    pub async fn end(self, patience: Duration) -> anyhow::Result<Ended> {
        let (what, running) = (self.what, &self.running);
        let in_time = end(what, running, patience).await;
        let told = self.init.exit_of(running.pid(), running.since());
        let exit = timeout(RIGHT_BEHIND, told).await.ok();
        let removed = self.runtime.delete(running.name(), self.store);
        let late = || {
            let limit = REMOVAL.as_secs();
            format!("the container of {what} is not removed within {limit} s")
        };
        timeout(REMOVAL, removed).await.with_context(late)??;
        Ok(Ended {
            what,
            in_time,
            exit,
        })
    }
}

impl Ended {
    /// Checks that it ended in time and with the status 0. An error quotes what it said; `quoted` introduces the quote where it took too long, as
    /// in "the installer said".
    ///
    /// # Errors
    /// It ended otherwise, or nobody knows how.
    pub fn check(self, quoted: &str, said: &str) -> anyhow::Result<()> {
        self.in_time.with_context(|| format!("{quoted}: {said}"))?;
        match self.exit {
            Some(Exit::Code(0)) => Ok(()),
            Some(exit) => bail!("{} {exit}: {said}", self.what),
            None => bail!("nobody knows how {} ended: {said}", self.what),
        }
    }
}

async fn end(what: &str, running: &RunningContainer, patience: Duration) -> anyhow::Result<()> {
    let watch = || format!("wait for {what}");
    if let Ok(ended) = timeout(patience, running.wait()).await {
        return ended.with_context(watch);
    }
    let killed = running.kill(Signal::KILL);
    killed.with_context(|| format!("end {what}"))?;
    let hangs =
        || format!("{what} hangs in the kernel: not even SIGKILL ends it; reboot the machine");
    let died = timeout(DEATH, running.wait()).await;
    died.with_context(hangs)?.with_context(watch)?;
    bail!(
        "it did not end within {} s and was killed",
        patience.as_secs()
    )
}

/// Returns the output that a task has collected of a container that has ended, without blanks around it; empty if it does not come.
pub async fn last_words(said: JoinHandle<String>) -> String {
    let said = timeout(RIGHT_BEHIND, said).await;
    let said = said.map_or_else(|_| String::new(), Result::unwrap_or_default);
    said.trim().to_owned()
}
