//! Follows the names of images: asks registries for the images that they mean now, and starts those that may be started, in their windows and on
//! trial.
//!
//! `containers/update.rs` decides; this file asks, pulls ahead, switches, watches a trial, and goes back.
//!
//! Two loops, side by side: one looks, pulls and switches, one container after the other; one watches trials. A pull of hours must not keep
//! a new image that fails from being taken back.
//!
//! ```text
//! names    look ─► pull ─► the config is the one of before? ── yes, window open ─► switch     no: all over again
//! trials   every second: up for long enough? ─► kept     late, or ended often? ─► the image of before
//! ```

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use tokio::time::{Instant, timeout};

use crate::base::blocking_io;
use crate::base::error_chain::chain;
use crate::base::lock::Lock as _;
use crate::config::{ApplyUpdates, Container, ContainerUpdates};
use crate::containers::ImageDigests;
use crate::containers::update::{Act, Event, Reason, Release, Standing, judge};
use crate::image_collection::is_between_configs;
use crate::intent;
use crate::machine::{Configured, Machine};
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
/// A new image in whose trial the machine restarted this often is not started again: it may be what takes the machine down.
const MOST_RESTARTS: u8 = 3;
/// Interval between two views of a trial.
const TRIAL_VIEW: Duration = Duration::from_secs(1);
/// Interval between two tries to begin a switch while something else is under way.
const SWITCH_AGAIN: Duration = Duration::from_secs(10);
/// The longest sleep: windows are asked again, as the clock may have been set.
const LONGEST_SLEEP: Duration = Duration::from_secs(300);

/// A trial that is being watched. After a restart of machined it begins anew; restarts of the machine are counted ([`count_boot`]).
#[derive(Debug)]
struct Trial {
    digest: Digest,
    begun: Instant,
    /// The same by the clock, as a service's history has it.
    begun_at: SystemTime,
    up_since: Option<Instant>,
}

/// The trials that are being watched, by container.
type Trials = BTreeMap<String, Trial>;
/// The time of the next look at a registry, by container.
type Looks = BTreeMap<String, Instant>;

/// The container whose new image is being started: its trial counts from then on.
#[derive(Debug, Default)]
struct Switching(Mutex<Option<String>>);

impl Switching {
    fn is(&self, container: &str) -> bool {
        self.0.locked().as_deref() == Some(container)
    }

    fn set(&self, container: Option<&str>) {
        *self.0.locked() = container.map(str::to_owned);
    }
}

/// Follows the names of all containers that are to be followed, for as long as the machine runs.
pub async fn keep(machine: Arc<Machine>) {
    let mut settled = machine.watch_settled();
    if settled.wait_for(|settled| *settled).await.is_err() {
        return;
    }
    let switching = Switching::default();
    let names = async {
        let (mut config, mut in_force) = (machine.watch_config(), machine.images_in_force.watch());
        let mut updates = machine.image_updates.watch();
        let mut looks = Looks::new();
        loop {
            let pause = turn(&machine, &mut looks, &switching).await;
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                // The senders live in the machine.
                _ = config.changed() => {}
                _ = in_force.changed() => {}
                _ = updates.changed() => {}
            }
        }
    };
    let trials = async {
        let (mut config, mut updates) = (machine.watch_config(), machine.image_updates.watch());
        let mut trials = Trials::new();
        loop {
            let pause = watch_trials(&machine, &mut trials, &switching).await;
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                _ = config.changed() => {}
                _ = updates.changed() => {}
            }
        }
    };
    tokio::join!(names, trials);
}

/// Counts this boot of the kernel for each trial, and goes back from an image in whose trial the machine restarted too often. To be called before
/// containers start: such an image may take the machine down as soon as it runs.
pub(super) async fn count_boot(machine: &Machine) {
    let (updates, images) = (&machine.image_updates, &machine.images_in_force);
    let boot = machine.generation.kernel_boot_id.to_string();
    for (container, update) in updates.all() {
        let name = &update.reference;
        updates
            .report(&container, name, Event::Booted(boot.clone()))
            .await;
        let Standing::OnTrial {
            found,
            before,
            before_index,
            restarts,
            ..
        } = updates.standing(&container, name)
        else {
            continue;
        };
        // By the config another image may be in force: then this trial is over.
        let is_in_force = images.get(&container, name) == Some(found.digest);
        if restarts < MOST_RESTARTS || !is_in_force {
            continue;
        }
        let why = format!("the machine restarted {restarts} times during its trial");
        tracing::error!(
            "{container}: its new image {} is not started again, and the one before is: {why}",
            found.digest
        );
        // The digest first, as after every trial that failed.
        let before = ImageDigests {
            digest: before,
            index: before_index,
        };
        images.set(&container, name, before).await;
        updates.report(&container, name, Event::Failed(why)).await;
    }
}

/// Returns the containers of a config that follow their images' names.
fn followed(configured: &Configured) -> impl Iterator<Item = (&Container, &ContainerUpdates)> {
    let containers = configured.config.containers.iter();
    containers
        // A digest always means the same image.
        .filter(|container| container.image.digest().is_none())
        .filter_map(|container| Some((container, container.updates.as_ref()?)))
}

fn names(configured: &Configured) -> impl Iterator<Item = String> {
    followed(configured).map(|(container, _)| container.name.to_string())
}

/// Drops what is known of containers that are followed no more. While a config is only tried, those of the config that comes back count.
async fn retain(machine: &Machine, configured: &Configured) {
    if is_between_configs(machine) {
        return;
    }
    let settled = machine.settled_config();
    let kept = settled.iter().flat_map(|settled| names(settled));
    let kept: BTreeSet<String> = kept.chain(names(configured)).collect();
    machine.image_updates.retain(&kept).await;
}

/// Sees to the names of all containers once; returns the time until the next one needs it.
async fn turn(machine: &Arc<Machine>, looks: &mut Looks, switching: &Switching) -> Duration {
    let Some(configured) = machine.config() else {
        return LONGEST_SLEEP;
    };
    retain(machine, &configured).await;
    looks.retain(|name, _| names(&configured).any(|followed| followed == *name));
    let mut pause = LONGEST_SLEEP;
    for (container, updates) in followed(&configured) {
        let following = Following {
            machine,
            configured: &configured,
            container,
            updates,
        };
        pause = pause.min(following.see_to(looks, switching).await);
        if !following.is_in_force() {
            return Duration::ZERO;
        }
    }
    pause
}

/// Looks at all trials once; returns the time until the next view.
async fn watch_trials(
    machine: &Arc<Machine>,
    trials: &mut Trials,
    switching: &Switching,
) -> Duration {
    let Some(configured) = machine.config() else {
        return LONGEST_SLEEP;
    };
    let mut watched = Trials::new();
    for (container, updates) in followed(&configured) {
        let following = Following {
            machine,
            configured: &configured,
            container,
            updates,
        };
        let trial = trials.remove(following.name());
        if let Some(trial) = following.view(trial, switching).await {
            watched.insert(following.name().to_owned(), trial);
        }
    }
    *trials = watched;
    let is_any = followed(&configured).any(|(container, _)| {
        let updates = &machine.image_updates;
        let standing = updates.standing(container.name.as_str(), &container.image);
        matches!(standing, Standing::OnTrial { .. })
    });
    match is_any {
        true => TRIAL_VIEW,
        false => LONGEST_SLEEP,
    }
}

/// One container that follows its image's name.
struct Following<'a> {
    machine: &'a Arc<Machine>,
    /// The config by which it does.
    configured: &'a Arc<Configured>,
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

    /// Whether the config is still the one that was read. Looks take up to a minute, and pulls hours.
    fn is_in_force(&self) -> bool {
        let now = self.machine.config();
        now.is_some_and(|now| Arc::ptr_eq(&now, self.configured))
    }

    /// Does all that is due but the watch over a trial; returns the time until something is due again.
    async fn see_to(&self, looks: &mut Looks, switching: &Switching) -> Duration {
        // Before its first start a container has looked up nothing.
        let Some(in_force) = self.in_force() else {
            return LONGEST_SLEEP;
        };
        // A trial ends first. Its watch says which image is in force.
        if matches!(self.standing(), Standing::OnTrial { .. }) {
            return LONGEST_SLEEP;
        }
        self.report(Event::LookedUp(in_force.digest)).await;
        let next_look = self.look_if_due(looks, in_force).await;
        match self.standing() {
            _ if !self.is_in_force() => Duration::ZERO,
            Standing::Waiting {
                found,
                reason: Reason::Window,
            } => {
                let pause = self.switch_if_open(in_force, &found, switching).await;
                pause.min(next_look.saturating_duration_since(Instant::now()))
            }
            _ => next_look.saturating_duration_since(Instant::now()),
        }
    }

    fn in_force(&self) -> Option<ImageDigests> {
        let images = &self.machine.images_in_force;
        images.image(self.name(), self.reference())
    }

    /// Asks the registry, if it is time; returns the time of the next look.
    async fn look_if_due(&self, looks: &mut Looks, in_force: ImageDigests) -> Instant {
        let now = Instant::now();
        if let Some(next) = looks.get(self.name()).filter(|next| **next > now) {
            return *next;
        }
        let looked = timeout(LOOK, self.look(in_force)).await;
        if !self.is_in_force() {
            // By the config that is in force now it is looked at anew.
            return now;
        }
        let next = now + self.updates.interval;
        looks.insert(self.name().to_owned(), next);
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
        next
    }

    async fn look(&self, in_force: ImageDigests) -> anyhow::Result<()> {
        let puller = intent::puller(Some(self.configured));
        let image = puller.look_up(self.reference()).await?;
        if !self.is_in_force() {
            return Ok(());
        }
        let digests = ImageDigests::of_resolved(&image);
        if digests.digest == in_force.digest {
            let images = &self.machine.images_in_force;
            let (name, reference) = (self.name(), self.reference());
            images.note_index(name, reference, digests).await;
            self.report(Event::Confirmed).await;
            if !self.is_named_by_bundle() {
                self.name_in_store(digests).await;
            }
            return Ok(());
        }
        let found = release(digests, &image.config);
        let before = self.machine.images.get(in_force.digest);
        let unknown = ImageConfig::default();
        let config = before.as_ref().map_or(&unknown, |image| image.config());
        let before = release(in_force, config);
        let is_asked_always = self.updates.apply == ApplyUpdates::Approved;
        let updates = &self.machine.image_updates;
        let failure = updates.failure(self.name(), self.reference(), found.digest);
        let failure = failure.as_deref();
        let verdict = judge(self.reference(), &before, &found, is_asked_always, failure);
        let known = self.standing();
        self.report(Event::Found { found, verdict }).await;
        let now = self.standing();
        if now != known {
            tracing::info!("{}: {}", self.name(), describe(self.reference(), &now));
        }
        Ok(())
    }

    /// Pulls the image, and switches to it in its window; returns the time until the next try.
    async fn switch_if_open(
        &self,
        in_force: ImageDigests,
        found: &Release,
        switching: &Switching,
    ) -> Duration {
        let image = match self.fetch(found).await {
            Ok(image) => image,
            Err(error) => {
                tracing::warn!("{}: {} is not here: {error:#}", self.name(), found.digest);
                return LONGEST_SLEEP;
            }
        };
        if !self.still_waits(in_force, found) {
            return Duration::ZERO;
        }
        if let Some(pause) = self.time_until_open() {
            return pause;
        }
        if self.is_stopped() {
            return LONGEST_SLEEP;
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
            "{}: {} is started instead of {}, and kept if it is up for {:?}",
            self.name(),
            found.digest,
            in_force.digest,
            self.updates.healthy
        );
        // It is held until it runs.
        let _image = image;
        switching.set(Some(self.name()));
        let boot = self.machine.generation.kernel_boot_id.to_string();
        let may_switch = Event::MaySwitch { in_force, boot };
        if let Some(Act::Switch(image)) = self.report(may_switch).await {
            self.start(image).await;
        }
        switching.set(None);
        TRIAL_VIEW
    }

    /// Whether all is as it was before a pull that may have taken hours: the config, the image in force, and the one that waits.
    fn still_waits(&self, in_force: ImageDigests, found: &Release) -> bool {
        let waiting = Standing::Waiting {
            found: found.clone(),
            reason: Reason::Window,
        };
        self.is_in_force() && self.in_force() == Some(in_force) && self.standing() == waiting
    }

    /// Whether the container's operator has stopped it: then it stays down.
    fn is_stopped(&self) -> bool {
        let service = self.machine.services.get(self.name());
        service.is_some_and(|service| !service.is_wanted_up())
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
        let puller = intent::puller(Some(self.configured));
        let (images, digests) = (&self.machine.images, found.digests());
        if let Some(image) = images.get(found.digest) {
            let admitted = digests.admit(&puller, self.reference(), image, images);
            return Ok(admitted.await?);
        }
        // In the store the name stays that of the image in force, until this one has proved itself.
        let name = self.reference().at(found.digest);
        let pulling = async {
            let image = digests.resolve(&puller, &name).await?;
            let image = puller.verify(image).await?;
            puller.pull(&image, images, &Limits::default()).await
        };
        Ok(timeout(PULL, pulling).await??)
    }

    /// Looks at the container's trial, if there is one; `known` is what was seen of it before.
    async fn view(&self, known: Option<Trial>, switching: &Switching) -> Option<Trial> {
        // Its image is not started yet.
        if switching.is(self.name()) {
            return None;
        }
        let in_force = self.in_force()?;
        if matches!(self.standing(), Standing::OnTrial { .. }) {
            self.report(Event::LookedUp(in_force.digest)).await;
        }
        let Standing::OnTrial { found, .. } = self.standing() else {
            return None;
        };
        // Down it proves nothing, and nothing has failed: its trial begins anew when its operator starts it.
        if self.is_stopped() {
            return None;
        }
        let now = Instant::now();
        let known = known.filter(|trial| trial.digest == found.digest);
        let mut trial = known.unwrap_or_else(|| Trial {
            digest: found.digest,
            begun: now,
            begun_at: SystemTime::now(),
            up_since: None,
        });
        self.judge_trial(&mut trial).await;
        Some(trial)
    }

    /// Keeps the image on trial if it has proved itself, and goes back if it has failed.
    async fn judge_trial(&self, trial: &mut Trial) {
        let now = Instant::now();
        let service = self.machine.services.get(self.name());
        let is_up = service
            .as_ref()
            .is_some_and(|service| service.status().is_up());
        trial.up_since = is_up.then(|| trial.up_since.unwrap_or(now));
        if trial
            .up_since
            .is_some_and(|since| now - since >= self.updates.healthy)
        {
            // The name first: if the power fails in between, the trial begins anew, with an image that was up for long enough.
            if let Some(kept) = self.in_force().filter(|it| it.digest == trial.digest) {
                self.name_in_store(kept).await;
            }
            self.report(Event::Proved).await;
            tracing::info!(
                "{}: {} is kept, it was up for {:?}",
                self.name(),
                trial.digest,
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
        if let Standing::OnTrial {
            before,
            before_index,
            ..
        } = self.standing()
        {
            let before = ImageDigests {
                digest: before,
                index: before_index,
            };
            self.put_in_force(before).await;
        }
        if let Some(Act::Return(before)) = self.report(Event::Failed(why)).await {
            self.start(before).await;
        }
    }

    /// Gives the image in force its name in the store, unless it has it: a restart finds it by that name while its registry is away, and the
    /// image of before can be collected.
    async fn name_in_store(&self, image: ImageDigests) {
        let (images, name) = (self.machine.images.clone(), self.reference().clone());
        let naming = move || match images.get(image.digest) {
            Some(pulled) if !pulled.names().contains(&name) => {
                images.add_name(pulled, &name, image.named()).map(drop)
            }
            // It has its name, or is pulled again by it at its next start.
            _ => Ok(()),
        };
        let named = blocking_io::within(blocking_io::ANSWER, naming).await;
        let failure = match named {
            Ok(Ok(())) => return,
            Ok(Err(error)) => chain(&error),
            Err(error) => error.to_string(),
        };
        tracing::warn!(
            "{}: in the store {} does not mean {}, so a restart while its registry is away may start another image; the next look at the \
             registry tries it again: {failure}",
            self.name(),
            self.reference(),
            image.digest
        );
    }

    /// Whether a bundle has brought the image that has the name in the store: that one is kept for a restart without a registry. While it is
    /// unknown which images came by bundles, it may have.
    fn is_named_by_bundle(&self) -> bool {
        let Some(named) = self.machine.images.find(self.reference()) else {
            return false;
        };
        match self.machine.bundles.kept.images() {
            Ok(of_bundles) => of_bundles.contains(&named.digest()),
            // The collector of images tells of it.
            Err(_) => true,
        }
    }

    async fn put_in_force(&self, image: ImageDigests) {
        let images = &self.machine.images_in_force;
        images.set(self.name(), self.reference(), image).await;
    }

    async fn start(&self, image: ImageDigests) {
        self.put_in_force(image).await;
        if let Err(error) = self.machine.services.restart_if_wanted(self.name()).await {
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

fn release(image: ImageDigests, config: &ImageConfig) -> Release {
    Release {
        digest: image.digest,
        index: image.index,
        version: config.labels.get(VERSION_LABEL).cloned(),
        created: config.created.clone(),
    }
}

/// Describes the image in force, as far as the store knows it.
pub fn release_of(image: &PulledImage) -> Release {
    release(ImageDigests::of_pulled(image, None), image.config())
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
