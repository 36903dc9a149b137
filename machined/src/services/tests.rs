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
async fn services_with_callers_are_given_their_time_before_the_next_generation() {
    let services = services();
    let quick = running(&services, "quick", EIGHT).await;
    running(&services, "slow", EIGHT).await;
    let other = running(&services, "other", EIGHT).await;
    for (id, seconds) in [("quick", 9), ("slow", 7), ("absent", 1)] {
        services.drain_before_next(id, Duration::from_secs(seconds));
    }
    let began = Instant::now();
    assert_eq!(services.drain().await, ["slow"]);
    assert!(began.elapsed() < Duration::from_secs(9), "side by side");
    assert!(!quick.status().is_up());
    assert!(other.status().is_up());
    services.start_workloads();
    timeout(Duration::from_secs(60), quick.up()).await.unwrap();
}

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

/// Runs on when it is left, with a record beside it; an upgrade may be told not to keep it.
#[derive(Clone, Default)]
struct Lasting {
    record: Arc<Mutex<Option<Vec<u8>>>>,
    ends: Option<&'static str>,
    /// Somebody before has left it.
    runs: bool,
}

impl Workload for Lasting {
    fn prepare(&self) -> Step<'_, anyhow::Result<()>> {
        Box::pin(async { Ok(()) })
    }
    fn start(&self, _log: LogRing) -> Step<'_, anyhow::Result<Box<dyn Running>>> {
        Box::pin(async { Ok(lasting()) })
    }
    fn adopt(&self, _log: LogRing) -> Step<'_, Adopted> {
        let adopted = match self.runs {
            true => Adopted::Running(lasting()),
            false => Adopted::Nothing,
        };
        Box::pin(async { adopted })
    }
    fn outlives_generation(&self) -> anyhow::Result<()> {
        self.ends.map_or(Ok(()), |why| Err(anyhow::anyhow!(why)))
    }
    fn leave_record(&self, record: &str) -> anyhow::Result<()> {
        *self.record.locked() = Some(record.as_bytes().to_vec());
        Ok(())
    }
    fn record(&self, longest: usize) -> anyhow::Result<Option<Vec<u8>>> {
        let mut record = self.record.locked().clone();
        if let Some(record) = &mut record {
            record.truncate(longest);
        }
        Ok(record)
    }
    fn exec<'a>(&'a self, _command: &'a [String]) -> Step<'a, anyhow::Result<()>> {
        Box::pin(async { Ok(()) })
    }
}

fn lasting() -> Box<dyn Running> {
    Box::new(RunningSlow {
        ends_after: EIGHT,
        ends_at: None,
    })
}

fn of_lasting(id: &str, workload: &Lasting) -> Definition {
    Definition {
        workload: Arc::new(workload.clone()),
        ..definition(id, None)
    }
}

fn messages(service: &Service) -> Vec<String> {
    let history = service.status().history.into_iter();
    history.map(|entry| entry.message).collect()
}

#[tokio::test(start_paused = true)]
async fn who_ends_with_an_upgrade_is_told_so_once_and_before() {
    let services = services();
    let mut workload = Lasting::default();
    let lives = services.add(of_lasting("lives", &workload)).unwrap();
    workload.ends = Some("it mounts the system");
    let ends = services.add(of_lasting("ends", &workload)).unwrap();
    for service in [&lives, &ends] {
        service.start();
        service.up().await;
    }
    let fates = services.fates().into_iter();
    let fates: Vec<(String, bool)> = fates
        .map(|(service, fate)| (service.definition().id.clone(), fate.is_ok()))
        .collect();
    assert_eq!(
        fates,
        [("ends".to_owned(), false), ("lives".to_owned(), true)]
    );
    // Who only asks changes nothing.
    assert_eq!(messages(&ends).len(), 3);
    services.tell_ends();
    assert_eq!(ends.status().phase, Phase::Running);
    services.leave_workloads().await;
    assert_eq!(services.left(), ["lives"]);
    let told = messages(&ends);
    assert_eq!(
        told[2..],
        [
            "started as process 1",
            "ends with this upgrade: it mounts the system",
            "asked to end",
            "stopped",
        ]
    );
    assert_eq!(messages(&lives).last().unwrap(), "started as process 1");
}

#[tokio::test(start_paused = true)]
async fn the_past_of_one_that_lives_on_is_known_to_the_next_machined() {
    let before = services();
    let mut workload = Lasting::default();
    let service = before.add(of_lasting("web", &workload)).unwrap();
    service.start();
    service.up().await;
    before.leave_workloads().await;
    workload.runs = true;
    let after = services();
    let service = after.add(of_lasting("web", &workload)).unwrap();
    service.start();
    service.up().await;
    assert_eq!(
        messages(&service),
        [
            "preparing",
            "starting",
            "started as process 1",
            "taken over as process 1"
        ]
    );
    assert!(messages(&before.get("web").unwrap()).len() == 3);
}

#[tokio::test(start_paused = true)]
async fn one_whose_past_cannot_be_read_is_taken_over_all_the_same() {
    for record in ["", "{", "{\"version\":99}", "{\"version\":1}"] {
        let workload = Lasting {
            record: Arc::new(Mutex::new(Some(record.into()))),
            runs: true,
            ..Lasting::default()
        };
        let services = services();
        let service = services.add(of_lasting("web", &workload)).unwrap();
        service.start();
        service.up().await;
        assert_eq!(messages(&service), ["taken over as process 1"], "{record}");
    }
}
