//! Stops: one by one, side by side, of all workloads, and beside starts.

use tokio::time::{sleep, timeout};

use super::*;
use crate::services::workload_for_tests::{definition, running};
use crate::store::MachineStage;

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
    services.surroundings.store.put(
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
        // A start that does not come from the API counts when the hold is over.
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
    assert_eq!(hangs.stop().await, Err(NotStopped::InTime(60)));
    services.remove("hangs").await;
    assert!(services.get("hangs").is_none());
}

#[tokio::test(start_paused = true)]
async fn services_are_removed_side_by_side() {
    let services = services();
    let ids = ["web", "db", "queue"].map(str::to_owned);
    for id in &ids {
        running(&services, id, EIGHT).await;
    }
    let begun = Instant::now();
    services.remove_all(&ids).await;
    assert_eq!(begun.elapsed(), Duration::from_secs(8));
    assert!(services.list().is_empty());
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

/// A stop at the very moment at which the pause ends: the service is down, and its status says so.
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
