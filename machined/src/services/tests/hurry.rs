//! A machine that leaves in a hurry, with services that have much time to end.

use tokio::time::sleep;

use super::*;
use crate::base::Exit;
use crate::services::workload_for_tests::definition;

/// A workload that does not listen to SIGTERM, and has ten minutes to end.
struct Stubborn;

struct RunningStubborn(watch::Sender<bool>);

impl Workload for Stubborn {
    fn prepare(&self) -> Step<'_, anyhow::Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn start(&self, _log: LogRing) -> Step<'_, anyhow::Result<Box<dyn Running>>> {
        let running = RunningStubborn(watch::channel(false).0);
        Box::pin(async { Ok(Box::new(running) as Box<dyn Running>) })
    }

    fn adopt(&self, _log: LogRing) -> Step<'_, Adopted> {
        Box::pin(async { Adopted::Nothing })
    }

    fn stop_timeout(&self) -> Duration {
        Duration::from_secs(600)
    }

    fn exec<'a>(&'a self, _command: &'a [String]) -> Step<'a, anyhow::Result<()>> {
        Box::pin(async { Ok(()) })
    }
}

impl Running for RunningStubborn {
    fn pid(&self) -> u32 {
        1
    }

    fn wait(&mut self) -> Step<'_, Exit> {
        let mut killed = self.0.subscribe();
        Box::pin(async move {
            killed.wait_for(|killed| *killed).await.unwrap();
            Exit::Signal(9)
        })
    }

    fn signal(&mut self, signal: Signal) -> anyhow::Result<()> {
        self.0.send_replace(signal == Signal::Kill);
        Ok(())
    }

    fn clean_up(&mut self) -> Step<'_, ()> {
        Box::pin(async {})
    }
}

async fn stubborn(services: &Services, id: &str) -> Service {
    let workload = Arc::new(Stubborn);
    let definition = Definition {
        workload,
        ..definition(id, None)
    };
    let service = services.add(definition).unwrap();
    service.start();
    service.up().await;
    service
}

/// One that nobody has told anything yet, and one that was told to end a while ago.
#[tokio::test(start_paused = true)]
async fn a_machine_in_a_hurry_gives_no_service_its_time() {
    let services = services();
    let (running, ending) = (
        stubborn(&services, "running").await,
        stubborn(&services, "ending").await,
    );
    let stop = crate::base::task::spawn({
        let ending = ending.clone();
        async move { ending.stop().await }
    });
    sleep(Duration::from_secs(5)).await;
    assert_eq!(ending.status().phase, Phase::Stopping);
    let begun = Instant::now();
    services.kill_workloads().await;
    assert!(begun.elapsed() < Duration::from_secs(1), "{begun:?}");
    assert_eq!(stop.await.unwrap(), Ok(()));
    for service in [&running, &ending] {
        assert_eq!(service.status().phase, Phase::Finished);
    }
    // The machine goes on all the same, as after a reset that failed: from here on services have their time again.
    services.start_workloads();
    running.up().await;
    let begun = Instant::now();
    running.stop().await.unwrap();
    assert_eq!(begun.elapsed(), Duration::from_secs(600));
}
