//! Services of the system itself, as opposed to those of the config: apid, which handles the API's callers, and the dashboard on the
//! screen.
//!
//! The boot gets a list of them, one entry each: they serve and show the API, which is a room above. An entry says when its service starts,
//! whether the boot waits for it, and whether its failure is an error. Whether the service ends with machined or outlives its restart is up
//! to its workload ([`Workload::adopt`](crate::services::Workload)): the boot starts both kinds alike.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;

use crate::machine::Machine;
use crate::services::{Definition, Services};

/// Returns the definition of a service that is about to start; None if the machine has no use for it.
pub type Define = Box<dyn FnOnce(&Arc<Machine>) -> anyhow::Result<Option<Definition>> + Send>;

/// An entry of the list.
pub struct SystemService {
    /// Its name, the same as in its definition.
    pub name: &'static str,
    /// Makes its definition.
    pub define: Define,
    /// When it starts.
    pub starts: Moment,
    /// Time limit for the boot's wait until it is up; the boot then goes on without it. None: the boot does not wait.
    pub awaited: Option<Duration>,
    /// How serious a failure to start is.
    pub absence: Absence,
    /// The capability that the machine gains when it has started, or is up if the boot waits for it; for the log.
    pub gain: String,
    /// Time limit for its last answers before a change of generations; None: it has no callers, and ends with its generation.
    pub last_answers: Option<Duration>,
}

/// A moment of the boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// The config is loaded, and the network is coming up.
    WithNetwork,
    /// Callers can reach the API; the rest of the config is still to be carried out.
    OnceReachable,
}

/// How serious a service's failure to start is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Absence {
    /// The boot's step fails.
    Error,
    /// The machine works without it.
    Warning,
}

/// Takes the entries for a moment out of the list.
pub(super) fn take(list: &mut Vec<SystemService>, moment: Moment) -> Vec<SystemService> {
    list.extract_if(.., |entry| entry.starts == moment)
        .collect()
}

/// Starts these services in parallel. Returns an error if a service does not start that the boot needs.
pub(super) async fn start(
    machine: Arc<Machine>,
    entries: Vec<SystemService>,
) -> anyhow::Result<()> {
    let starts = entries.into_iter().map(|entry| {
        let SystemService {
            name,
            define,
            awaited,
            absence,
            gain,
            last_answers,
            starts: _,
        } = entry;
        let defined = define(&machine);
        let services = &machine.services;
        if let Some(limit) = last_answers {
            services.drain_before_next(name, limit);
        }
        async move {
            let started = match defined {
                Ok(Some(definition)) => bring_up(services, definition, awaited, &gain).await,
                Ok(None) => Ok(()),
                Err(error) => Err(error),
            };
            judge(name, absence, started)
        }
    });
    let started = futures_util::future::join_all(starts).await;
    started.into_iter().collect()
}

/// Adds a service, starts it and waits, within a limit, until it is up. The boot goes on without a late service: on a machine so slow, the
/// disk and the other services are still worth having, the late one keeps trying, and a version on trial has to answer before it is kept.
async fn bring_up(
    services: &Services,
    definition: Definition,
    awaited: Option<Duration>,
    gain: &str,
) -> anyhow::Result<()> {
    let service = services.add(definition)?;
    service.start();
    if let Some(limit) = awaited
        && tokio::time::timeout(limit, service.up()).await.is_err()
    {
        tracing::error!(
            "the boot goes on without a service that is not up after {} s: {}",
            limit.as_secs(),
            service.summary()
        );
        return Ok(());
    }
    tracing::info!("{gain}");
    Ok(())
}

/// Decides whether a service that did not start is an error of the boot.
fn judge(name: &str, absence: Absence, started: anyhow::Result<()>) -> anyhow::Result<()> {
    match (absence, started) {
        (Absence::Warning, Err(error)) => {
            tracing::warn!("the machine goes on without {name}: {error:#}");
            Ok(())
        }
        (_, started) => started.with_context(|| format!("start {name}")),
    }
}

/// Makes the services with callers answer their open calls and end, within a limit: new calls to apid wait in the listening socket for the
/// next apid. If there is no next generation, the function that starts the workloads again starts these services, too.
pub(super) async fn drain(services: &Services) {
    for name in services.drain().await {
        tracing::warn!("{name} has not ended in time, and is killed with its generation");
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::services::workload_for_tests::{self, RunningSlow};
    use crate::services::{Adopted, LogDisk, LogRing, Running, Step, Workload};
    use crate::store::Store;
    use crate::store::event_log::EventLog;

    /// A workload that starts at once, or never.
    struct Eager(bool);

    impl Workload for Eager {
        fn prepare(&self) -> Step<'_, anyhow::Result<()>> {
            Box::pin(async { Ok(()) })
        }

        fn start(&self, _log: LogRing) -> Step<'_, anyhow::Result<Box<dyn Running>>> {
            Box::pin(async {
                match self.0 {
                    true => Ok(Box::new(RunningSlow::new(None)) as Box<dyn Running>),
                    false => std::future::pending().await,
                }
            })
        }

        fn adopt(&self, _log: LogRing) -> Step<'_, Adopted> {
            Box::pin(async { Adopted::Nothing })
        }

        fn exec<'a>(&'a self, _command: &'a [String]) -> Step<'a, anyhow::Result<()>> {
            Box::pin(async { Ok(()) })
        }
    }

    fn definition(is_eager: bool) -> Definition {
        Definition {
            workload: Arc::new(Eager(is_eager)),
            controllable: false,
            judged: false,
            ..workload_for_tests::definition("guard", None)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_boot_waits_for_a_service_as_its_entry_says() {
        let limit = Duration::from_secs(60);
        for (is_eager, awaited, waits, is_up) in [
            (true, Some(limit), false, true),
            (false, Some(limit), true, false),
            (false, None, false, false),
        ] {
            let services = Services::new(EventLog::default(), Store::default(), LogDisk::default());
            let began = tokio::time::Instant::now();
            let brought = bring_up(&services, definition(is_eager), awaited, "it works").await;
            // A late service is no failure: it keeps trying.
            brought.unwrap();
            let case = format!("eager: {is_eager}, awaited: {awaited:?}");
            assert_eq!(began.elapsed() >= limit, waits, "{case}");
            assert_eq!(
                services.get("guard").unwrap().status().is_up(),
                is_up,
                "{case}"
            );
            // A second service of the same name is refused.
            assert!(
                bring_up(&services, definition(true), None, "")
                    .await
                    .is_err()
            );
        }
    }

    #[test]
    fn only_what_the_boot_cannot_do_without_fails_it() {
        for (absence, starts, fails) in [
            (Absence::Error, true, false),
            (Absence::Error, false, true),
            (Absence::Warning, true, false),
            (Absence::Warning, false, false),
        ] {
            let started = match starts {
                true => Ok(()),
                false => Err(anyhow::anyhow!("no program")),
            };
            let judged = judge("guard", absence, started);
            assert_eq!(judged.is_err(), fails, "{absence:?}, starts: {starts}");
            if let Err(error) = judged {
                assert_eq!(format!("{error:#}"), "start guard: no program");
            }
        }
    }

    #[test]
    fn each_entry_is_taken_once_and_in_order() {
        let entry = |name, starts| SystemService {
            name,
            define: Box::new(|_| Ok(None)),
            starts,
            awaited: None,
            absence: Absence::Warning,
            gain: String::new(),
            last_answers: None,
        };
        let mut list = vec![
            entry("one", Moment::WithNetwork),
            entry("two", Moment::OnceReachable),
            entry("three", Moment::WithNetwork),
        ];
        for (moment, names) in [
            (Moment::WithNetwork, vec!["one", "three"]),
            (Moment::OnceReachable, vec!["two"]),
            (Moment::OnceReachable, vec![]),
        ] {
            let taken = take(&mut list, moment);
            assert_eq!(
                taken.iter().map(|entry| entry.name).collect::<Vec<_>>(),
                names
            );
        }
        assert!(list.is_empty());
    }
}
