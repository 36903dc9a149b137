//! Runs one service: an actor that starts it when it is wanted up, keeps it up, and stops it when it is wanted down.

use std::fmt::Display;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use instar_api::events::EventPayload;
use instar_api::machine::{ServiceHealth, ServiceStateEvent, service_state_event::Action};
use tokio::sync::watch;

use super::carried::{Carried, LONGEST_RECORD};
use super::desired_state::DesiredState;
use super::health::{HealthCheck, Probe};
use super::log_disk::LogDisk;
use super::log_ring::{LONGEST_LOG, LogRing};
use super::phase::{Event, Phase};
use super::restart::Restarts;
use super::state::{Health, ServiceStatus};
use super::workload::{Adopted, Running, Signal, Step, Workload};
use crate::base::Exit;
use crate::base::back_off::BackOff;
use crate::store::event_log::{ActorId, EventLog};
use crate::store::{ServiceFact, Store};

/// Limit on the end of a service after SIGKILL, and on the end of the watch over one that lives on.
const GRACE: Duration = Duration::from_secs(10);

/// Limit on the wait for a service to stop, beside the time that the service has to end: its end after SIGKILL, and time to remove what is left
/// of it on a busy machine.
const STOPPING: Duration = Duration::from_secs(50);

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

/// Says whether the machine config of the next generation lets a service live through an upgrade, by its name. The error says why not, for
/// people.
pub type KeptByConfig<'a> = dyn Fn(&str) -> anyhow::Result<()> + Send + Sync + 'a;

/// Describes a service; its state is in [`ServiceStatus`].
pub struct Definition {
    /// Its name, unique on the machine.
    pub id: String,
    /// The process or container that it runs.
    pub workload: Arc<dyn Workload>,
    /// Conditions that must hold before it starts; described for people.
    pub depends_on: Vec<Dependency>,
    /// Its health check.
    pub health: Option<HealthCheck>,
    /// Whether the API may start and stop it.
    pub controllable: bool,
    /// Whether an upgrade is healthy only when this service is up.
    pub required: bool,
    /// Whether it must also be up if it was up before the upgrade.
    pub judged: bool,
    /// Whether it is restarted when its health check says that it is unhealthy.
    pub restart_unhealthy: bool,
}

/// A condition that a service waits for.
pub struct Dependency {
    /// As in "waiting for the network".
    pub what: String,
    /// Ends when the condition holds. Made anew for each wait.
    pub wait: Box<dyn Fn() -> Step<'static, ()> + Send + Sync>,
}

/// Why a service that is to stop is still up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotStopped {
    /// Another caller wants it up.
    #[error("it was started again while it was being stopped")]
    StartedAgain,
    /// The service, or the cleanup after it, hangs.
    #[error("it has not ended within {0} s, and ends when it can")]
    InTime(u64),
}

/// The handle of a service's actor.
#[derive(Clone)]
pub struct Service {
    definition: Arc<Definition>,
    desired: watch::Sender<DesiredState>,
    status: watch::Sender<ServiceStatus>,
    log: LogRing,
}

impl Service {
    /// Spawns the actor; the service itself starts when it is wanted up.
    pub(super) fn spawn(
        definition: Definition,
        log: LogRing,
        surroundings: Surroundings,
    ) -> Service {
        let service = Service::new(definition, log);
        let actor = Actor {
            service: service.clone(),
            surroundings,
            attended: None,
        };
        crate::base::task::spawn(actor.live(service.desired.subscribe(), None));
        service
    }

    /// Spawns the actor of a service that an earlier machined left running; it is wanted up. The service is shown as running at once, and
    /// is adopted or restarted when `attended` becomes true.
    pub(super) fn spawn_living(
        definition: Definition,
        log: LogRing,
        surroundings: Surroundings,
        attended: watch::Receiver<bool>,
    ) -> Service {
        let service = Service::new(definition, log);
        service.start();
        let actor = Actor {
            service: service.clone(),
            surroundings,
            attended: Some(attended),
        };
        let shown = actor.show();
        crate::base::task::spawn(actor.live(service.desired.subscribe(), shown));
        service
    }

    fn new(definition: Definition, log: LogRing) -> Service {
        let checked = definition.health.is_some();
        Service {
            definition: Arc::new(definition),
            desired: watch::channel(DesiredState::default()).0,
            status: watch::channel(ServiceStatus::new(checked)).0,
            log,
        }
    }

    /// Returns the definition.
    pub fn definition(&self) -> &Definition {
        &self.definition
    }

    /// Returns the newest output.
    pub fn log(&self) -> &LogRing {
        &self.log
    }

    /// Returns the current status.
    pub fn status(&self) -> ServiceStatus {
        self.status.borrow().clone()
    }

    /// Returns the state in one line: the phase and the last event.
    pub fn summary(&self) -> String {
        let status = self.status();
        let last = status.history.back();
        format!(
            "service {}: {}: {}",
            self.definition.id,
            status.phase.name(),
            last.map_or("", |last| last.message.as_str())
        )
    }

    /// Marks it as wanted up; a service that is held starts when it is released.
    pub fn start(&self) {
        self.desired.send_modify(DesiredState::start);
    }

    /// Marks it as wanted down and waits until it is down, within a time limit.
    pub async fn stop(&self) -> Result<(), NotStopped> {
        self.desired.send_modify(DesiredState::stop);
        self.rest().await
    }

    /// Whether its operator wants it up, also while the machine keeps it down.
    pub fn is_wanted_up(&self) -> bool {
        self.desired.borrow().is_wanted_up()
    }

    /// Waits until its process has ended, and has it start again, if its operator wants it up then.
    pub(super) async fn run_anew(&self) -> Result<(), NotStopped> {
        /// Ends the moment between two runs, also if the caller no longer waits.
        struct Between<'a>(&'a Service);
        impl Drop for Between<'_> {
            fn drop(&mut self) {
                self.0.desired.send_modify(|desired| desired.restart(false));
            }
        }
        self.desired.send_modify(|desired| desired.restart(true));
        let _between = Between(self);
        self.rest().await
    }

    /// Stops it and ends its actor, for good. An error means that it needs longer to end.
    pub async fn retire(&self) -> Result<(), NotStopped> {
        self.desired.send_modify(DesiredState::retire);
        self.rest().await
    }

    /// Checks that it runs and may live through a change of generations.
    pub(super) fn outlives_generation(&self, kept: &KeptByConfig<'_>) -> anyhow::Result<()> {
        let status = self.status();
        let phase = status.phase;
        anyhow::ensure!(phase == Phase::Running, "it is {}", phase.name());
        // The generation that gives itself up before it looks after a service has no say: it may not even see the disk that the service uses.
        match status.left {
            true => Ok(()),
            false => {
                let workload = &self.definition.workload;
                // The config says more than a container, which may have been started as one that ends only because the config said so. Of
                // a part of the generation it knows nothing.
                if !workload.is_part_of_generation() {
                    kept(&self.definition.id)?;
                }
                workload.outlives_generation()
            }
        }
    }

    /// Leaves it running unattended until it is released; returns false if its watch does not end in time.
    pub(super) async fn leave(&self) -> bool {
        self.desired.send_modify(DesiredState::leave);
        let left = self.until(|status| status.left || status.phase != Phase::Running);
        let in_time = tokio::time::timeout(GRACE, left).await.is_ok();
        in_time && self.status().left
    }

    /// Keeps it down until it is released, whatever its operator asks for.
    pub(super) fn hold(&self) {
        self.desired.send_modify(DesiredState::hold);
    }

    /// Takes its time to end from it, also if it is ending already: it is killed.
    pub(super) fn hurry(&self) {
        self.desired.send_modify(DesiredState::hurry);
    }

    /// Ends the hold: the operator's wish counts again.
    pub(super) fn release(&self) {
        self.desired.send_modify(DesiredState::release);
    }

    /// Whether it is kept down.
    pub(super) fn is_held(&self) -> bool {
        self.desired.borrow().is_held()
    }

    /// Waits until it is down. Only a service that is wanted down stays down long enough to be seen.
    pub(super) async fn rest(&self) -> Result<(), NotStopped> {
        let mut desired = self.desired.subscribe();
        let ended = async {
            tokio::select! {
                biased;
                () = self.until(|status| status.phase.is_at_rest()) => Ok(()),
                _ = desired.wait_for(|desired| desired.is_up()) => Err(NotStopped::StartedAgain),
            }
        };
        let limit = self.definition.workload.stop_timeout() + STOPPING;
        let ended = tokio::time::timeout(limit, ended).await;
        ended.unwrap_or(Err(NotStopped::InTime(limit.as_secs())))
    }

    /// Waits until it is up.
    pub async fn up(&self) {
        self.until(ServiceStatus::is_up).await;
    }

    /// Returns whether it stays up: a service with a health check of its own passes it several times more; any other one has run for
    /// `time`, time under an earlier machined included. False as soon as it goes down.
    pub async fn proves_steady(&self, time: Duration) -> bool {
        let proof = async {
            match &self.definition.health {
                Some(check) if check.probe == Probe::Own => {
                    check.passes_again(self.definition.workload.as_ref()).await
                }
                _ => {
                    tokio::time::sleep(time.saturating_sub(self.status().has_run())).await;
                    true
                }
            }
        };
        tokio::select! {
            biased;
            () = self.until(|status| !status.is_up()) => false,
            proved = proof => proved,
        }
    }

    pub(super) async fn until(&self, holds: impl Fn(&ServiceStatus) -> bool) {
        // The sender lives in `self`, so this cannot fail.
        let _ = self
            .status
            .subscribe()
            .wait_for(|status| holds(status))
            .await;
    }
}

/// Where a service sends its events and its log.
#[derive(Clone)]
pub(super) struct Surroundings {
    pub(super) events: EventLog,
    pub(super) store: Store,
    pub(super) logs: LogDisk,
}

struct Actor {
    service: Service,
    surroundings: Surroundings,
    /// Becomes true when services that an earlier machined left running can be looked after; None where no service has to wait for that.
    attended: Option<watch::Receiver<bool>>,
}

/// An earlier machined's record of a service that lives on.
#[derive(Default)]
struct Past {
    restarts: Restarts,
    /// Running time up to then.
    ran: Duration,
    /// How many of its processes the kernel had killed for lack of memory when its run began; None if that is not known.
    memory_kills: Option<u64>,
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

impl Actor {
    /// `shown`: the past of a service that is already shown as running, and not looked after yet.
    async fn live(self, mut desired: watch::Receiver<DesiredState>, shown: Option<Past>) {
        match shown {
            Some(_) => {
                self.attended(&mut desired).await;
            }
            // Before any new output is read.
            None => self.recall_log(),
        }
        let (mut found, mut past) = self.adopt(shown).await;
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
                    self.leave_record(&past);
                    self.leave_log();
                    self.note_left(true);
                    let back = desired.wait_for(|desired| !desired.is_left()).await.is_ok();
                    self.note_left(false);
                    if !back {
                        return;
                    }
                    past.ran = begun.elapsed();
                    (found, past) = self.adopt(Some(past)).await;
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
        let past = self.recall().unwrap_or_default();
        // The copy stays until the service is looked after: a generation that gives itself up before that leaves it to the next.
        self.inherit_log(self.service.definition.workload.left_log(LONGEST_LOG));
        self.note_left(true);
        self.note(Event::Runs, format!("lives on as process {pid}"));
        Some(past)
    }

    /// Waits until the service can be looked after; returns false if it is wanted down before that.
    async fn attended(&self, desired: &mut watch::Receiver<DesiredState>) -> bool {
        let Some(mut attended) = self.attended.clone() else {
            return true;
        };
        tokio::select! {
            biased;
            // The sender lives as long as the services.
            attended = attended.wait_for(|attended| *attended) => attended.is_ok(),
            () = told_to_stop(desired) => false,
        }
    }

    /// Adopts the process or container that an earlier machined, or this one, left running, and returns the past that it goes on with; `past` is
    /// known already. The copy of its log lasts until then: a machined that dies before that leaves it to the next. From here on the log is
    /// left anew.
    async fn adopt(&self, past: Option<Past>) -> (Found, Past) {
        let workload = &self.service.definition.workload;
        let words_from = self.service.log.position();
        let adopted = workload.adopt(self.service.log.clone()).await;
        if let Err(error) = workload.take_log(0) {
            tracing::debug!("the copy of a log stays: {error:#}");
        }
        let past = match adopted {
            // It begins anew.
            Adopted::Ended(_) => past,
            _ => past.or_else(|| self.recall()),
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

    /// Recalls the record that an earlier machined left, with which the service goes on; None if there is none that can be read.
    fn recall(&self) -> Option<Past> {
        let record = self.service.definition.workload.record(LONGEST_RECORD);
        let carried =
            record.and_then(|record| record.as_deref().map(Carried::from_text).transpose());
        match carried {
            Ok(carried) => {
                let carried = carried?;
                let past = Past {
                    restarts: Restarts::after_failures(carried.failures),
                    ran: carried.ran,
                    memory_kills: carried.memory_kills,
                };
                let status = &self.service.status;
                status.send_modify(|status| carried.recall(status));
                Some(past)
            }
            Err(error) => {
                tracing::warn!(
                    "service {}: what was known of it is lost: {error:#}",
                    self.service.definition.id
                );
                None
            }
        }
    }

    fn leave_record(&self, past: &Past) {
        let carried = Carried::of(&self.service.status(), past.restarts.failures(), past.ran)
            .with_memory_kills(past.memory_kills);
        let workload = &self.service.definition.workload;
        let left = carried
            .to_text()
            .and_then(|text| workload.leave_record(&text));
        if let Err(error) = left {
            tracing::warn!(
                "service {}: it runs on, and what is known of it ends here: {error:#}",
                self.service.definition.id
            );
        }
    }

    /// Leaves the part of the log that is stored nowhere else: every line, if no disk holds the log, or those that a full disk refuses.
    fn leave_log(&self) {
        let (disk, log) = (&self.surroundings.logs, &self.service.log);
        let log = match disk.refused_from(&self.service.definition.id) {
            _ if !disk.is_there() => log.contents(),
            Some(refused) => log.contents_from(refused),
            None => log.unfinished(),
        };
        if let Err(error) = self.service.definition.workload.leave_log(&log) {
            tracing::warn!(
                "service {}: it runs on, and the end of its log is lost: {error:#}",
                self.service.definition.id
            );
        }
    }

    /// Continues the log where an earlier machined left it.
    fn recall_log(&self) {
        self.inherit_log(self.service.definition.workload.left_log(LONGEST_LOG));
    }

    fn inherit_log(&self, log: anyhow::Result<Option<Vec<u8>>>) {
        match log {
            Ok(Some(log)) => self.service.log.inherit(&log),
            Ok(None) => {}
            Err(error) => tracing::warn!(
                "service {}: the end of its log of before is lost: {error:#}",
                self.service.definition.id
            ),
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
        self.note(Event::Starts, "starting".to_owned());
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
        let Surroundings { events, store, .. } = &self.surroundings;
        self.service.publish(events, store);
    }
}

impl Service {
    /// Adds an announcement to the history of a service that runs, or that has not begun; a message equal to the last one is not repeated.
    pub(super) fn tell(&self, message: &str, events: &EventLog, store: &Store) {
        let told = self.status.send_if_modified(|status| {
            // Of a service that nobody looks after there is one thing to announce: that the machine ends it.
            status.ended_by_machine |= status.left;
            let is_new = status
                .history
                .back()
                .is_none_or(|last| last.message != message);
            let phase = status.phase;
            let is_told = is_new && matches!(phase, Phase::Running | Phase::Initialized);
            if is_told {
                status.enter(phase, message.to_owned());
            }
            is_told
        });
        if told {
            tracing::info!("service {} {message}", self.definition.id);
            self.publish(events, store);
        }
    }

    fn publish(&self, events: &EventLog, store: &Store) {
        let status = self.status();
        let fact = ServiceFact {
            running: status.phase == Phase::Running,
            healthy: status.is_up(),
            unknown: status.is_undecided(),
        };
        store.put(&self.definition.id, fact);
        let event = ServiceStateEvent {
            service: self.definition.id.clone(),
            action: action(status.phase).into(),
            message: status
                .history
                .back()
                .map(|last| last.message.clone())
                .unwrap_or_default(),
            health: Some(wire_health(&status)),
        };
        events.emit(&ActorId::default(), EventPayload::ServiceState(event));
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

fn action(phase: Phase) -> Action {
    match phase {
        Phase::Initialized => Action::Initialized,
        Phase::Waiting => Action::Waiting,
        Phase::Preparing => Action::Preparing,
        Phase::Starting => Action::Starting,
        Phase::Running => Action::Running,
        Phase::Stopping => Action::Stopping,
        Phase::Finished => Action::Finished,
        Phase::Failed => Action::Failed,
    }
}

/// Converts a service's health for `ServiceList` and the events.
pub fn wire_health(status: &ServiceStatus) -> ServiceHealth {
    ServiceHealth {
        unknown: status.health == Health::Unknown,
        healthy: status.health == Health::Healthy,
        last_message: match &status.health {
            Health::Unhealthy(why) => why.clone(),
            _ => String::new(),
        },
        last_change: Some(timestamp(status.health_changed)),
    }
}

/// Converts a time for the wire.
pub fn timestamp(time: SystemTime) -> prost_types::Timestamp {
    time.into()
}
