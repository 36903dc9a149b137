//! Services of a workload that takes its time to end, on a clock that jumps from one wait to the next.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::*;
use crate::base::Exit;
use crate::store::MachineStage;

/// Ends so long after it was asked to; not even SIGKILL makes one without an end go away.
struct Slow {
    ends_after: Option<Duration>,
}

struct RunningSlow {
    ends_after: Option<Duration>,
    ends_at: Option<Instant>,
}

impl Workload for Slow {
    fn prepare(&self) -> Step<'_, anyhow::Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn start(&self, _log: LogRing) -> Step<'_, anyhow::Result<Box<dyn Running>>> {
        let running = RunningSlow {
            ends_after: self.ends_after,
            ends_at: None,
        };
        Box::pin(async { Ok(Box::new(running) as Box<dyn Running>) })
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
        Box::pin(async {
            match self.ends_at {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
            Exit::Code(0)
        })
    }

    fn signal(&mut self, _signal: Signal) -> anyhow::Result<()> {
        let ends_at = self.ends_after.map(|after| Instant::now() + after);
        self.ends_at = self.ends_at.or(ends_at);
        Ok(())
    }

    fn clean_up(&mut self) -> Step<'_, ()> {
        // One that hangs in the kernel keeps its files busy.
        let hangs = self.ends_after.is_none();
        Box::pin(async move {
            if hangs {
                std::future::pending().await
            }
        })
    }
}

fn services() -> Services {
    Services::new(EventLog::default(), Store::default(), LogDisk::default())
}

fn definition(id: &str, ends_after: Option<Duration>) -> Definition {
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

async fn running(services: &Services, id: &str, ends_after: Option<Duration>) -> Service {
    let service = services.add(definition(id, ends_after)).unwrap();
    service.start();
    service.up().await;
    service
}

const EIGHT: Option<Duration> = Some(Duration::from_secs(8));

#[tokio::test(start_paused = true)]
async fn a_start_does_not_stop_what_stops_everything() {
    let services = services();
    let service = running(&services, "web", EIGHT).await;
    services.store.put(
        MachineStatus::ID,
        MachineStatus {
            stage: MachineStage::Rebooting,
            ready: false,
            unmet: Vec::new(),
        },
    );
    let operator = async {
        sleep(Duration::from_secs(2)).await;
        let refused = services.start("web").unwrap_err().to_string();
        assert!(refused.contains("the machine is rebooting"), "{refused}");
        assert!(services.restart("web").await.is_err());
        // Who starts it by other ways than the API is heard when the hold is over.
        service.start();
    };
    let stopping = timeout(Duration::from_secs(30), services.stop_workloads());
    let (stopped, ()) = tokio::join!(stopping, operator);
    stopped.expect("it waits for ever");
    assert_eq!(service.status().phase, Phase::Finished);
    sleep(Duration::from_secs(5)).await;
    assert_eq!(service.status().phase, Phase::Finished);
    services.start_workloads();
    timeout(Duration::from_secs(1), service.up()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_was_stopped_on_purpose_stays_down_and_newcomers_wait() {
    let services = services();
    let stopped = running(&services, "stopped", EIGHT).await;
    let runs = running(&services, "runs", EIGHT).await;
    services.stop("stopped").await.unwrap();
    services.stop_workloads().await;
    let new = services.add(definition("new", EIGHT)).unwrap();
    new.start();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(new.status().phase, Phase::Initialized);
    services.start_workloads();
    runs.up().await;
    new.up().await;
    assert_eq!(stopped.status().phase, Phase::Finished);
}

#[tokio::test(start_paused = true)]
async fn what_does_not_end_is_left_behind() {
    let services = services();
    let hangs = running(&services, "hangs", None).await;
    let begun = Instant::now();
    services.stop_workloads().await;
    assert_eq!(begun.elapsed(), Duration::from_secs(60));
    assert_eq!(hangs.status().phase, Phase::Stopping);
    assert_eq!(hangs.stop().await, Err(NotStopped::InTime));
    services.remove("hangs").await;
    assert!(services.get("hangs").is_none());
}

#[tokio::test(start_paused = true)]
async fn a_stop_that_is_overtaken_by_a_start_says_so() {
    let services = services();
    let service = running(&services, "web", EIGHT).await;
    let other = async {
        sleep(Duration::from_secs(2)).await;
        services.start("web").unwrap();
    };
    let (stopped, ()) = tokio::join!(service.stop(), other);
    assert_eq!(stopped, Err(NotStopped::StartedAgain));
    service.up().await;
    services.restart("web").await.unwrap();
    service.up().await;
}

/// Told to stop at the very moment at which its pause is over: it is down, and says so.
#[tokio::test(start_paused = true)]
async fn a_stop_in_a_pause_is_seen() {
    struct Broken;
    impl Workload for Broken {
        fn prepare(&self) -> Step<'_, anyhow::Result<()>> {
            Box::pin(async { anyhow::bail!("there is no image") })
        }
        fn start(&self, _log: LogRing) -> Step<'_, anyhow::Result<Box<dyn Running>>> {
            Box::pin(async { anyhow::bail!("there is no image") })
        }
        fn adopt(&self, _log: LogRing) -> Step<'_, Adopted> {
            Box::pin(async { Adopted::Nothing })
        }
        fn exec<'a>(&'a self, _command: &'a [String]) -> Step<'a, anyhow::Result<()>> {
            Box::pin(async { Ok(()) })
        }
    }
    for _ in 0..16 {
        let services = services();
        let mut broken = definition("broken", EIGHT);
        broken.workload = Arc::new(Broken);
        let service = services.add(broken).unwrap();
        let begun = Instant::now();
        service.start();
        tokio::task::yield_now().await;
        assert_eq!(service.status().phase, Phase::Failed);
        tokio::time::sleep_until(begun + Duration::from_millis(500)).await;
        service.stop().await.unwrap();
        assert_eq!(service.status().phase, Phase::Finished);
    }
}
