//! Services that prove that they are steady: by their time, or by answers.

use tokio::time::sleep;

use super::lasting::{Lasting, lasting, of_lasting};
use super::*;
use crate::services::carried::Carried;
use crate::services::workload_for_tests::{definition, running};

const STEADY: Duration = Duration::from_secs(3);

#[tokio::test(start_paused = true)]
async fn a_service_without_questions_of_its_own_is_steady_when_it_has_run_for_a_while() {
    let services = services();
    let web = running(&services, "web", EIGHT).await;
    sleep(Duration::from_secs(1)).await;
    let begun = Instant::now();
    assert!(web.proves_steady(STEADY).await);
    assert_eq!(begun.elapsed(), Duration::from_secs(2));
    assert!(web.proves_steady(STEADY).await);
    assert_eq!(begun.elapsed(), Duration::from_secs(2));

    let ends = running(&services, "ends", Some(Duration::ZERO)).await;
    let (proved, ()) = tokio::join!(ends.proves_steady(STEADY), async {
        sleep(Duration::from_secs(1)).await;
        ends.stop().await.unwrap();
    });
    assert!(!proved);
}

#[tokio::test(start_paused = true)]
async fn what_ran_under_an_earlier_machined_counts() {
    let services = services();
    let kept = Lasting {
        runs: true,
        ..Lasting::default()
    };
    let status = ServiceStatus::new(false);
    let record = Carried::of(&status, 0, STEADY).to_text().unwrap();
    kept.leave_record(&record).unwrap();
    // The test's clock may have begun just now.
    sleep(STEADY).await;
    let service = services.add(of_lasting("kept", &kept)).unwrap();
    service.start();
    service.up().await;
    let begun = Instant::now();
    assert!(service.proves_steady(STEADY).await);
    assert_eq!(begun.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_service_that_knows_what_to_ask_itself_proves_it_by_answers() {
    let services = services();
    for (id, good_answers, steady) in [("good", u32::MAX, true), ("bad", 3, false)] {
        let mut definition = definition(id, EIGHT);
        definition.workload = Arc::new(Answering(Mutex::new(good_answers)));
        definition.health = Some(HealthCheck {
            probe: Probe::Own,
            interval: Duration::from_secs(30),
            timeout: Duration::from_secs(10),
            failures: 3,
        });
        let service = services.add(definition).unwrap();
        service.start();
        service.up().await;
        let begun = Instant::now();
        assert_eq!(service.proves_steady(STEADY).await, steady, "{id}");
        assert!(begun.elapsed() < Duration::from_secs(1), "{id}");
    }
}

/// A workload whose check passes this many times.
struct Answering(Mutex<u32>);

impl Workload for Answering {
    fn prepare(&self) -> Step<'_, anyhow::Result<()>> {
        Box::pin(async { Ok(()) })
    }
    fn start(&self, _log: LogRing) -> Step<'_, anyhow::Result<Box<dyn Running>>> {
        Box::pin(async { Ok(lasting()) })
    }
    fn adopt(&self, _log: LogRing) -> Step<'_, Adopted> {
        Box::pin(async { Adopted::Nothing })
    }
    fn exec<'a>(&'a self, _command: &'a [String]) -> Step<'a, anyhow::Result<()>> {
        Box::pin(async { Ok(()) })
    }
    fn check(&self) -> Step<'_, anyhow::Result<()>> {
        let left = self.0.locked().checked_sub(1);
        let answers = left.map(|left| *self.0.locked() = left);
        Box::pin(async move { answers.ok_or_else(|| anyhow::anyhow!("it is down")) })
    }
}
