//! The logs of services that live on, over changes of generations, and of services that were removed.

use tokio::time::{sleep, timeout};

use super::lasting::{Lasting, left_running, of_lasting};
use super::*;
use crate::base::Exit;
use crate::services::workload_for_tests::{definition, running};

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
