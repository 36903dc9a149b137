//! Follows a channel: asks for its list, has the chosen release fetched, switches to it, and watches whether it proves itself.
//!
//! `follow/step.rs` decides; this file gathers facts and carries the decisions out. Without a channel in the config it waits for one.

mod bring;
mod identity;
mod list;
mod lock;
mod readiness;
mod report;

pub use bring::{NotTaken, bring};

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use instar_channel::{Choice, Date, Follower, List, Release, choose};
use tokio::sync::watch;
use tokio::time::Instant;

use self::identity::{identity, settled_hostname};
use self::readiness::Readiness;
use self::report::Reporter;
use super::boot::records;
use super::hang_up::Caller;
use super::{RollbackBy, RollbackError};
use super::{rollback, upgrade};
use crate::base::blocking_io::{self, ANSWER};
use crate::base::error_chain::chain;
use crate::config::{Approval, UpgradeFollow};
use crate::follow::{
    Act, Attempt, Chosen, Delays, Facts, Fetched, Follow, FollowFact, Heard, LockAnswer, LockPlace,
    Policy, Record, ReleaseFact, Stage, Step, step,
};
use crate::machine::{Configured, Machine};
use crate::pins::{PinFact, State, Wait};
use crate::store::{ClockFact, MachineStage, MachineStatus};
use crate::upgrade::{Candidate, ReleaseOrigin, UpgradeError, UpgradeMode, UpgradeRequest};
use crate::values::{Digest, Version};

/// A list that was asked for this long ago is asked for once more before a switch.
const FRESH: Duration = Duration::from_secs(300);
/// The pause after a look that failed, if the interval is not shorter.
const LOOK_AGAIN: Duration = Duration::from_secs(60);
/// The pause between two requests to the fleet's lock.
const LOCK_AGAIN: Duration = Duration::from_secs(30);

/// Follows the channel of the config, for as long as the machine runs.
pub async fn keep(machine: Arc<Machine>) {
    let mut settled = machine.watch_settled();
    if settled.wait_for(|settled| *settled).await.is_err() {
        return;
    }
    if let Some(left) = machine.take_kept(Follow::NAME)
        && let Err(error) = machine.follow.adopt(&left)
    {
        tracing::warn!("what the last generation knew of the channel is lost: {error:#}");
    }
    crate::base::task::spawn(lock::give_back_owed(machine.clone()));
    let mut config = machine.watch_config();
    loop {
        let configured = config.borrow_and_update().clone();
        let follow = configured.and_then(|configured| configured.config.upgrade_follow.clone());
        match follow {
            // In memory of its own, which is there only while a channel is followed.
            Some(follow) => Box::pin(run(&machine, follow, &mut config)).await,
            None => {
                stop(&machine).await;
                // The sender lives in the machine.
                let _ = config.changed().await;
            }
        }
    }
}

/// Shows no channel any more, has nothing fetched, and owes the fleet's lock.
async fn stop(machine: &Machine) {
    machine.follow.leave_lock(&machine.init).await;
    machine.store.retain::<FollowFact>(|_| false);
    if machine.follow.set_image(None) {
        machine.pins.look_again();
    }
}

/// Follows one channel until the config says something else about it.
async fn run(
    machine: &Arc<Machine>,
    follow: UpgradeFollow,
    config: &mut watch::Receiver<Option<Arc<Configured>>>,
) {
    let source = format!("{} by {}", follow.channel, follow.key.fingerprint());
    let hostname = match machine.follow.record() {
        Some(_) => machine.hostname(),
        None => settled_hostname(machine).await,
    };
    let make = || identity(Path::new("/sys"), &hostname);
    machine.follow.begin(&source, make);
    machine
        .store
        .retain::<FollowFact>(|id| id == follow.channel.as_str());
    let readiness = Readiness::of(machine.store.clone());
    let following = Following::new(machine, follow, &readiness);
    tokio::select! {
        () = go_on(following, config) => {}
        never = readiness.watch() => match never {},
    }
}

async fn go_on(
    mut following: Following<'_>,
    config: &mut watch::Receiver<Option<Arc<Configured>>>,
) {
    let machine = following.machine;
    let mut wishes = machine.follow.watch();
    let mut pins = machine.pins.watch();
    loop {
        let pause = following.turn().await;
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = wishes.changed() => {}
            _ = pins.changed() => {}
            _ = config.changed() => {
                let configured = config.borrow().clone();
                let next = configured.and_then(|it| it.config.upgrade_follow.clone());
                if next.as_ref() != Some(&following.follow) {
                    return;
                }
            }
        }
    }
}

/// A machine that follows a channel.
struct Following<'a> {
    machine: &'a Arc<Machine>,
    follow: UpgradeFollow,
    /// The newest list that was read since machined started.
    list: Option<List>,
    heard: Option<Heard>,
    /// When a list was read last. A look that failed says nothing about withdrawals.
    looked: Option<Instant>,
    next_look: Instant,
    /// Whether the target has the signature that approves it, and which one that is.
    signed: Option<Digest>,
    /// The fleet's lock of the config.
    lock_at: Option<LockPlace>,
    lock: LockAnswer,
    lock_asked: Option<Instant>,
    /// This start of machined, by a name of its own.
    start: String,
    begun: Instant,
    readiness: &'a Readiness,
    reporter: Reporter,
}

impl<'a> Following<'a> {
    fn new(machine: &'a Arc<Machine>, follow: UpgradeFollow, readiness: &'a Readiness) -> Self {
        let now = Instant::now();
        Following {
            machine,
            reporter: Reporter::new(follow.report.clone()),
            lock_at: follow.fleet_lock.as_ref().map(lock::place),
            follow,
            list: None,
            heard: None,
            looked: None,
            next_look: now,
            signed: None,
            lock: LockAnswer::Unasked,
            lock_asked: None,
            start: format!("{} {}", machine.generation.boot_id, std::process::id()),
            begun: now,
            readiness,
        }
    }

    /// Does all that is due; returns the time until something is due again.
    async fn turn(&mut self) -> Duration {
        self.look_if_due().await;
        let Some(step) = self.decide().await else {
            return LOOK_AGAIN;
        };
        forgive(self.machine, &step.forgiven).await;
        self.fetch(&step);
        self.show(&step);
        self.act(&step).await;
        let next_look = self.next_look.saturating_duration_since(Instant::now());
        let next_look = next_look.max(Duration::from_secs(1));
        Duration::from_secs(step.again).min(next_look)
    }

    /// Decides the next step, and keeps the record of it.
    async fn decide(&self) -> Option<Step> {
        let machine = self.machine;
        let record = machine.follow.record()?;
        let list = self.list.clone();
        let choice = list.as_ref().map(|list| self.choose(list, &record));
        let facts = self.facts(&record, choice.as_ref());
        let release = match facts.chosen {
            Chosen::Release { release, .. } => Some(release.digest),
            _ => record.target().map(|target| target.release.digest),
        };
        let policy = self.policy(&record, release);
        let from_image = self.running_image();
        let decide = |record: &mut Record| {
            if let Some(choice) = &choice {
                record.forget_withdrawn(choice);
            }
            let mut step = step(record.clone(), &facts, &policy);
            if let (Act::Switch, Stage::Switching(attempt)) = (step.act, &mut step.record.stage) {
                attempt.from_image = from_image;
            }
            record.clone_from(&step.record);
            step
        };
        let owed = record.owed.len();
        let step = machine.follow.change(&machine.init, decide).await?;
        if step.record.owed.len() > owed {
            // For the task that gives such locks back.
            machine.follow.look_again();
        }
        Some(step)
    }

    fn running_image(&self) -> Option<String> {
        let origin = self
            .machine
            .store
            .get::<ReleaseOrigin>(ReleaseOrigin::RUNNING);
        let origin = origin?;
        let image: crate::values::ImageReference = origin.image.parse().ok()?;
        Some(image.at(origin.digest).to_string())
    }

    fn choose<'l>(&self, list: &'l List, record: &Record) -> Choice<'l> {
        let machine = self.machine;
        let version = machine.running.version.parse::<Version>().ok();
        let origin = machine.store.get::<ReleaseOrigin>(ReleaseOrigin::RUNNING);
        let created = origin.as_ref().and_then(|it| it.created.as_deref());
        let floor = machine.upgrades.floor_in_force().oldest();
        let failed = machine.upgrades.failed_images().clone();
        let held = |digest: Digest| {
            let hold = record.hold(digest).map(|hold| hold.why.clone());
            hold.or_else(|| failed.reason(&digest.to_string()).map(str::to_owned))
        };
        choose(
            list,
            &Follower {
                version: version.as_ref(),
                digest: origin.as_ref().map(|origin| origin.digest),
                created: created.and_then(|text| Date::lenient(text).ok()),
                architecture: &machine.running.architecture,
                labels: &self.follow.labels,
                floor: floor.as_ref(),
                held: &held,
            },
        )
    }

    fn facts<'f>(&self, record: &Record, choice: Option<&Choice<'f>>) -> Facts<'f>
    where
        'a: 'f,
    {
        let machine: &'f Machine = self.machine;
        let clock = machine.store.get::<ClockFact>("node");
        let knows_time = clock.is_some_and(|clock| clock.synced || clock.sync_disabled);
        let target = record.target().map(|target| &target.release);
        let subject = choice.and_then(|choice| choice.release).or(target);
        let failed = machine.upgrades.failed_images();
        let failure = target.and_then(|it| failed.reason(&it.digest.to_string()));
        let status = machine.store.get::<MachineStatus>(MachineStatus::ID);
        let runs = status.is_some_and(|status| status.stage == MachineStage::Running);
        let now = Instant::now();
        let origin = machine.store.get::<ReleaseOrigin>(ReleaseOrigin::RUNNING);
        Facts {
            now: seconds_now(),
            knows_time,
            chosen: self.chosen(record, choice, knows_time),
            list_is_fresh: self.looked.is_some_and(|at| now - at < FRESH)
                || self.follow.urls.is_empty(),
            running: &machine.running.version,
            running_digest: origin.map(|origin| origin.digest),
            failure: failure.map(str::to_owned),
            fetched: subject.map_or_else(
                || Fetched::No("it is not known which one".to_owned()),
                |release| self.fetched(release),
            ),
            is_signed: subject.is_some_and(|it| self.signed == Some(it.digest)),
            is_busy: !runs || machine.operations.check_free().is_err(),
            lock: self.lock.clone(),
            ready_for: self
                .readiness
                .since()
                .map(|since| since.elapsed().as_secs()),
            watched_for: (now - self.begun).as_secs(),
            start: self.start.clone(),
        }
    }

    /// Returns the channel's release for this machine. A list that has expired starts nothing.
    fn chosen<'l>(
        &self,
        record: &Record,
        choice: Option<&Choice<'l>>,
        knows_time: bool,
    ) -> Chosen<'l> {
        let (Some(choice), Some(list)) = (choice, &self.list) else {
            return Chosen::Unknown;
        };
        let has_expired = |date: Date| knows_time && date.seconds() < seconds_now();
        let offers_failed = record.offers_failed(choice);
        match choice.release {
            Some(release) if !list.expires.is_some_and(has_expired) => Chosen::Release {
                release,
                offers_failed,
            },
            _ => Chosen::None { offers_failed },
        }
    }

    fn policy(&self, record: &Record, release: Option<Digest>) -> Policy<'_> {
        let delays = Delays {
            identity: &record.identity,
            longest: self.follow.jitter,
        };
        Policy {
            delay: release.map_or(0, |digest| delays.of(digest)),
            window: self.follow.switch_window.as_ref(),
            needs_approval: self.follow.approval != Approval::NotNeeded,
            lock: self.lock_at.as_ref(),
            healthy_for: self.follow.healthy_for.as_secs(),
            hold_for: self.follow.hold_for.map(|time| time.as_secs()),
        }
    }

    /// Whether the image of a release is here, and is the one that the list says.
    fn fetched(&self, release: &Release) -> Fetched {
        let machine = self.machine;
        let name = release.pinned_image().to_string();
        let fact = machine.store.get::<PinFact>(&name);
        let image = machine.images.get(release.digest);
        let (Some(State::Pinned { .. }), Some(image)) = (fact.as_ref().map(|it| &it.state), image)
        else {
            return Fetched::No(fact.map_or_else(
                || "it is not asked for yet".to_owned(),
                |fact| progress(&fact.state),
            ));
        };
        match Candidate::from_labels(&image.config().labels) {
            Ok(candidate) if candidate.version == release.version => Fetched::Yes,
            Ok(candidate) => Fetched::Wrong(format!(
                "the channel says {}, and the image's label says {}",
                release.version, candidate.version
            )),
            Err(error) => Fetched::Wrong(error.to_string()),
        }
    }

    /// Has the image of the target fetched once the machine's own delay is over.
    fn fetch(&self, step: &Step) {
        let image = match &step.record.stage {
            Stage::Target(target) => {
                let delay = self.policy(&step.record, Some(target.release.digest)).delay;
                let due = target.seen.saturating_add(delay) <= seconds_now();
                due.then(|| target.release.pinned_image())
            }
            Stage::Switching(attempt) => Some(attempt.target.release.pinned_image()),
            _ => None,
        };
        if self.machine.follow.set_image(image) {
            self.machine.pins.look_again();
        }
    }

    /// Carries out what a step says.
    async fn act(&mut self, step: &Step) {
        match (step.act, &step.record.stage) {
            (Act::None, _) => {}
            (Act::Look, _) => self.look_once_more().await,
            (Act::Lock, _) => self.ask_for_lock(&step.record.identity).await,
            (Act::Unlock, _) => self.give_lock_back(&step.record.identity).await,
            (Act::Switch, Stage::Switching(attempt)) => self.switch(attempt).await,
            (Act::GoBack, Stage::Returning(attempt, why)) => self.go_back(attempt, why).await,
            (Act::Switch | Act::GoBack, _) => {}
        }
    }

    async fn switch(&mut self, attempt: &Attempt) {
        let release = &attempt.target.release;
        tracing::info!(
            "{}: the machine switches to {} ({})",
            self.follow.channel,
            release.version,
            release.digest
        );
        self.lock = LockAnswer::Unasked;
        if let Err(error) = self.begin(release.pinned_image().to_string()).await {
            let why = chain(&error);
            tracing::warn!(
                "{}: {} is refused: {why}",
                self.follow.channel,
                release.version
            );
            let machine = self.machine;
            let refuse = |record: &mut Record| {
                *record = record.clone().refused(why, seconds_now());
            };
            machine.follow.change(&machine.init, refuse).await;
        }
    }

    async fn begin(&self, image: String) -> Result<(), UpgradeError> {
        let request = UpgradeRequest {
            image,
            force: false,
            mode: UpgradeMode::Quickest,
        };
        // In a task of its own: a change of the config does not interrupt it.
        let upgrading = upgrade(self.machine.clone(), request, Caller::machine());
        match crate::base::task::spawn(upgrading).await {
            Ok(begun) => begun.map(|_| ()),
            Err(error) => Err(UpgradeError::Machine(error.into())),
        }
    }

    /// Goes back to the version before: on its own disk, else, and if it would not start there, from the image that it came from.
    async fn go_back(&mut self, attempt: &Attempt, why: &str) {
        let version = &attempt.target.release.version;
        tracing::error!(
            "{}: {version} is given up, and the machine goes back to {}: {why}",
            self.follow.channel,
            attempt.from
        );
        let gone = match (
            rollback(self.machine, RollbackBy::Channel).await,
            &attempt.from_image,
        ) {
            (Ok(_), _) => Ok(()),
            (Err(RollbackError::NotInstalled | RollbackError::Damaged { .. }), Some(image)) => self
                .begin(image.clone())
                .await
                .map_err(|error| chain(&error)),
            (Err(error), _) => Err(chain(&error)),
        };
        if let Err(error) = gone {
            tracing::error!(
                "{}: the machine cannot go back: {error}",
                self.follow.channel
            );
        }
    }

    async fn ask_for_lock(&mut self, identity: &str) {
        if self.lock_asked.is_some_and(|at| at.elapsed() < LOCK_AGAIN) {
            return;
        }
        let Some(at) = &self.lock_at else {
            return;
        };
        if self.machine.follow.is_giving_back(at) {
            return;
        }
        let answer = lock::pre_reboot(self.machine, at, identity).await;
        self.lock_asked = Some(Instant::now());
        self.lock = match answer {
            Ok(()) => LockAnswer::Granted,
            Err(error) => LockAnswer::Refused(format!("{error:#}")),
        };
        if self.lock == LockAnswer::Granted {
            tracing::info!("{}: the machine has the fleet's lock", self.follow.channel);
            self.machine.follow.look_again();
        }
    }

    async fn give_lock_back(&mut self, identity: &str) {
        if self.lock_asked.is_some_and(|at| at.elapsed() < LOCK_AGAIN) && self.was_refused() {
            return;
        }
        let Some(at) = &self.lock_at else {
            return;
        };
        let answer = lock::steady_state(self.machine, at, identity).await;
        self.lock_asked = Some(Instant::now());
        match answer {
            Ok(()) => {
                self.lock_asked = None;
                self.lock = LockAnswer::Unasked;
                let machine = self.machine;
                let give = |record: &mut Record| {
                    record.has_lock = false;
                    record.lock_at = None;
                };
                machine.follow.change(&machine.init, give).await;
                tracing::info!("{}: the fleet's lock is given back", self.follow.channel);
            }
            Err(error) => {
                tracing::warn!(
                    "{}: the fleet's lock is not given back: {error:#}",
                    self.follow.channel
                );
                self.lock = LockAnswer::Refused(format!("{error:#}"));
            }
        }
    }

    fn was_refused(&self) -> bool {
        matches!(self.lock, LockAnswer::Refused(_))
    }

    /// Asks for the list, if it is time or a caller wants it.
    async fn look_if_due(&mut self) {
        if self.machine.follow.take_look() || Instant::now() >= self.next_look {
            self.look().await;
        }
    }

    /// Asks for the list before a switch. After a look that failed, the next one comes at its own time.
    async fn look_once_more(&mut self) {
        let heard = self.heard.as_ref();
        let has_failed = heard.is_some_and(|heard| !heard.error.is_empty());
        if has_failed && Instant::now() < self.next_look {
            return;
        }
        self.look().await;
        self.machine.follow.look_again();
    }

    async fn look(&mut self) {
        let Some(record) = self.machine.follow.record() else {
            return;
        };
        let known = record.position.as_ref();
        let looked = list::look(self.machine, &self.follow, known).await;
        let error = match looked {
            Ok(found) => {
                self.looked = Some(Instant::now());
                let next = found.position;
                let machine = self.machine;
                let note = |record: &mut Record| record.position = Some(next);
                machine.follow.change(&machine.init, note).await;
                self.list = Some(found.list);
                String::new()
            }
            Err(error) => format!("{error:#}"),
        };
        if !error.is_empty() {
            tracing::warn!("{}: no list: {error}", self.follow.channel);
        }
        self.look_for_approval().await;
        let pause = match error.is_empty() {
            true => self.follow.interval,
            false => self.follow.interval.min(LOOK_AGAIN),
        };
        self.next_look = Instant::now() + pause;
        let now = SystemTime::now();
        self.heard = Some(Heard {
            at: now,
            next: now + pause,
            error,
        });
    }

    async fn look_for_approval(&mut self) {
        let Approval::ByKey(key) = &self.follow.approval else {
            return;
        };
        let (Some(list), Some(record)) = (&self.list, self.machine.follow.record()) else {
            return;
        };
        let Some(release) = self.choose(list, &record).release else {
            return;
        };
        if self.signed == Some(release.digest) {
            return;
        }
        let found = list::approval(self.machine, &self.follow, key, release).await;
        self.signed = match found {
            Ok(()) => Some(release.digest),
            Err(error) => {
                tracing::info!(
                    "{}: {} is not approved: {error:#}",
                    self.follow.channel,
                    release.version
                );
                None
            }
        };
    }

    /// Shows the standing as a resource, and reports its changes.
    fn show(&mut self, step: &Step) {
        let (machine, channel) = (self.machine, self.follow.channel.to_string());
        let target = step.record.target().map(|target| &target.release);
        let list = self.list.clone();
        let releases = list.as_ref().map_or_else(Vec::new, |list| {
            let choice = self.choose(list, &step.record);
            let reasons = choice.reasons.into_iter();
            reasons
                .map(|(release, why)| ReleaseFact {
                    version: release.version.clone(),
                    architecture: release.architecture.clone(),
                    digest: release.digest,
                    why: why.to_string(),
                })
                .collect()
        });
        let fact = FollowFact {
            serial: step.record.position.as_ref().map(|it| it.serial),
            release: target.map_or_else(String::new, |it| it.version.to_string()),
            digest: target.map_or_else(String::new, |it| it.digest.to_string()),
            state: step.standing.word(),
            reason: step.standing.reason(),
            until: step
                .standing
                .until()
                .map(|at| UNIX_EPOCH + Duration::from_secs(at)),
            heard: self.heard.clone(),
            releases,
        };
        let before = machine.store.get::<FollowFact>(&channel);
        let changed = before
            .as_ref()
            .is_none_or(|it| (it.state, &it.release) != (fact.state, &fact.release));
        if changed {
            tracing::info!("{channel}: {} {} {}", fact.state, fact.release, fact.reason);
            self.reporter.report(machine, &channel, &fact);
        }
        if before.as_ref() != Some(&fact) {
            machine.store.put(&channel, fact);
        }
    }
}

/// Forgets the failures of images, so that they may be tried again. Returns whether any had failed.
pub async fn forgive(machine: &Machine, digests: &[Digest]) -> bool {
    let had_failed = digests
        .iter()
        .filter(|digest| machine.upgrades.forgive(&digest.to_string()))
        .inspect(|digest| tracing::info!("{digest} failed before, and may be tried again"));
    if had_failed.count() == 0 {
        return false;
    }
    let (failed, records) = (machine.upgrades.failed_images().clone(), records(machine));
    let saved = blocking_io::within(ANSWER, move || failed.save(&records)).await;
    if let Err(error) = saved.map_err(anyhow::Error::from).and_then(|saved| saved) {
        tracing::warn!("the record of failed images is not kept over a reboot: {error:#}");
    }
    true
}

/// Says how far a pinned image is.
fn progress(state: &State) -> String {
    match state {
        State::Waiting { reason, .. } => match reason {
            Wait::Turn => "other images come first".to_owned(),
            Wait::Window(_) => "the window for downloads is closed".to_owned(),
            Wait::Clock => "the clock was never set".to_owned(),
        },
        State::Fetching { bytes, total, .. } => format!("{bytes} of {total} bytes have come"),
        State::Failed { reason, .. } => reason.clone(),
        state => state.word().to_owned(),
    }
}

fn seconds_now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}
