//! Follows the names of images: asks registries what they mean now, and starts what may be started, in its window and on trial.
//!
//! `containers/update.rs` decides; this file asks, pulls ahead, switches, watches a trial, and goes back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::{Instant, timeout};

use crate::base::error_chain::chain;
use crate::config::{ApplyUpdates, Container, ContainerUpdates};
use crate::containers::update::{Act, Event, Reason, Release, Standing, judge};
use crate::intent;
use crate::machine::Machine;
use crate::oci::manifest::VERSION_LABEL;
use crate::oci::{ImageConfig, Limits, PulledImage, VerifiedImage};
use crate::operation_lock::Operation;
use crate::services::{Phase, Service};
use crate::store::{ClockFact, MachineStage, MachineStatus};
use crate::values::{Digest, ImageReference, Openness};

/// Timeout for one look at a registry, and for the pull that follows it.
const LOOK: Duration = Duration::from_secs(60);
const PULL: Duration = Duration::from_secs(6 * 3600);
/// Time that a new image has for its start, beside the time that it has to be up.
const START: Duration = Duration::from_secs(120);
/// A new image whose process ended this often in its trial is not waited for.
const MOST_ENDS: usize = 3;
/// Interval between two views of a trial.
const TRIAL_VIEW: Duration = Duration::from_secs(1);
/// Interval between two tries to begin a switch while something else is under way.
const SWITCH_AGAIN: Duration = Duration::from_secs(10);
/// The longest sleep: windows are asked again, as the clock may have been set.
const LONGEST_SLEEP: Duration = Duration::from_secs(300);

/// A trial that is being watched. After a restart of machined it begins anew.
#[derive(Debug)]
struct Trial {
    digest: Digest,
    begun: Instant,
    /// The same by the clock, as a service's history has it.
    begun_at: SystemTime,
    up_since: Option<Instant>,
}

/// The times of one container.
#[derive(Debug, Default)]
struct Times {
    next_look: Option<Instant>,
    trial: Option<Trial>,
}

/// Follows the names of all containers that are to be followed, for as long as the machine runs.
pub async fn keep(machine: Arc<Machine>) {
    let mut settled = machine.watch_settled();
    if settled.wait_for(|settled| *settled).await.is_err() {
        return;
    }
    let (mut config, mut in_force) = (machine.watch_config(), machine.images_in_force.watch());
    let mut updates = machine.image_updates.watch();
    let mut times = BTreeMap::<String, Times>::new();
    loop {
        let pause = turn(&machine, &mut times).await;
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            // The senders live in the machine.
            _ = config.changed() => {}
            _ = in_force.changed() => {}
            _ = updates.changed() => {}
        }
    }
}

/// Sees to all containers once; returns the time until the next one needs it.
async fn turn(machine: &Arc<Machine>, times: &mut BTreeMap<String, Times>) -> Duration {
    let Some(configured) = machine.config() else {
        return LONGEST_SLEEP;
    };
    let containers = &configured.config.containers;
    let followed = containers
        .iter()
        // A digest always means the same image.
        .filter(|container| container.image.digest().is_none())
        .filter_map(|container| Some((container, container.updates.as_ref()?)));
    let names: BTreeSet<String> = followed
        .clone()
        .map(|(container, _)| container.name.to_string())
        .collect();
    machine.image_updates.retain(&names).await;
    times.retain(|name, _| names.contains(name));
    let mut pause = LONGEST_SLEEP;
    for (container, updates) in followed {
        let times = times.entry(container.name.to_string()).or_default();
        let following = Following {
            machine,
            container,
            updates,
        };
        pause = pause.min(following.see_to(times).await);
    }
    pause
}

/// One container that follows its image's name.
struct Following<'a> {
    machine: &'a Arc<Machine>,
    container: &'a Container,
    updates: &'a ContainerUpdates,
}

impl Following<'_> {
    fn name(&self) -> &str {
        self.container.name.as_str()
    }

    fn reference(&self) -> &ImageReference {
        &self.container.image
    }

    fn standing(&self) -> Standing {
        let updates = &self.machine.image_updates;
        updates.standing(self.name(), self.reference())
    }

    async fn report(&self, event: Event) -> Option<Act> {
        let updates = &self.machine.image_updates;
        updates.report(self.name(), self.reference(), event).await
    }

    /// Does all that is due; returns the time until something is due again.
    async fn see_to(&self, times: &mut Times) -> Duration {
        // Before its first start a container has looked up nothing.
        let Some(in_force) = self.in_force() else {
            return LONGEST_SLEEP;
        };
        self.report(Event::LookedUp(in_force)).await;
        if !matches!(self.standing(), Standing::OnTrial { .. }) {
            times.trial = None;
            self.look_if_due(times, in_force).await;
        }
        let next_look = times.next_look.map_or(Duration::ZERO, |next| {
            next.saturating_duration_since(Instant::now())
        });
        match self.standing() {
            Standing::OnTrial { found, .. } => self.watch_trial(times, &found).await,
            Standing::Waiting {
                found,
                reason: Reason::Window,
            } => self.switch_if_open(in_force, &found).await.min(next_look),
            _ => next_look,
        }
    }

    fn in_force(&self) -> Option<Digest> {
        let images = &self.machine.images_in_force;
        images.get(self.name(), self.reference())
    }

    /// Asks the registry, if it is time.
    async fn look_if_due(&self, times: &mut Times, in_force: Digest) {
        let now = Instant::now();
        if times.next_look.is_some_and(|next| next > now) {
            return;
        }
        times.next_look = Some(now + self.updates.interval);
        let looked = timeout(LOOK, self.look(in_force)).await;
        let error = match looked {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(format!("{error:#}")),
            Err(_) => Some(format!("no answer within {} s", LOOK.as_secs())),
        };
        if let Some(error) = &error {
            tracing::warn!(
                "{}: what {} means now is not known: {error}",
                self.name(),
                self.reference()
            );
        }
        self.machine.image_updates.looked(self.name(), error);
    }

    async fn look(&self, in_force: Digest) -> anyhow::Result<()> {
        let puller = intent::puller(self.machine.config().as_deref());
        let image = puller.look_up(self.reference()).await?;
        if image.digest() == in_force {
            self.report(Event::Confirmed).await;
            return Ok(());
        }
        let found = release(image.digest(), &image.config);
        let before = self.machine.images.get(in_force);
        let before = before.map_or_else(
            || Release {
                digest: in_force,
                version: None,
                created: None,
            },
            |image| release(in_force, image.config()),
        );
        let is_asked_always = self.updates.apply == ApplyUpdates::Approved;
        let verdict = judge(self.reference(), &before, &found, is_asked_always);
        let known = self.standing();
        self.report(Event::Found { found, verdict }).await;
        let now = self.standing();
        if now != known {
            tracing::info!("{}: {}", self.name(), describe(self.reference(), &now));
        }
        Ok(())
    }

    /// Pulls the image, and switches to it in its window; returns the time until the next try.
    async fn switch_if_open(&self, in_force: Digest, found: &Release) -> Duration {
        let image = match self.fetch(found).await {
            Ok(image) => image,
            Err(error) => {
                tracing::warn!("{}: {} is not here: {error:#}", self.name(), found.digest);
                return LONGEST_SLEEP;
            }
        };
        if let Some(pause) = self.time_until_open() {
            return pause;
        }
        let status = self.machine.store.get::<MachineStatus>(MachineStatus::ID);
        let is_running = status.is_some_and(|status| status.stage == MachineStage::Running);
        if !is_running {
            return SWITCH_AGAIN;
        }
        let Ok(_lock) = self.machine.lock_operation(Operation::ServiceRestart) else {
            return SWITCH_AGAIN;
        };
        tracing::info!(
            "{}: {} is started instead of {in_force}, and kept if it is up for {:?}",
            self.name(),
            found.digest,
            self.updates.healthy
        );
        // It is held until it runs.
        let _image = image;
        if let Some(Act::Switch(digest)) = self.report(Event::MaySwitch(in_force)).await {
            self.start(digest).await;
        }
        TRIAL_VIEW
    }

    /// Returns how long the window stays closed; `None` if it is open.
    fn time_until_open(&self) -> Option<Duration> {
        let window = self.updates.window.as_ref()?;
        let clock = self.machine.store.get::<ClockFact>("node");
        if !clock.is_some_and(|clock| clock.synced || clock.sync_disabled) {
            return Some(SWITCH_AGAIN);
        }
        match window.at(SystemTime::now()) {
            Openness::Open(_) => None,
            Openness::Opens(after) => Some(after.min(LONGEST_SLEEP)),
        }
    }

    /// Returns the image, from the store or its registry.
    async fn fetch(&self, found: &Release) -> anyhow::Result<VerifiedImage> {
        let puller = intent::puller(self.machine.config().as_deref());
        let images = &self.machine.images;
        if let Some(image) = images.get(found.digest) {
            return Ok(puller.admit(self.reference(), image, images).await?);
        }
        let pulling = async {
            let image = puller.look_up(&self.reference().at(found.digest)).await?;
            puller.pull(&image, images, &Limits::default()).await
        };
        Ok(timeout(PULL, pulling).await??)
    }

    /// Watches the trial of an image; returns the time until the next view.
    async fn watch_trial(&self, times: &mut Times, found: &Release) -> Duration {
        let now = Instant::now();
        let trial = match &mut times.trial {
            Some(trial) if trial.digest == found.digest => trial,
            other => other.insert(Trial {
                digest: found.digest,
                begun: now,
                begun_at: SystemTime::now(),
                up_since: None,
            }),
        };
        let service = self.machine.services.get(self.name());
        let is_up = service
            .as_ref()
            .is_some_and(|service| service.status().is_up());
        trial.up_since = is_up.then(|| trial.up_since.unwrap_or(now));
        if trial
            .up_since
            .is_some_and(|since| now - since >= self.updates.healthy)
        {
            self.report(Event::Proved).await;
            tracing::info!(
                "{}: {} is kept, it was up for {:?}",
                self.name(),
                found.digest,
                self.updates.healthy
            );
        } else if now - trial.begun > self.updates.healthy + START
            || service
                .as_ref()
                .is_some_and(|service| has_ended_often(service, trial.begun_at))
        {
            let why = service.map_or_else(
                || "there is no such service".to_owned(),
                |service| service.summary(),
            );
            self.go_back(why).await;
        }
        TRIAL_VIEW
    }

    async fn go_back(&self, why: String) {
        let Ok(_lock) = self.machine.lock_operation(Operation::ServiceRestart) else {
            return;
        };
        tracing::error!(
            "{}: its new image was not up in time, and the one before is started again: {why}",
            self.name()
        );
        // The digest first: if the power fails in between, the image in force is the one that worked.
        if let Standing::OnTrial { before, .. } = self.standing() {
            self.put_in_force(before).await;
        }
        if let Some(Act::Return(before)) = self.report(Event::Failed(why)).await {
            self.start(before).await;
        }
    }

    async fn put_in_force(&self, digest: Digest) {
        let images = &self.machine.images_in_force;
        images.set(self.name(), self.reference(), digest).await;
    }

    async fn start(&self, digest: Digest) {
        self.put_in_force(digest).await;
        if let Err(error) = self.machine.services.restart(self.name()).await {
            tracing::error!("{}: {}", self.name(), chain(&error));
        }
    }
}

/// Whether a service's process has ended too often since this time.
fn has_ended_often(service: &Service, since: SystemTime) -> bool {
    let history = service.status().history;
    let ends = history
        .iter()
        .filter(|entry| entry.phase == Phase::Failed && entry.at >= since);
    ends.count() >= MOST_ENDS
}

fn release(digest: Digest, config: &ImageConfig) -> Release {
    Release {
        digest,
        version: config.labels.get(VERSION_LABEL).cloned(),
        created: config.created.clone(),
    }
}

/// Describes the image in force, as far as the store knows it.
pub fn release_of(image: &PulledImage) -> Release {
    release(image.digest(), image.config())
}

/// Describes a standing in one line.
pub fn describe(reference: &ImageReference, standing: &Standing) -> String {
    match standing {
        Standing::Current => format!("{reference} is in force as it is known"),
        Standing::Waiting { found, reason } => match reason {
            Reason::Window => format!(
                "{reference} means {} now, which starts in its window",
                found.digest
            ),
            Reason::Approval(why) => {
                format!(
                    "{reference} means {} now, which waits for an approval: {why}",
                    found.digest
                )
            }
            Reason::Held(why) => format!(
                "{reference} means {} now, which is held: {why}",
                found.digest
            ),
        },
        Standing::OnTrial { found, .. } => format!("{} is on trial", found.digest),
        Standing::Returned { failed, why } => {
            format!("{} was not up in time: {why}", failed.digest)
        }
    }
}
