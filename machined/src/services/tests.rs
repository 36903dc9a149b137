//! Tests of services with a workload that takes its time to end, on a clock that jumps from one wait to the next.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::carried::Carried;
use super::workload_for_tests::{RunningSlow, definition, running};
use super::*;
use crate::base::Exit;
use crate::store::MachineStage;

/// The config of the next generation keeps all of them.
const KEPT: fn(&str) -> anyhow::Result<()> = |_| Ok(());

fn services() -> Services {
    Services::new(EventLog::default(), Store::default(), LogDisk::default())
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

/// A workload that runs on when it is left, with a record beside it; `ends` is the reason if it does not outlive its generation.
#[derive(Clone, Default)]
struct Lasting {
    record: Arc<Mutex<Option<Vec<u8>>>>,
    log: Arc<Mutex<Option<Vec<u8>>>>,
    ends: Option<&'static str>,
    /// An earlier machined has left it running.
    runs: bool,
    /// It differs from the one that would be started now.
    differs: bool,
    /// It has ended since an earlier machined left it.
    exited: Option<Exit>,
    /// The output that nobody has read.
    said: &'static str,
    /// The machine has ended it, and removed all that was left of it.
    removed: bool,
    /// Whether the copy of its log was there at the last adoption.
    had_log: Arc<Mutex<bool>>,
    /// How many of its processes the kernel has killed for lack of memory.
    memory_kills: u64,
    /// Whether there is room for its record while it is looked after.
    has_room: bool,
}

impl Workload for Lasting {
    fn prepare(&self) -> Step<'_, anyhow::Result<()>> {
        Box::pin(async { Ok(()) })
    }
    fn start(&self, _log: LogRing) -> Step<'_, anyhow::Result<Box<dyn Running>>> {
        Box::pin(async { Ok(lasting()) })
    }
    fn lives_on(&self) -> Option<u32> {
        self.runs.then_some(1)
    }
    fn adopt(&self, log: LogRing) -> Step<'_, Adopted> {
        *self.had_log.locked() = self.log.locked().is_some();
        log.write(self.said.as_bytes());
        let adopted = match (self.runs, self.differs) {
            _ if self.exited.is_some() => Adopted::Exited(self.exited.unwrap()),
            _ if self.removed => Adopted::Nothing,
            (true, false) => Adopted::Running(lasting()),
            (true, true) => Adopted::Ended("another image is in force".to_owned()),
            (false, _) => Adopted::Nothing,
        };
        Box::pin(async { adopted })
    }
    fn is_part_of_generation(&self) -> bool {
        false
    }
    fn outlives_generation(&self) -> anyhow::Result<()> {
        self.ends.map_or(Ok(()), |why| Err(anyhow::anyhow!(why)))
    }
    fn memory_kills(&self) -> u64 {
        self.memory_kills
    }
    fn note_record(&self, record: &str) -> anyhow::Result<()> {
        anyhow::ensure!(self.has_room, "there is no room");
        self.leave_record(record)
    }
    fn leave_record(&self, record: &str) -> anyhow::Result<()> {
        *self.record.locked() = Some(record.as_bytes().to_vec());
        Ok(())
    }
    fn record(&self, longest: usize) -> anyhow::Result<Option<Vec<u8>>> {
        Ok(at_most(longest, self.record.locked().clone()))
    }
    fn leave_log(&self, log: &[u8]) -> anyhow::Result<()> {
        *self.log.locked() = Some(log.to_vec());
        Ok(())
    }
    fn left_log(&self, longest: usize) -> anyhow::Result<Option<Vec<u8>>> {
        Ok(at_most(longest, self.log.locked().clone()))
    }
    fn take_log(&self, longest: usize) -> anyhow::Result<Option<Vec<u8>>> {
        Ok(at_most(longest, self.log.locked().take()))
    }
    fn exec<'a>(&'a self, _command: &'a [String]) -> Step<'a, anyhow::Result<()>> {
        Box::pin(async { Ok(()) })
    }
}

fn at_most(longest: usize, bytes: Option<Vec<u8>>) -> Option<Vec<u8>> {
    bytes.map(|mut bytes| {
        bytes.truncate(longest);
        bytes
    })
}

fn lasting() -> Box<dyn Running> {
    Box::new(RunningSlow::new(EIGHT))
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

/// Starts a service that lives through a change of generations, and one that ends with its generation.
async fn one_that_lives_and_one_that_ends(services: &Services) -> (Service, Service) {
    let mut workload = Lasting::default();
    let lives = services.add(of_lasting("lives", &workload)).unwrap();
    workload.ends = Some("it mounts the system");
    let ends = services.add(of_lasting("ends", &workload)).unwrap();
    for service in [&lives, &ends] {
        service.start();
        service.up().await;
    }
    (lives, ends)
}

#[tokio::test(start_paused = true)]
async fn who_ends_with_an_upgrade_is_told_so_once_and_before() {
    let services = services();
    let (lives, ends) = one_that_lives_and_one_that_ends(&services).await;
    let fates = services.fates(&KEPT).into_iter();
    let fates: Vec<(String, bool)> = fates
        .map(|(service, fate)| (service.definition().id.clone(), fate.is_ok()))
        .collect();
    assert_eq!(
        fates,
        [("ends".to_owned(), false), ("lives".to_owned(), true)]
    );
    // The question alone changes nothing.
    assert_eq!(messages(&ends).len(), 3);
    services.tell_ends(&KEPT);
    assert_eq!(ends.status().phase, Phase::Running);
    services.leave_workloads(None, &KEPT).await;
    assert_eq!(services.left(), ["lives"]);
    // The next generation tells it as well.
    let why = ("ends".to_owned(), "it mounts the system".to_owned());
    assert_eq!(services.ended(), BTreeMap::from([why]));
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

/// The installer fails, for example.
#[tokio::test(start_paused = true)]
async fn an_upgrade_that_fails_takes_back_that_services_end() {
    let services = services();
    let (lives, ends) = one_that_lives_and_one_that_ends(&services).await;
    services.tell_ends(&KEPT);
    services.tell_run_on();
    services.tell_run_on();
    assert_eq!(
        messages(&ends)[2..],
        [
            "started as process 1",
            "ends with this upgrade: it mounts the system",
            "runs on: the upgrade failed",
        ]
    );
    assert_eq!(messages(&lives).last().unwrap(), "started as process 1");
    assert_eq!(ends.status().starts, 1, "announcements are no starts");
    // With the next upgrade it ends all the same.
    services.tell_ends(&KEPT);
    assert!(messages(&ends).last().unwrap().starts_with(ENDS));
    services.leave_workloads(None, &KEPT).await;
    services.tell_run_on();
    assert_eq!(messages(&ends).last().unwrap(), "stopped");
    assert!(!lives.status().ended_by_machine);
}

/// It says more than the workload, which may have been started as one that ends only because the config said so. Of a part of the
/// generation, such as the dashboard, it knows nothing.
#[tokio::test(start_paused = true)]
async fn the_config_of_the_next_generation_has_the_first_word() {
    let services = services();
    let _both = one_that_lives_and_one_that_ends(&services).await;
    running(&services, "part", EIGHT).await;
    let named = |name: &str| match name {
        "none" => Ok(()),
        name => anyhow::bail!("{name} is to end"),
    };
    let fates = services.fates(&named).into_iter();
    let fates: Vec<String> = fates
        .map(|(_, fate)| fate.unwrap_err().to_string())
        .collect();
    assert_eq!(
        fates,
        [
            "ends is to end",
            "lives is to end",
            "it is a part of the generation"
        ]
    );
    services.leave_workloads(None, &named).await;
    assert!(services.left().is_empty());
}

/// The output of one that lives on waits in its pipe while nobody reads it.
#[tokio::test(start_paused = true)]
async fn one_that_lives_on_is_looked_after_until_the_others_have_ended() {
    let services = services();
    let (lives, ends) = one_that_lives_and_one_that_ends(&services).await;
    let leaving = services.leave_workloads(None, &KEPT);
    tokio::pin!(leaving);
    let in_time = timeout(Duration::from_secs(4), &mut leaving).await;
    assert!(in_time.is_err(), "the other one takes its time");
    assert!(!lives.status().left);
    leaving.await;
    assert!(lives.status().left);
    assert_eq!(ends.status().phase, Phase::Finished);
}

/// A generation that gives itself up has until then, and what lives on is put away all the same.
#[tokio::test(start_paused = true)]
async fn one_that_takes_too_long_to_end_does_not_keep_the_others_from_being_left() {
    let services = services();
    let _both = one_that_lives_and_one_that_ends(&services).await;
    let begun = tokio::time::Instant::now();
    services
        .leave_workloads(Some(begun + Duration::from_secs(2)), &KEPT)
        .await;
    assert!(begun.elapsed() < Duration::from_secs(4));
    assert_eq!(services.left(), ["lives"]);
}

#[tokio::test(start_paused = true)]
async fn the_past_of_one_that_lives_on_is_known_to_the_next_machined() {
    let before = services();
    let mut workload = Lasting::default();
    let service = before.add(of_lasting("web", &workload)).unwrap();
    service.start();
    service.up().await;
    before.leave_workloads(None, &KEPT).await;
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

/// Nobody has told it to leave anything.
#[tokio::test(start_paused = true)]
async fn the_past_of_one_that_runs_is_known_after_machined_has_died() {
    for has_room in [true, false] {
        let mut workload = Lasting {
            has_room,
            ..Lasting::default()
        };
        let died = services();
        let service = died.add(of_lasting("web", &workload)).unwrap();
        service.start();
        service.up().await;
        workload.runs = true;
        let again = services();
        let service = again.add_living(of_lasting("web", &workload)).unwrap();
        again.attend();
        service.up().await;
        let all = [
            "preparing",
            "starting",
            "started as process 1",
            "lives on as process 1",
            "taken over as process 1",
        ];
        let known = if has_room { &all[..] } else { &all[3..] };
        assert_eq!(messages(&service), known);
    }
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

/// Returns a workload that an earlier machined left running, with its record.
async fn left_running() -> Lasting {
    let before = services();
    let mut workload = Lasting::default();
    let service = before.add(of_lasting("web", &workload)).unwrap();
    service.start();
    service.up().await;
    before.leave_workloads(None, &KEPT).await;
    workload.runs = true;
    workload
}

#[tokio::test(start_paused = true)]
async fn one_that_lives_on_is_shown_before_anybody_looks_after_it() {
    let workload = left_running().await;
    let services = services();
    let service = services.add_living(of_lasting("web", &workload)).unwrap();
    // At once: the first caller must see it.
    assert_eq!(service.status().phase, Phase::Running);
    let past = ["preparing", "starting", "started as process 1"];
    assert_eq!(messages(&service)[..3], past);
    assert_eq!(messages(&service)[3..], ["lives on as process 1"]);
    sleep(Duration::from_secs(5)).await;
    assert_eq!(messages(&service).len(), 4);
    assert!(!service.status().is_up(), "nobody knows whether it is kept");
    services.attend();
    service.up().await;
    assert_eq!(messages(&service)[4..], ["taken over as process 1"]);
    services.stop("web").await.unwrap();
    assert_eq!(service.status().phase, Phase::Finished);
}

#[tokio::test(start_paused = true)]
async fn one_that_lives_on_and_is_another_ends_and_is_started() {
    let mut workload = left_running().await;
    workload.differs = true;
    let services = services();
    let service = services.add_living(of_lasting("web", &workload)).unwrap();
    services.attend();
    service.up().await;
    assert_eq!(
        messages(&service)[3..],
        [
            "lives on as process 1",
            "not taken over but ended: another image is in force",
            "stopped",
            "preparing",
            "starting",
            "started as process 1",
        ]
    );
}

/// It ended while generations changed, and init has collected its exit.
#[tokio::test(start_paused = true)]
async fn one_that_has_ended_meanwhile_goes_on_with_its_failures() {
    let status = ServiceStatus::new(false);
    let past = Carried::of(&status, 3, Duration::from_secs(1)).to_text();
    let workload = Lasting {
        record: Arc::new(Mutex::new(Some(past.unwrap().into()))),
        runs: true,
        exited: Some(Exit::Code(7)),
        said: "panic: no room\n",
        ..Lasting::default()
    };
    // The test's clock may have begun just now.
    sleep(Duration::from_secs(1)).await;
    // The end may come before this machined lists it, or after.
    for first in ["lives on as process 1", "was left running"] {
        let services = services();
        let definition = of_lasting("web", &workload);
        let service = match first {
            "was left running" => services.add(definition).unwrap(),
            _ => services.add_living(definition).unwrap(),
        };
        service.start();
        services.attend();
        let begun = Instant::now();
        service.until(|it| it.phase == Phase::Failed).await;
        assert_eq!(service.status().failures, 4);
        service.up().await;
        assert_eq!(begun.elapsed(), Duration::from_secs(4));
        let failed = "the process exited with code 7 while nobody looked; its last words: panic: no room; next start in 4.0 s";
        assert_eq!(messages(&service)[..2], [first, failed]);
    }
}

/// It ended before the swap, and the machined that init told of it is gone.
#[tokio::test(start_paused = true)]
async fn one_whose_exit_is_not_known_goes_on_with_its_past() {
    let mut status = ServiceStatus::new(false);
    status.enter(Phase::Running, "started as process 1".to_owned());
    let past = Carried::of(&status, 3, Duration::from_secs(1)).to_text();
    let workload = Lasting {
        record: Arc::new(Mutex::new(Some(past.unwrap().into()))),
        ..Lasting::default()
    };
    // The test's clock may have begun just now.
    sleep(Duration::from_secs(1)).await;
    let services = services();
    let service = services.add(of_lasting("web", &workload)).unwrap();
    service.start();
    service.until(|it| it.phase == Phase::Failed).await;
    assert_eq!(service.status().failures, 4);
    assert_eq!(
        messages(&service),
        [
            "started as process 1",
            "was left running",
            "it ended while machined was away; next start in 4.0 s",
        ]
    );
    service.up().await;
    assert_eq!(service.status().starts, 1);
}

/// While nobody looked, too.
#[tokio::test(start_paused = true)]
async fn a_kill_for_lack_of_memory_is_known_whenever_it_came() {
    for (before, is_told) in [(Some(0), true), (Some(1), false), (None, false)] {
        let status = ServiceStatus::new(false);
        let past = Carried::of(&status, 0, Duration::ZERO).with_memory_kills(before);
        let workload = Lasting {
            record: Arc::new(Mutex::new(Some(past.to_text().unwrap().into()))),
            exited: Some(Exit::Signal(9)),
            memory_kills: 1,
            ..Lasting::default()
        };
        let services = services();
        let service = services.add(of_lasting("web", &workload)).unwrap();
        service.start();
        service.until(|it| it.phase == Phase::Failed).await;
        let why = messages(&service)[1].clone();
        assert_eq!(why.contains("for lack of memory"), is_told, "{why}");
        assert_eq!(service.status().out_of_memory.is_some(), is_told);
    }
}

/// A damaged filesystem is repaired, which no container may see.
#[tokio::test(start_paused = true)]
async fn one_that_the_machine_has_ended_has_not_failed() {
    let status = ServiceStatus::new(false);
    let past = Carried::of(&status, 3, Duration::from_secs(1)).to_text();
    let record = Arc::new(Mutex::new(Some(past.unwrap().into_bytes())));
    // Its files may be left, from which its exit is known.
    for exited in [None, Some(Exit::Signal(9))] {
        let workload = Lasting {
            record: record.clone(),
            runs: true,
            removed: true,
            exited,
            ..Lasting::default()
        };
        let services = services();
        let service = services.add_living(of_lasting("web", &workload)).unwrap();
        services.tell("web", "is ended: the disk is damaged");
        services.attend();
        let begun = Instant::now();
        service.up().await;
        assert_eq!(begun.elapsed(), Duration::ZERO);
        assert_eq!(service.status().failures, 0);
        assert_eq!(
            messages(&service),
            [
                "lives on as process 1",
                "is ended: the disk is damaged",
                "not taken over: the machine has ended it",
                "stopped",
                "preparing",
                "starting",
                "started as process 1",
            ]
        );
    }
}

/// The words that it wrote in the moment before it was taken over may be all that it says of its end.
#[tokio::test(start_paused = true)]
async fn the_last_words_of_one_that_is_taken_over_may_be_of_before() {
    struct Dying(Lasting);
    impl Workload for Dying {
        fn prepare(&self) -> Step<'_, anyhow::Result<()>> {
            self.0.prepare()
        }
        fn start(&self, log: LogRing) -> Step<'_, anyhow::Result<Box<dyn Running>>> {
            self.0.start(log)
        }
        fn adopt(&self, log: LogRing) -> Step<'_, Adopted> {
            log.write(b"panic: no room\n");
            let dying = RunningSlow::ending();
            Box::pin(async { Adopted::Running(Box::new(dying)) })
        }
        fn exec<'a>(&'a self, command: &'a [String]) -> Step<'a, anyhow::Result<()>> {
            self.0.exec(command)
        }
    }
    let services = services();
    let mut dying = definition("web", None);
    dying.workload = Arc::new(Dying(Lasting::default()));
    let service = services.add(dying).unwrap();
    service.start();
    service.until(|it| it.phase == Phase::Failed).await;
    let failed = "the process exited with code 0; its last words: panic: no room; ";
    assert!(messages(&service)[1].starts_with(failed));
}

/// A machined that is killed while it looks after a container leaves the end of its log to the next one.
#[tokio::test(start_paused = true)]
async fn the_copy_of_a_log_lasts_until_the_adoption() {
    let workload = left_running().await;
    for is_shown in [true, false] {
        workload.leave_log(b"half a li").unwrap();
        let services = services();
        let definition = of_lasting("web", &workload);
        let service = match is_shown {
            true => services.add_living(definition).unwrap(),
            false => services.add(definition).unwrap(),
        };
        service.start();
        services.attend();
        service.up().await;
        assert!(*workload.had_log.locked(), "shown: {is_shown}");
        assert_eq!(*workload.log.locked(), None);
    }
}

/// As by init, which ends all containers if the machine does not look freshly booted beside them.
#[tokio::test(start_paused = true)]
async fn one_that_was_ended_before_it_was_known_here_says_why() {
    let services = services();
    let service = services.add(definition("web", EIGHT)).unwrap();
    services.tell("web", "was ended by init");
    service.start();
    service.up().await;
    assert_eq!(messages(&service)[0], "was ended by init");
    assert_eq!(messages(&service)[1..3], ["preparing", "starting"]);
}

/// The disk does not appear, and the machine is shut down.
#[tokio::test(start_paused = true)]
async fn one_that_nobody_looks_after_ends_with_the_machine() {
    let workload = left_running().await;
    let services = services();
    let service = services.add_living(of_lasting("web", &workload)).unwrap();
    services.stop_workloads().await;
    assert_eq!(service.status().phase, Phase::Finished);
    services.start_workloads();
    sleep(Duration::from_secs(5)).await;
    // Without its disk there is nothing to start it from.
    assert_eq!(service.status().phase, Phase::Finished);
    services.attend();
    service.up().await;
}

/// A version whose disk does not appear gives itself up before it looks after anything.
#[tokio::test]
async fn one_that_nobody_looked_after_is_left_as_it_was() {
    let mut workload = Lasting::default();
    let before = services();
    let service = before.add(of_lasting("web", &workload)).unwrap();
    service.start();
    service.up().await;
    service.log().write(b"one\ntwo beg");
    before.leave_workloads(None, &KEPT).await;
    workload.runs = true;
    workload.ends = Some("its disk is not mounted");

    let given_up = services();
    given_up.add_living(of_lasting("web", &workload)).unwrap();
    given_up.leave_workloads(None, &KEPT).await;
    assert_eq!(given_up.left(), ["web"]);

    workload.ends = None;
    let after = services();
    let service = after.add_living(of_lasting("web", &workload)).unwrap();
    after.attend();
    service.up().await;
    service.log().write(b"ins\n");
    assert_eq!(log_of(&after, "web").await, "one\ntwo begins\n");
}

/// A container that lives on, whose output can be read before anybody looks after it.
#[derive(Clone, Default)]
struct Talking {
    left: Lasting,
    /// The log that it is read to.
    reader: Arc<Mutex<Option<LogRing>>>,
}

impl Talking {
    /// Says something, which waits while nobody reads it: returns whether somebody does.
    fn says(&self, words: &[u8]) -> bool {
        let reader = self.reader.locked();
        reader.as_ref().inspect(|log| log.write(words)).is_some()
    }
}

impl Workload for Talking {
    fn prepare(&self) -> Step<'_, anyhow::Result<()>> {
        self.left.prepare()
    }
    fn start(&self, log: LogRing) -> Step<'_, anyhow::Result<Box<dyn Running>>> {
        self.left.start(log)
    }
    fn lives_on(&self) -> Option<u32> {
        Some(1)
    }
    fn read_output(&self, log: LogRing) {
        *self.reader.locked() = Some(log);
    }
    fn leave_output(&self) -> Step<'_, ()> {
        *self.reader.locked() = None;
        Box::pin(async {})
    }
    fn adopt(&self, log: LogRing) -> Step<'_, Adopted> {
        self.left.adopt(log)
    }
    fn leave_log(&self, log: &[u8]) -> anyhow::Result<()> {
        self.left.leave_log(log)
    }
    fn left_log(&self, longest: usize) -> anyhow::Result<Option<Vec<u8>>> {
        self.left.left_log(longest)
    }
    fn take_log(&self, longest: usize) -> anyhow::Result<Option<Vec<u8>>> {
        self.left.take_log(longest)
    }
    fn exec<'a>(&'a self, command: &'a [String]) -> Step<'a, anyhow::Result<()>> {
        self.left.exec(command)
    }
}

/// A version that is not on trial goes on without its disk; later the machine is upgraded.
#[tokio::test]
async fn one_that_nobody_can_look_after_is_read_and_its_log_goes_on() {
    let workload = Talking::default();
    workload.leave_log(b"one beg").unwrap();
    let definition = || Definition {
        workload: Arc::new(workload.clone()),
        ..definition("web", None)
    };
    let without_disk = services();
    let service = without_disk.add_living(definition()).unwrap();
    sleep(Duration::from_millis(20)).await;
    assert!(!workload.says(b""), "a version on trial may give itself up");
    without_disk.read_output();
    until("it is read", || workload.says(b"")).await;
    assert!(workload.says(b"ins\ntwo"));
    assert!(!service.status().is_up());

    without_disk.leave_workloads(None, &KEPT).await;
    assert_eq!(without_disk.left(), ["web"]);
    assert!(!workload.says(b""));
    let left = workload.left.log.locked().clone();
    assert_eq!(left.as_deref(), Some(&b"one begins\ntwo"[..]));
    // The upgrade fails, and another one comes.
    without_disk.start_workloads();
    until("it is read again", || workload.says(b"")).await;
    assert!(workload.says(b" begins\n"));
    without_disk.leave_workloads(None, &KEPT).await;

    let next = services();
    next.add_living(definition()).unwrap();
    assert_eq!(log_of(&next, "web").await, "one begins\ntwo begins\n");
}

/// It ends while its disk is away: what was read of it by then has its last words.
#[tokio::test]
async fn the_last_words_of_one_that_was_read_are_told() {
    let mut workload = Talking::default();
    workload.left.exited = Some(Exit::Code(1));
    let services = services();
    let talking = Definition {
        workload: Arc::new(workload.clone()),
        ..definition("web", None)
    };
    let service = services.add_living(talking).unwrap();
    services.read_output();
    until("it is read", || workload.says(b"")).await;
    assert!(workload.says(b"panic: no room\n"));
    services.attend();
    service.until(|it| it.phase == Phase::Failed).await;
    let told = messages(&service).pop().unwrap();
    let failed =
        "the process exited with code 1 while nobody looked; its last words: panic: no room; ";
    assert!(told.starts_with(failed), "{told}");
}

/// Returns all that `Logs` shows.
async fn log_of(services: &Services, id: &str) -> String {
    let mut reader = services.get(id).unwrap().log().read(Tail::All);
    let mut text = Vec::new();
    if let Some(mut old) = services
        .surroundings
        .logs
        .older(id, reader.older().unwrap())
        .await
        .unwrap()
    {
        while let Some(chunk) = old.next_chunk().unwrap() {
            text.extend(chunk);
        }
    }
    while let Some(line) = reader.next_kept() {
        text.extend_from_slice(&line);
    }
    String::from_utf8(text).unwrap()
}

/// With a disk and without, over a change of generations and over one that fails.
#[tokio::test]
async fn a_line_that_is_half_written_when_the_generation_changes_is_one_line() {
    let directory = tempfile::tempdir().unwrap();
    for has_disk in [false, true] {
        let workload = Lasting {
            runs: true,
            ..Lasting::default()
        };
        let before = services();
        let service = before.add(of_lasting("web", &workload)).unwrap();
        if has_disk {
            before
                .surroundings
                .logs
                .open(directory.path())
                .await
                .unwrap();
        }
        service.start();
        service.up().await;
        service.log().write(b"one\ntwo begins");
        before.leave_workloads(None, &KEPT).await;
        // The upgrade fails before its point of no return.
        before.start_workloads();
        service.log().write(b" and ends\nthree begins");
        service.up().await;
        before.leave_workloads(None, &KEPT).await;
        before.surroundings.logs.close().await;

        let after = services();
        let service = after.add_living(of_lasting("web", &workload)).unwrap();
        if has_disk {
            after
                .surroundings
                .logs
                .open(directory.path())
                .await
                .unwrap();
        }
        after.attend();
        service.up().await;
        service.log().write(b" and ends\nfour\n");
        let log = log_of(&after, "web").await;
        let expected = "one\ntwo begins and ends\nthree begins and ends\nfour\n";
        assert_eq!(log, expected, "with a disk: {has_disk}");
        // A machined that restarts after this one does not find the log again.
        assert_eq!(*workload.log.locked(), None);
    }
}

/// Waits, and fails after a time.
async fn until(what: &str, holds: impl Fn() -> bool) {
    let held = async {
        while !holds() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(
        timeout(Duration::from_secs(20), held).await.is_ok(),
        "{what}"
    );
}

/// As with each change of a container's config: the previous one is removed, and another one of the same name is added.
#[tokio::test]
async fn nothing_is_left_of_a_service_that_was_removed() {
    let directory = tempfile::tempdir().unwrap();
    for has_disk in [false, true] {
        let services = services();
        if has_disk {
            services
                .surroundings
                .logs
                .open(directory.path())
                .await
                .unwrap();
        }
        let (mut rings, mut written) = (Vec::new(), String::new());
        for run in 0..8 {
            let service = running(&services, "web", Some(Duration::ZERO)).await;
            let output = format!("run {run}\nits last words");
            service.log().write(output.as_bytes());
            written += &format!("{output}\n");
            rings.push(service.log().is_held());
            drop(service);
            services.remove("web").await;
        }
        let is_free = || rings.iter().all(|is_held| !is_held());
        until(&format!("rings are held, with a disk: {has_disk}"), is_free).await;
        if has_disk {
            let text = std::fs::read_to_string(directory.path().join("web.log")).unwrap();
            assert_eq!(text, written, "the rest is written first");
        }
        // Nothing of them is waited for.
        services.surroundings.logs.close().await;
    }
}

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
