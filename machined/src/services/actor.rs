//! Runs one service: an actor that starts it when it is wanted up, keeps it up, and stops it when it is wanted down.

use std::convert::Infallible;
use std::fmt::Display;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::watch;

use super::attention::Attention;
use super::desired_state::DesiredState;
use super::log_ring::LogRing;
use super::past::{self, Past};
use super::phase::{Event, Phase};
use super::restart::Restarts;
use super::service::{Definition, GRACE, Service};
use super::service_events::Surroundings;
use super::state::Health;
use super::workload::{Adopted, Running, Signal};
use crate::base::Exit;
use crate::base::back_off::BackOff;

/// Interval between health checks of an unhealthy service: short, because callers may be waiting for it.
const UNHEALTHY_INTERVAL: Duration = Duration::from_secs(1);

/// Intervals between the first health checks: a service that has just started may be ready in a moment.
const EARLY_PROBES: BackOff = BackOff {
    first: Duration::from_millis(100),
    longest: UNHEALTHY_INTERVAL,
};

/// Restart a service whose health checks have failed for this long. Shorter failures often pass by themselves, such as a certificate
/// that is out of date until ten seconds after the clock was set.
const RESTART_AFTER: Duration = Duration::from_secs(20);

/// The same for a service with more callers than it can serve: the load may be all that is wrong with it, and a restart would cut off the
/// callers that it serves.
const OVERRUN: Duration = Duration::from_secs(300);

struct Actor {
    service: Service,
    surroundings: Surroundings,
    /// How far services are looked after that an earlier machined left running; None where no service has to wait for that.
    attention: Option<watch::Receiver<Attention>>,
}

/// A process to watch over.
struct Watched {
    running: Box<dyn Running>,
    /// The position in the log before any of its last words: of an adopted process, before any of the output that nobody had read.
    words_from: u64,
    /// How many of its processes the kernel had killed for lack of memory when its run began.
    kills_before: u64,
}

/// The end of the search for a process that an earlier machined, or this one, left running.
enum Found {
    /// None is there.
    Nothing,
    /// It runs on, and is adopted.
    Running(Watched),
    /// It was left running, and has ended by itself.
    Failed(String),
}

/// The event that ended the watch over a process.
enum Over {
    Exited(Exit),
    StopRequested,
    Left,
    Unhealthy(String),
}

/// Why a run of the service ended.
enum Ended {
    /// It was told to end, and did.
    Stopped,
    /// It still runs: it was left running.
    Left {
        /// How many of its processes the kernel had killed for lack of memory when its run began.
        kills_before: u64,
    },
    /// It ended by itself, or never started.
    Failed(String),
}

/// Spawns the actor of a service; the service itself starts when it is wanted up.
pub(super) fn spawn(definition: Definition, log: LogRing, surroundings: Surroundings) -> Service {
    let service = Service::new(definition, log);
    let actor = Actor {
        service: service.clone(),
        surroundings,
        attention: None,
    };
    crate::base::task::spawn(actor.live(service.desired.subscribe(), None));
    service
}

/// Spawns the actor of a service that an earlier machined left running; it is wanted up. The service is shown as running at once, and
/// is adopted or restarted when all attention is given.
pub(super) fn spawn_living(
    definition: Definition,
    log: LogRing,
    surroundings: Surroundings,
    attention: watch::Receiver<Attention>,
) -> Service {
    let service = Service::new(definition, log);
    service.start();
    let actor = Actor {
        service: service.clone(),
        surroundings,
        attention: Some(attention),
    };
    let shown = actor.show();
    crate::base::task::spawn(actor.live(service.desired.subscribe(), shown));
    service
}

impl Actor {
    /// `shown`: the past of a service that is already shown as running, and not looked after yet.
    async fn live(self, mut desired: watch::Receiver<DesiredState>, shown: Option<Past>) {
        // Before any new output is read.
        if shown.is_none() {
            past::recall_log(&self.service);
        }
        let words_from = self.service.log.position();
        if shown.is_some() {
            self.attended_or_read(&mut desired).await;
        }
        let (mut found, mut past) = self.adopt(shown, words_from).await;
        self.note_left(false);
        loop {
            if matches!(found, Found::Nothing) {
                // The service may have been stopped while no process of it ran.
                let is_up = desired.borrow().is_up();
                if !is_up && !self.phase().is_at_rest() {
                    self.note(Event::Stops, "stopped".to_owned());
                }
                match desired
                    .wait_for(|desired| desired.is_up() || desired.is_gone())
                    .await
                {
                    Ok(desired) if desired.is_up() => {}
                    _ => return,
                }
                if !self.attended(&mut desired).await {
                    continue;
                }
            }
            let now = Instant::now();
            let ran = std::mem::take(&mut past.ran);
            let begun = now.checked_sub(ran).unwrap_or(now);
            let ended = match std::mem::replace(&mut found, Found::Nothing) {
                Found::Running(watched) => {
                    self.watch_over(watched, &mut desired, "taken over").await
                }
                Found::Failed(why) => Ended::Failed(why),
                Found::Nothing => self.run_once(&mut desired).await,
            };
            match ended {
                Ended::Stopped => {
                    past.restarts = Restarts::default();
                    self.note_failures(0);
                }
                Ended::Left { kills_before } => {
                    past.ran = begun.elapsed();
                    past.memory_kills = Some(kills_before);
                    past.leave(&self.service);
                    past::leave_log(&self.service, &self.surroundings.logs);
                    self.note_left(true);
                    let back = desired.wait_for(|desired| !desired.is_left()).await.is_ok();
                    self.note_left(false);
                    if !back {
                        return;
                    }
                    past.ran = begun.elapsed();
                    let words_from = self.service.log.position();
                    (found, past) = self.adopt(Some(past), words_from).await;
                }
                Ended::Failed(why) => {
                    let pause = past.restarts.after(begun.elapsed());
                    self.note_failures(past.restarts.failures());
                    self.note(
                        Event::Fails,
                        format!("{why}; next start in {:.1} s", pause.as_secs_f64()),
                    );
                    tokio::select! {
                        () = tokio::time::sleep(pause) => {}
                        () = told_to_stop(&mut desired) => {}
                    }
                }
            }
        }
    }

    /// Shows a service that an earlier machined left running as running, and recalls its past; None if it does not run.
    fn show(&self) -> Option<Past> {
        let pid = self.service.definition.workload.lives_on()?;
        let past = Past::recall(&self.service).unwrap_or_default();
        // The copy stays until the service is looked after: a generation that gives itself up before that leaves it to the next.
        past::recall_log(&self.service);
        self.note_left(true);
        self.note(Event::Runs, format!("lives on as process {pid}"));
        Some(past)
    }

    /// Waits until the service can be looked after; returns false if it is wanted down before that.
    async fn attended(&self, desired: &mut watch::Receiver<DesiredState>) -> bool {
        let Some(mut attention) = self.attention.clone() else {
            return true;
        };
        tokio::select! {
            biased;
            // The sender lives as long as the services.
            all = attention.wait_for(|given| *given == Attention::All) => all.is_ok(),
            () = told_to_stop(desired) => false,
        }
    }

    /// The same for one that runs on; its output is read meanwhile if nobody knows when it can be looked after.
    async fn attended_or_read(&self, desired: &mut watch::Receiver<DesiredState>) {
        let mut left = desired.clone();
        tokio::select! {
            biased;
            _ = self.attended(desired) => {}
            Some(never) = self.read_output(&mut left) => match never {},
        }
        self.note_read(false);
    }

    /// Has the output read from when that is told, except while the service is left to the next generation, which gets what was read. Ends with the
    /// services alone.
    async fn read_output(&self, desired: &mut watch::Receiver<DesiredState>) -> Option<Infallible> {
        let workload = &self.service.definition.workload;
        let mut attention = self.attention.clone()?;
        let told = attention.wait_for(|given| *given >= Attention::Output);
        told.await.ok()?;
        loop {
            let stays = desired.wait_for(|desired| !desired.is_left());
            stays.await.ok()?;
            self.note_read(true);
            workload.read_output(self.service.log.clone());
            let leaves = desired.wait_for(|desired| desired.is_left());
            leaves.await.ok()?;
            workload.leave_output().await;
            past::leave_log(&self.service, &self.surroundings.logs);
            self.note_read(false);
        }
    }

    /// Adopts the process or container that an earlier machined, or this one, left running, and returns the past that it goes on with; `past` is
    /// known already, `words_from` is the position in the log before any of its output that nobody had read. The copy of its log lasts until then: a
    /// machined that dies before that leaves it to the next. From here on the log is left anew.
    async fn adopt(&self, past: Option<Past>, words_from: u64) -> (Found, Past) {
        let workload = &self.service.definition.workload;
        let adopted = workload.adopt(self.service.log.clone()).await;
        if let Err(error) = workload.take_log(0) {
            tracing::debug!("the copy of a log stays: {error:#}");
        }
        let past = match adopted {
            // It begins anew.
            Adopted::Ended(_) => past,
            _ => past.or_else(|| Past::recall(&self.service)),
        };
        let kills_before = past.as_ref().and_then(|past| past.memory_kills);
        let adopted = match adopted {
            Adopted::Running(running) => {
                let watched = Watched {
                    words_from,
                    kills_before: kills_before.unwrap_or_else(|| running.memory_kills()),
                    running,
                };
                return (Found::Running(watched), past.unwrap_or_default());
            }
            ended => ended,
        };
        let was_out_of_memory = kills_before.is_some_and(|it| workload.memory_kills() > it);
        let how = self.how_it_ended(adopted, past.is_some(), was_out_of_memory);
        let words = self.service.log.last_line_since(words_from);
        // No output will complete the last line any more.
        self.service.log.flush();
        let Some(how) = how else {
            self.note_failures(0);
            return (Found::Nothing, Past::default());
        };
        // It ended before this machined could show it.
        if self.phase() == Phase::Initialized {
            self.note(Event::Runs, "was left running".to_owned());
        }
        let why = match words {
            Some(words) => format!("{how}; its last words: {words}"),
            None => how,
        };
        (Found::Failed(why), past.unwrap_or_default())
    }

    /// Says how a process that was left running has ended by itself; None if it was ended on purpose, which is noted, or if none was left
    /// running. `has_past`: whether its past is known.
    fn how_it_ended(
        &self,
        adopted: Adopted,
        has_past: bool,
        was_out_of_memory: bool,
    ) -> Option<String> {
        let was_ended = self.was_ended_by_machine();
        match (adopted, self.phase()) {
            (Adopted::Nothing | Adopted::Exited(_), Phase::Running) if was_ended => {
                let why = "not taken over: the machine has ended it";
                self.note(Event::Stops, why.to_owned());
                self.note(Event::Ends, "stopped".to_owned());
                None
            }
            (Adopted::Nothing, Phase::Running) => {
                let how = self.in_words("it ended", was_out_of_memory);
                Some(format!("{how} while nobody looked"))
            }
            // Its record says that it was left running, and nothing how it ended.
            (Adopted::Nothing, Phase::Initialized) if has_past => {
                let how = self.in_words("it ended", was_out_of_memory);
                Some(format!("{how} while machined was away"))
            }
            (Adopted::Exited(exit), Phase::Running | Phase::Initialized) => {
                let exit = self.in_words(exit, was_out_of_memory);
                Some(format!("the process {exit} while nobody looked"))
            }
            (Adopted::Ended(why), Phase::Running) => {
                self.note(Event::Stops, format!("not taken over but ended: {why}"));
                self.note(Event::Ends, "stopped".to_owned());
                None
            }
            (Adopted::Ended(why), Phase::Initialized) => {
                self.note(Event::Waits, format!("not taken over but ended: {why}"));
                None
            }
            _ => None,
        }
    }

    async fn run_once(&self, desired: &mut watch::Receiver<DesiredState>) -> Ended {
        let coming_up = async {
            for dependency in &self.service.definition.depends_on {
                self.note(Event::Waits, format!("waiting for {}", dependency.what));
                (dependency.wait)().await;
            }
            self.note(Event::Prepares, "preparing".to_owned());
            self.service.definition.workload.prepare().await
        };
        // A stop during the wait or the pull takes effect at once; both can be dropped halfway.
        let prepared = tokio::select! {
            prepared = coming_up => prepared,
            () = told_to_stop(desired) => {
                self.note(Event::Stops, "stopped".to_owned());
                return Ended::Stopped;
            }
        };
        if let Err(error) = prepared {
            return Ended::Failed(format!("{error:#}"));
        }
        let starting = match self.service.definition.workload.remark() {
            None => "starting".to_owned(),
            Some(remark) => {
                tracing::warn!("service {}: {remark}", self.service.definition.id);
                format!("starting; {remark}")
            }
        };
        self.note(Event::Starts, starting);
        match self
            .service
            .definition
            .workload
            .start(self.service.log.clone())
            .await
        {
            Ok(running) => {
                let watched = Watched {
                    words_from: self.service.log.position(),
                    kills_before: running.memory_kills(),
                    running,
                };
                self.watch_over(watched, desired, "started").await
            }
            Err(error) => Ended::Failed(format!("{error:#}")),
        }
    }

    /// Watches a process to its end.
    async fn watch_over(
        &self,
        watched: Watched,
        desired: &mut watch::Receiver<DesiredState>,
        how: &str,
    ) -> Ended {
        let Watched {
            mut running,
            words_from,
            kills_before,
        } = watched;
        self.note(Event::Runs, format!("{how} as process {}", running.pid()));
        self.note_past(kills_before);
        let over = tokio::select! {
            exit = running.wait() => Over::Exited(exit),
            over = told_otherwise(desired) => over,
            why = self.check_health() => Over::Unhealthy(why),
        };
        let ended = match over {
            Over::Left => {
                running.leave().await;
                return Ended::Left { kills_before };
            }
            Over::Exited(exit) => {
                let exit = self.in_words(exit, running.memory_kills() > kills_before);
                Ended::Failed(match self.service.log.last_line_since(words_from) {
                    Some(words) => format!("the process {exit}; its last words: {words}"),
                    None => format!("the process {exit} without a word"),
                })
            }
            Over::Unhealthy(why) => {
                // It has had its time to answer.
                let exit = kill(running.as_mut()).await;
                Ended::Failed(format!("it did not do its work ({why}) and {exit}"))
            }
            Over::StopRequested => {
                self.note(Event::Stops, "asked to end".to_owned());
                let timeout = self.service.definition.workload.stop_timeout();
                let exit = end_in_order(running.as_mut(), timeout, desired).await;
                tracing::info!(
                    "service {}: stopped, the process {exit}",
                    self.service.definition.id
                );
                Ended::Stopped
            }
        };
        running.clean_up().await;
        self.service.log.flush();
        if matches!(ended, Ended::Stopped) {
            self.note(Event::Ends, "stopped".to_owned());
        }
        ended
    }

    /// Notes what is known of a service whose run begins, or goes on here: machined may die without leaving it.
    fn note_past(&self, kills_before: u64) {
        let status = self.service.status();
        let past = Past {
            restarts: Restarts::after_failures(status.failures),
            ran: status.has_run(),
            memory_kills: Some(kills_before),
        };
        past.note(&self.service);
    }

    /// Runs health checks for as long as the process runs. Returns the reason when the service has to be restarted.
    async fn check_health(&self) -> String {
        let Some(check) = &self.service.definition.health else {
            return std::future::pending().await;
        };
        let restarts = self.service.definition.restart_unhealthy;
        let patience = check.interval.min(UNHEALTHY_INTERVAL);
        let (started, mut early) = (Instant::now(), 0);
        let (mut failures, mut failing_since) = (0, started);
        loop {
            let asked = Instant::now();
            match check.check(self.service.definition.workload.as_ref()).await {
                Ok(()) => {
                    failures = 0;
                    self.note_health(Health::Healthy);
                }
                // A program that has just started may not listen yet: this is no failure.
                Err(_)
                    if self.is_unknown()
                        && started.elapsed() + EARLY_PROBES.after(early + 1) < patience =>
                {
                    early += 1;
                    tokio::time::sleep(EARLY_PROBES.after(early)).await;
                    continue;
                }
                Err(error) => {
                    if failures == 0 {
                        failing_since = asked;
                    }
                    failures += 1;
                    if failures >= check.failures {
                        let why = format!("{error:#}");
                        self.note_health(Health::Unhealthy(why.clone()));
                        let workload = &self.service.definition.workload;
                        let patience = match restarts && workload.is_overrun() {
                            true => OVERRUN,
                            false => RESTART_AFTER,
                        };
                        if restarts && failing_since.elapsed() >= patience {
                            return why;
                        }
                    }
                }
            }
            let pause = match self.service.status().health {
                Health::Healthy if failures == 0 || !restarts => check.interval,
                _ => patience,
            };
            tokio::time::sleep(pause).await;
        }
    }

    fn note_read(&self, read: bool) {
        self.service.status.send_modify(|status| status.read = read);
    }

    fn note_left(&self, left: bool) {
        self.service.status.send_modify(|status| status.left = left);
    }

    /// Whether the machine has ended it while it ran unattended; says so once.
    fn was_ended_by_machine(&self) -> bool {
        let mut was_ended = false;
        self.service.status.send_if_modified(|status| {
            was_ended = std::mem::take(&mut status.ended_by_machine);
            false
        });
        was_ended
    }

    fn note_failures(&self, failures: u32) {
        let status = &self.service.status;
        status.send_modify(|status| status.failures = failures);
    }

    /// Says how a process ended by itself, and notes it if the kernel has killed it for lack of memory.
    fn in_words(&self, exit: impl Display, was_out_of_memory: bool) -> String {
        if !was_out_of_memory {
            return exit.to_string();
        }
        let status = &self.service.status;
        status.send_modify(|status| status.out_of_memory = Some(SystemTime::now()));
        format!("{exit}, killed by the kernel for lack of memory")
    }

    fn is_unknown(&self) -> bool {
        self.service.status().health == Health::Unknown
    }

    fn phase(&self) -> Phase {
        self.service.status.borrow().phase
    }

    /// Notes an event, and enters the phase that follows from it.
    fn note(&self, event: Event, message: String) {
        let (id, phase) = (&self.service.definition.id, self.phase());
        match phase.after(event) {
            Some(next) => self.enter(next, message),
            None => tracing::error!(
                "service {id}: this is a bug: {event:?} in the phase {}: {message}",
                phase.name()
            ),
        }
    }

    fn enter(&self, phase: Phase, message: String) {
        let id = &self.service.definition.id;
        match phase {
            Phase::Failed => tracing::warn!("service {id}: {message}"),
            // Whether it was started or adopted, and when.
            Phase::Running => tracing::info!("service {id}: {message}"),
            _ => tracing::debug!("service {id}: {}: {message}", phase.name()),
        }
        self.service
            .status
            .send_modify(|status| status.enter(phase, message));
        self.publish();
    }

    fn note_health(&self, health: Health) {
        if self
            .service
            .status
            .send_if_modified(|status| status.set_health(health))
        {
            self.publish();
        }
    }

    fn publish(&self) {
        self.surroundings.publish(&self.service);
    }
}

/// Ends when the service is wanted down; pending for ever otherwise.
async fn told_to_stop(desired: &mut watch::Receiver<DesiredState>) {
    if desired.wait_for(|desired| !desired.is_up()).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Ends when the service is wanted down or is to be left running unattended; pending for ever otherwise.
async fn told_otherwise(desired: &mut watch::Receiver<DesiredState>) -> Over {
    let told = desired
        .wait_for(|desired| !desired.is_up() || desired.is_left())
        .await;
    let is_up = told.map(|desired| desired.is_up());
    match is_up {
        Ok(true) => Over::Left,
        Ok(false) => Over::StopRequested,
        Err(_) => std::future::pending().await,
    }
}

/// Ends a process: tells it to end, and kills it after its time, or as soon as the machine is in a hurry.
async fn end_in_order(
    running: &mut dyn Running,
    time: Duration,
    desired: &mut watch::Receiver<DesiredState>,
) -> Exit {
    let ended = tokio::select! {
        biased;
        _ = desired.wait_for(|desired| desired.is_hurried()) => None,
        ended = end(running, Signal::Terminate, time) => ended,
    };
    match ended {
        Some(exit) => exit,
        None => kill(running).await,
    }
}

async fn kill(running: &mut dyn Running) -> Exit {
    let ended = end(running, Signal::Kill, GRACE).await;
    // Even SIGKILL did not work: the process hangs in the kernel. init's teardown deals with it.
    ended.unwrap_or(Exit::Unknown)
}

/// Sends a process a signal that ends it; `None` if it has not ended within the time.
async fn end(running: &mut dyn Running, signal: Signal, patience: Duration) -> Option<Exit> {
    if let Err(error) = running.signal(signal) {
        tracing::debug!("signal {signal:?} to process {}: {error:#}", running.pid());
    }
    tokio::time::timeout(patience, running.wait()).await.ok()
}
