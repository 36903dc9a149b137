//! A workload for tests of everything that starts and stops services: it runs until it is told to end, and then takes its time.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::log_ring::LogRing;
use super::workload::{Adopted, Running, Signal, Step, Workload};
use super::{Definition, Service, Services};
use crate::base::Exit;

/// A workload that ends this long after the first signal; without a time, not even SIGKILL ends it.
struct Slow {
    ends_after: Option<Duration>,
}

/// Such a workload, started.
pub(crate) struct RunningSlow {
    ends_after: Option<Duration>,
    ends_at: watch::Sender<Option<Instant>>,
}

impl RunningSlow {
    /// One that nobody has told to end.
    pub(crate) fn new(ends_after: Option<Duration>) -> Self {
        RunningSlow {
            ends_after,
            ends_at: watch::Sender::new(None),
        }
    }

    /// One that ends in this moment.
    pub(crate) fn ending() -> Self {
        RunningSlow {
            ends_after: Some(Duration::ZERO),
            ends_at: watch::Sender::new(Some(Instant::now())),
        }
    }
}

impl Workload for Slow {
    fn prepare(&self) -> Step<'_, anyhow::Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn start(&self, _log: LogRing) -> Step<'_, anyhow::Result<Box<dyn Running>>> {
        let running: Box<dyn Running> = Box::new(RunningSlow::new(self.ends_after));
        Box::pin(async { Ok(running) })
    }

    fn adopt(&self, _log: LogRing) -> Step<'_, Adopted> {
        Box::pin(async { Adopted::Nothing })
    }

    fn exec<'a>(&'a self, _command: &'a [String]) -> Step<'a, anyhow::Result<()>> {
        Box::pin(async { Ok(()) })
    }
}

impl Running for RunningSlow {
    fn pid(&self) -> u32 {
        1
    }

    fn wait(&mut self) -> Step<'_, Exit> {
        let mut ends_at = self.ends_at.subscribe();
        Box::pin(async move {
            // An error says that the test is over.
            let at = ends_at.wait_for(Option::is_some).await.map(|at| *at);
            if let Ok(Some(at)) = at {
                sleep_until(at).await;
            }
            Exit::Code(0)
        })
    }

    fn signal(&mut self, _signal: Signal) -> anyhow::Result<()> {
        let after_this_one = self.ends_after.map(|after| Instant::now() + after);
        self.ends_at
            .send_modify(|ends_at| *ends_at = ends_at.or(after_this_one));
        Ok(())
    }

    fn clean_up(&mut self) -> Step<'_, ()> {
        // A process that hangs in the kernel keeps its files busy.
        let hangs = self.ends_after.is_none();
        Box::pin(async move {
            if hangs {
                std::future::pending().await
            }
        })
    }
}

/// A service with such a workload.
pub(crate) fn definition(id: &str, ends_after: Option<Duration>) -> Definition {
    Definition {
        id: id.to_owned(),
        workload: Arc::new(Slow { ends_after }),
        depends_on: Vec::new(),
        health: None,
        controllable: true,
        required: false,
        judged: true,
        restart_unhealthy: false,
    }
}

/// Adds such a service, starts it and waits until it is up.
pub(crate) async fn running(
    services: &Services,
    id: &str,
    ends_after: Option<Duration>,
) -> Service {
    let service = services.add(definition(id, ends_after)).unwrap();
    service.start();
    service.up().await;
    service
}
