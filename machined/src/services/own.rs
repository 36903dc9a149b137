//! machined as one of its own services, where clients look for it. It runs as long as the API answers, and the API cannot control it.

use super::health::{HealthCheck, Probe};
use super::log_ring::LogRing;
use super::service::Definition;
use super::workload::{Adopted, Running, Signal, Step, Workload};
use crate::base::Exit;
use crate::values::system_process;

use std::sync::Arc;
use std::time::Duration;

/// Its name.
pub const MACHINED: &str = system_process::MACHINED;

/// Interval between health checks: machined answers itself, so one check is enough.
const INTERVAL: Duration = Duration::from_secs(24 * 3600);

/// machined, as a service that the API cannot control.
pub(super) fn definition() -> Definition {
    Definition {
        id: MACHINED.to_owned(),
        workload: Arc::new(ThisProcess),
        depends_on: Vec::new(),
        health: Some(HealthCheck {
            probe: Probe::Own,
            interval: INTERVAL,
            timeout: Duration::from_secs(1),
            failures: 1,
        }),
        controllable: false,
        required: false,
        judged: false,
        restart_unhealthy: false,
    }
}

struct ThisProcess;

impl Workload for ThisProcess {
    fn prepare(&self) -> Step<'_, anyhow::Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn start(&self, _log: LogRing) -> Step<'_, anyhow::Result<Box<dyn Running>>> {
        Box::pin(async {
            let running: Box<dyn Running> = Box::new(ThisProcess);
            Ok(running)
        })
    }

    fn adopt(&self, _log: LogRing) -> Step<'_, Adopted> {
        Box::pin(async { Adopted::Nothing })
    }

    fn exec<'a>(&'a self, _command: &'a [String]) -> Step<'a, anyhow::Result<()>> {
        Box::pin(async { anyhow::bail!("machined is not a container") })
    }

    fn check(&self) -> Step<'_, anyhow::Result<()>> {
        // A machined that hangs does not get here; its guard ends it.
        Box::pin(async { Ok(()) })
    }
}

impl Running for ThisProcess {
    fn pid(&self) -> u32 {
        std::process::id()
    }

    fn wait(&mut self) -> Step<'_, Exit> {
        Box::pin(std::future::pending())
    }

    fn signal(&mut self, _signal: Signal) -> anyhow::Result<()> {
        anyhow::bail!("machined does not end itself by a signal")
    }

    fn clean_up(&mut self) -> Step<'_, ()> {
        Box::pin(async {})
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use crate::services::{ControlError, LogDisk, LogRing, Phase, Services};
    use crate::store::event_log::EventLog;
    use crate::store::{ServiceFact, Store};

    use super::MACHINED;

    #[tokio::test]
    async fn it_is_up_and_stays() {
        let store = Store::default();
        let services = Services::new(EventLog::default(), store.clone(), LogDisk::default());
        let log = LogRing::default();
        log.write(b"own words\n");
        let service = services.add_machined(log);
        service.up().await;
        assert_eq!(service.status().phase, Phase::Running);
        assert!(store.get::<ServiceFact>(MACHINED).unwrap().healthy);
        let last = service.status().history.back().unwrap().message.clone();
        assert!(last.ends_with(&std::process::id().to_string()), "{last}");
        // The log is the one that machined had before it was listed.
        assert!(service.log().last_line_since(0).is_some());
        for operation in ["start", "stop", "restart"] {
            let refused = services.controllable(MACHINED, operation).err().unwrap();
            assert!(matches!(refused, ControlError::NotControllable { .. }));
        }
        services.stop_workloads().await;
        assert_eq!(service.status().phase, Phase::Running);
    }
}
