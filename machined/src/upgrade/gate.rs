//! The gate: a new generation passes it when its API answers, the services that were up before the upgrade are up again, and the config's
//! probes get an answer.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;

use super::steadiness::{Look, Run, Steadiness};
use crate::base::blocking_io;
use crate::base::lock::Lock as _;
use crate::services::{Service, Services, reach};
use crate::values::CheckTarget;

/// Time that a service must have run to count as up, unless its own check proves that it is steady: a service that crashes at once has been
/// "running" for a moment too.
const STEADY: Duration = Duration::from_secs(3);
/// Time limit for the run of a program that has to be steady.
const RUN: Duration = Duration::from_secs(3);
/// Interval between two tries of a probe: short, because the upgrade waits for it.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// A probe: a target that must answer, once or steadily.
#[derive(Debug)]
pub struct GateProbe {
    name: String,
    target: CheckTarget,
    /// Time limit of a try; a longer one has failed.
    timeout: Duration,
    steady: Option<Steady>,
    progress: Mutex<Progress>,
}

/// The proof that a program which starts again by itself has to give.
#[derive(Debug, Clone, Copy)]
pub struct Steady {
    /// Time for which each try must be answered, by one run of the program.
    pub time: Duration,
    /// Reads the program's run. Blocks.
    pub run: fn() -> Option<Run>,
}

/// The progress of a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Progress {
    NotAsked,
    Failed(String),
    /// It has answered for the first of these times, and has to for the second one.
    Proving(Duration, Duration),
    Passed,
}

impl GateProbe {
    /// Returns a probe that has not been tried.
    pub fn new(name: String, target: CheckTarget, timeout: Duration) -> Self {
        GateProbe {
            name,
            target,
            timeout,
            steady: None,
            progress: Progress::NotAsked.into(),
        }
    }

    /// Demands steady answers.
    #[must_use]
    pub fn steadily(mut self, steady: Steady) -> Self {
        self.steady = Some(steady);
        self
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.locked()
    }

    /// Tries until the target answers, steadily if that is demanded.
    async fn pass(&self) {
        let (begun, mut proof) = (Instant::now(), Steadiness::default());
        loop {
            let answer = reach(&self.target, self.timeout).await;
            let now = match (answer, &self.steady) {
                (Ok(()), None) => Progress::Passed,
                (Ok(()), Some(steady)) => {
                    let (at, run) = (begun.elapsed(), run(steady).await);
                    proof = proof.after(Look {
                        at,
                        answers: true,
                        run,
                    });
                    match proof.held(at) {
                        held if held >= steady.time => Progress::Passed,
                        held => Progress::Proving(held, steady.time),
                    }
                }
                (Err(error), _) => {
                    proof = Steadiness::Unproven;
                    Progress::Failed(format!("{error:#}"))
                }
            };
            let has_passed = now == Progress::Passed;
            *self.progress() = now;
            if has_passed {
                return;
            }
            tokio::time::sleep(ASK_AGAIN).await;
        }
    }

    /// Returns why the probe has not passed, in one line; None if it has.
    fn missing(&self) -> Option<String> {
        let progress = self.progress();
        let why = match &*progress {
            Progress::Passed => return None,
            Progress::NotAsked => "it was not asked".to_owned(),
            Progress::Failed(why) => why.clone(),
            Progress::Proving(held, time) => format!(
                "it has answered for {} s on end, and has to for {} s: it may start again and again",
                held.as_secs(),
                time.as_secs()
            ),
        };
        Some(format!("probe {:?}: {why}", self.name))
    }
}

/// Reads the run of a program; `None` if it cannot be read in time.
async fn run(steady: &Steady) -> Option<Run> {
    let run = blocking_io::within(RUN, steady.run).await;
    // Then the answers alone count.
    run.ok().flatten()
}

/// The conditions that a new generation has to meet.
#[derive(Debug, Default)]
pub struct Gate {
    /// Services that were up before; one that the config no longer names is not required.
    pub services: Vec<String>,
    /// The config's probes.
    pub probes: Vec<GateProbe>,
    /// The names of services that have proved to be steady.
    steady: Mutex<BTreeSet<String>>,
}

impl Gate {
    /// Returns a gate before which these services were up.
    pub fn new(services: Vec<String>, probes: Vec<GateProbe>) -> Self {
        Gate {
            services,
            probes,
            steady: Mutex::default(),
        }
    }

    /// Waits until the gate is passed. The caller sets the deadline.
    pub async fn pass(&self, services: &Services) {
        let required = self.required(services).into_iter();
        let services = join_all(required.map(|service| async move {
            loop {
                service.up().await;
                if service.proves_steady(STEADY).await {
                    let name = service.definition().id.clone();
                    self.steady.locked().insert(name);
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
            .filter_map(|service| {
                let is_steady = self.steady.locked().contains(&service.definition().id);
                lack(service.summary(), service.status().is_up(), is_steady)
            })
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

/// Returns what a service lacks, in one line; None if it is up and has proved to be steady.
fn lack(summary: String, is_up: bool, is_steady: bool) -> Option<String> {
    match (is_up, is_steady) {
        (true, true) => None,
        (true, false) => Some(format!(
            "{summary}: it has to stay up for {} s, and may start again and again",
            STEADY.as_secs()
        )),
        (false, _) => Some(summary),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use tokio::net::TcpListener;

    /// At the deadline a service that crashes every two seconds may be up: the reason of the rollback names it all the same.
    #[test]
    fn a_service_that_is_up_for_a_moment_lacks_steadiness() {
        let of = |is_up, is_steady| lack("service web: Running".to_owned(), is_up, is_steady);
        assert_eq!(of(true, true), None);
        let crashes = of(true, false).unwrap();
        assert!(crashes.contains("has to stay up for 3 s"), "{crashes}");
        for is_steady in [false, true] {
            assert_eq!(of(false, is_steady).unwrap(), "service web: Running");
        }
    }

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

    /// A run that changes in the middle of the proof, as that of a program which crashes.
    fn crashes_once() -> Option<Run> {
        static LOOKS: AtomicU64 = AtomicU64::new(0);
        let looks = LOOKS.fetch_add(1, Ordering::SeqCst);
        Some(Run {
            pid: None,
            restarts: u64::from(looks > 1),
        })
    }

    #[tokio::test]
    async fn a_program_that_starts_again_has_to_be_steady_from_then_on() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (time, target) = (Duration::from_secs(2), address.parse().unwrap());
        let probe = GateProbe::new("kubelet".into(), CheckTarget::Tcp(target), time);
        let probe = probe.steadily(Steady {
            time,
            run: crashes_once,
        });
        let begun = Instant::now();
        let early = tokio::time::timeout(Duration::from_millis(500), probe.pass()).await;
        assert!(early.is_err());
        let missing = probe.missing().unwrap();
        assert!(missing.contains("and has to for 2 s"), "{missing}");
        // Looks at 0, 1, 2 and 3 s: the second one is the last of the first run.
        probe.pass().await;
        assert!(begun.elapsed() > time + time / 2, "{:?}", begun.elapsed());
        assert_eq!(probe.missing(), None);
    }
}
