//! The gate: a new generation passes it when its API answers, the services that were up before the upgrade are up again, and the config's
//! probes get an answer.

use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use futures_util::future::join_all;

use crate::base::lock::Lock as _;
use crate::services::{Service, Services, reach};
use crate::values::CheckTarget;

/// Time that a service must have run to count as up, unless its own check proves that it is steady: a service that crashes at once has been
/// "running" for a moment too.
const STEADY: Duration = Duration::from_secs(3);
/// Interval between two tries of a probe: short, because the upgrade waits for it.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// A probe: a target that must answer once.
#[derive(Debug)]
pub struct GateProbe {
    name: String,
    target: CheckTarget,
    /// Time limit of a try; a longer one has failed.
    timeout: Duration,
    progress: Mutex<Progress>,
}

/// The progress of a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Progress {
    NotAsked,
    Failed(String),
    Passed,
}

impl GateProbe {
    /// Returns a probe that has not been tried.
    pub fn new(name: String, target: CheckTarget, timeout: Duration) -> Self {
        GateProbe {
            name,
            target,
            timeout,
            progress: Progress::NotAsked.into(),
        }
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.locked()
    }

    /// Tries until the target answers.
    async fn pass(&self) {
        loop {
            match reach(&self.target, self.timeout).await {
                Ok(()) => break,
                Err(error) => *self.progress() = Progress::Failed(format!("{error:#}")),
            }
            tokio::time::sleep(ASK_AGAIN).await;
        }
        *self.progress() = Progress::Passed;
    }

    /// Returns why the probe has not passed, in one line; None if it has.
    fn missing(&self) -> Option<String> {
        let progress = self.progress();
        let what = match &*progress {
            Progress::Passed => return None,
            Progress::NotAsked => "it was not asked",
            Progress::Failed(why) => why,
        };
        Some(format!("probe {:?}: {what}", self.name))
    }
}

/// The conditions that a new generation has to meet.
#[derive(Debug, Default)]
pub struct Gate {
    /// Services that were up before; one that the config no longer names is not required.
    pub services: Vec<String>,
    /// The config's probes.
    pub probes: Vec<GateProbe>,
}

impl Gate {
    /// Waits until the gate is passed. The caller sets the deadline.
    pub async fn pass(&self, services: &Services) {
        let required = self.required(services).into_iter();
        let services = join_all(required.map(|service| async move {
            loop {
                service.up().await;
                if service.proves_steady(STEADY).await {
                    return;
                }
                // It may be up without answering; its next check shows that.
                tokio::time::sleep(ASK_AGAIN).await;
            }
        }));
        let probes = join_all(self.probes.iter().map(GateProbe::pass));
        tokio::join!(services, probes);
    }

    /// Returns the conditions that are not met yet, for the reason of a rollback.
    pub fn missing(&self, services: &Services) -> Vec<String> {
        let required = self.required(services).into_iter();
        required
            .filter(|service| !service.status().is_up())
            .map(|service| service.summary())
            .chain(self.probes.iter().filter_map(GateProbe::missing))
            .collect()
    }

    fn required(&self, services: &Services) -> Vec<Service> {
        let mut services = services.list();
        services.retain(|service| {
            let definition = service.definition();
            definition.required || self.services.contains(&definition.id)
        });
        services
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tokio::net::TcpListener;

    #[tokio::test]
    async fn a_probe_passes_when_it_is_answered_and_says_why_not() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let probe = GateProbe::new(
            "outside".into(),
            CheckTarget::Tcp(address.to_string().parse().unwrap()),
            Duration::from_secs(5),
        );
        assert_eq!(
            probe.missing().unwrap(),
            "probe \"outside\": it was not asked"
        );
        let in_vain = tokio::time::timeout(Duration::from_millis(200), probe.pass()).await;
        assert!(in_vain.is_err());
        let missing = probe.missing().unwrap();
        assert!(
            missing.starts_with(&format!("probe \"outside\": connect to {address}: ")),
            "{missing}"
        );
        let _listener = TcpListener::bind(address).await.unwrap();
        probe.pass().await;
        assert_eq!(probe.missing(), None);
    }
}
