//! Services that an earlier machined left running: their past, and their end while nobody looked.

use tokio::time::sleep;

use super::lasting::{Lasting, left_running, of_lasting};
use super::*;
use crate::base::Exit;
use crate::services::carried::Carried;
use crate::services::workload_for_tests::{RunningSlow, definition};

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
