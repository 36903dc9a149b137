//! Fetches pinned images ahead, within their windows and bandwidth, and keeps them.
//!
//! `pins/state.rs` says what an event does to one image; this file asks registries, computes the room for all images together before the first
//! byte of a layer is fetched, fetches one image after the other, and has each noted. If a registry sends documents of an unusual size, only the
//! first images are looked up together; the others have their turn after them.

#[cfg(test)]
pub(super) mod machine_for_tests;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use tokio::time::timeout;

use super::room_ahead::{Making, room_ahead};
use super::{os_extensions, preparation, waiting_version};
use crate::base::error_chain::chain;
use crate::config::{ExtensionSource, MachineConfig, OsExtensionSource};
use crate::containers::{Held, ImageDigests, check_tag};
use crate::image_collection::is_between_configs;
use crate::intent;
use crate::machine::Machine;
use crate::oci::{HeldBlobs, Layer, Limits, Pace, PullError, Puller, ResolvedImage, Verified};
use crate::pins::{
    Event, Meaning, PinFact, State, Terms, Wait, Wanted, after, permit, time_until_due,
};
use crate::store::ClockFact;
use crate::values::{Bandwidth, Digest, ImageReference, ImageRule};

/// Timeout for a registry to say what a name means, and for its signature.
const LOOK: Duration = Duration::from_secs(60);
/// The longest sleep: windows are looked at again, as the clock may have been set.
const LONGEST_SLEEP: Duration = Duration::from_secs(300);
/// The sleep while the clock is not set, and while the machine is about to end.
const SHORT_SLEEP: Duration = Duration::from_secs(10);
/// Limit on the documents of all images of a turn that are to be fetched, in bytes: they are in memory until then. Those of one image have some
/// ten KiB; a registry may send three MiB.
const MOST_OF_DOCUMENTS: usize = 16 << 20;
/// Bytes between two reports of a fetch.
const STEP: u64 = 1 << 20;

/// Sees to all pinned images, for as long as the machine runs.
pub async fn keep(machine: Arc<Machine>) {
    if !os_extensions::may_begin(&machine).await {
        return;
    }
    // By these rules the boot has pinned images.
    let mut judged_by = rules(&machine);
    let mut settled = machine.watch_settled();
    let has_settled = tokio::select! {
        biased;
        settled = settled.wait_for(|settled| *settled) => settled.is_ok(),
        () = Box::pin(fetch_before_verdict(&machine)) => false,
    };
    if !has_settled {
        return;
    }
    let (mut config, mut wishes) = (machine.watch_config(), machine.pins.watch());
    let pace = Arc::new(Pace::default());
    let mut waiting = waiting_version::Judge::default();
    // What has come of unfinished images stays until the next window opens, however long that takes.
    let mut held = None;
    loop {
        preparation::end_if_gone(&machine).await;
        let (wanted, rules) = (wanted(&machine), rules(&machine));
        let judging = match rules == judged_by {
            true => Judging::Once,
            false => Judging::Anew,
        };
        held = hold(&machine, held);
        let is_idle = wanted.is_empty()
            && machine.store.list::<PinFact>().is_empty()
            && machine.pins.digests().is_empty();
        let again = tokio::select! {
            // Before images are fetched: any reboot tries it.
            again = Box::pin(waiting.judge(&machine)) => again,
            _ = config.changed() => continue,
            _ = machine.operations.end_of_machine() => None,
        };
        let pause = if is_idle {
            preparation::show(&machine);
            LONGEST_SLEEP
        } else {
            tokio::select! {
                // In memory of its own, which is there only while something is pinned.
                pause = Box::pin(turn(&machine, &pace, &wanted, judging)) => {
                    judged_by = rules;
                    pause
                }
                // What has come of an image stays for the next turn. The senders live in the machine.
                _ = config.changed() => continue,
                _ = wishes.changed() => continue,
                _ = machine.operations.end_of_machine() => SHORT_SLEEP,
            }
        };
        let pause = again.map_or(pause, |again| again.min(pause));
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = config.changed() => {}
            _ = wishes.changed() => {}
        }
    }
}

/// Whether images that are pinned are judged by the rules for images once more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Judging {
    /// The rules are those by which they were pinned.
    Once,
    /// The rules have changed.
    Anew,
}

/// Returns the rules for images that are in force.
fn rules(machine: &Machine) -> Vec<ImageRule> {
    let configured = machine.config();
    configured.map_or_else(Vec::new, |it| it.config.image_rules.clone())
}

/// Fetches the images of the machine's own extensions while the boot goes on: containers that its verdict waits for may mount their files.
/// Other images have time, and a version on trial neither lets go of any nor prepares an upgrade.
async fn fetch_before_verdict(machine: &Arc<Machine>) {
    let pace = Arc::new(Pace::default());
    loop {
        let of_os = match machine.config() {
            Some(configured) => of_os(&configured.config).collect(),
            None => BTreeSet::new(),
        };
        let mut wanted = wanted(machine);
        wanted.retain(|it| of_os.contains(&it.reference));
        show_wanted(machine, &wanted);
        let keeper = Keeper {
            machine,
            pace: &pace,
            puller: intent::puller_at_pace(machine.config().as_deref(), pace.clone()),
            judging: Judging::Once,
            most_of_documents: MOST_OF_DOCUMENTS,
        };
        keeper.see_to(&wanted).await;
        tokio::time::sleep(SHORT_SLEEP).await;
    }
}

/// Returns the images of a config's extensions of the machine itself.
fn of_os(config: &MachineConfig) -> impl Iterator<Item = ImageReference> {
    let extensions = config.os_extensions.iter();
    extensions.filter_map(|it| match &it.source {
        OsExtensionSource::Image(image) => Some(image.clone()),
        OsExtensionSource::File(_) => None,
    })
}

/// Holds what has come of unfinished images; what was held before is let go after that.
fn hold(machine: &Machine, before: Option<HeldBlobs>) -> Option<HeldBlobs> {
    let unfinished = machine.pins.unfinished_blobs();
    let now = match unfinished.is_empty() {
        true => None,
        false => machine.images.blobs().map(|blobs| blobs.hold(unfinished)),
    };
    drop(before);
    now
}

fn wanted(machine: &Machine) -> Vec<Wanted> {
    let configured = machine.config();
    let named = configured.map(|it| named_by(&it.config, machine.follow.image()));
    let named = named.unwrap_or_default();
    let named = named
        .iter()
        .map(|(image, by, terms)| (image, *by, terms.clone()));
    machine.pins.wanted(named)
}

/// Returns the images that a config names, with the part of it that does, and their terms. `followed` is the one of the channel.
fn named_by(
    config: &MachineConfig,
    followed: Option<ImageReference>,
) -> Vec<(ImageReference, &'static str, Terms)> {
    let terms = Terms {
        window: config.image_pins.window.clone(),
        bandwidth: config.image_pins.bandwidth,
    };
    let pinned = config.image_pins.images.iter();
    let pinned = pinned.map(|image| (image.clone(), "config", terms.clone()));
    let extensions = config.kubernetes.iter().flat_map(|it| &it.extensions);
    let extensions = extensions.filter_map(|it| match &it.source {
        ExtensionSource::Image(image) => Some((image.clone(), "extension", Terms::default())),
        // Its file is fetched otherwise (`sequences/extension_files.rs`).
        ExtensionSource::File(_) | ExtensionSource::Published(_) => None,
    });
    let of_os = of_os(config).map(|image| (image, "extension", Terms::default()));
    let extensions = extensions.chain(of_os);
    let terms = config.upgrade_follow.as_ref().map(|follow| Terms {
        window: follow.download_window.clone(),
        bandwidth: follow.bandwidth,
    });
    let followed = followed.zip(terms);
    let followed = followed.map(|(image, terms)| (image, "channel", terms));
    pinned.chain(extensions).chain(followed).collect()
}

/// Returns the names whose images stay: those that are wanted, and while a config is only tried, those of the config that comes back.
fn kept(machine: &Machine, wanted: &[Wanted]) -> BTreeSet<ImageReference> {
    let mut kept: BTreeSet<_> = wanted.iter().map(|it| it.reference.clone()).collect();
    if let (Some(settled), Some(tried)) = (machine.settled_config(), machine.config())
        && !Arc::ptr_eq(&settled, &tried)
    {
        // The image that the channel comes to is the record's: a tried config may follow none, and none is fetched then.
        let record = machine.follow.record();
        let followed = record.and_then(|it| Some(it.target()?.release.pinned_image()));
        let named = named_by(&settled.config, followed).into_iter();
        kept.extend(named.map(|(image, _, _)| image));
    }
    kept
}

/// Takes a caller's pin back; returns whether there was one. If no config pins the image, its name may mean another one when it is pinned again.
pub async fn unpin(machine: &Machine, image: &ImageReference) -> bool {
    let was_pinned = machine.pins.unpin(image).await;
    if was_pinned && !kept(machine, &wanted(machine)).contains(image) {
        machine.pins.forget(image).await;
        // A pin that follows at once begins anew, too.
        machine.store.remove::<PinFact>(&image.to_string());
    }
    was_pinned
}

/// Sees to all images once; returns the time until something is due again.
async fn turn(
    machine: &Arc<Machine>,
    pace: &Arc<Pace>,
    wanted: &[Wanted],
    judging: Judging,
) -> Duration {
    // Without a config it is unknown what it names.
    if machine.config().is_some() && !is_between_configs(machine) {
        machine.pins.retain(&kept(machine, wanted)).await;
    }
    show_wanted(machine, wanted);
    let keeper = Keeper {
        machine,
        pace,
        puller: intent::puller_at_pace(machine.config().as_deref(), pace.clone()),
        judging,
        most_of_documents: MOST_OF_DOCUMENTS,
    };
    keeper.see_to(wanted).await;
    let preparing = prepare_when_pinned(machine).await;
    let now = SystemTime::now();
    let facts = machine.store.list::<PinFact>().into_iter();
    let due = facts.filter_map(|(_, fact)| match fact.state {
        State::Waiting {
            reason: Wait::Clock,
            ..
        } => Some(SHORT_SLEEP),
        state => time_until_due(&state, now),
    });
    // A pause of nothing would keep a processor busy if an image comes to no end.
    let pause = due.chain(preparing).min().unwrap_or(LONGEST_SLEEP);
    pause.clamp(Duration::from_secs(1), LONGEST_SLEEP)
}

/// Writes the version of a prepared upgrade once its images are pinned, if its window is open; returns the time until it is due.
async fn prepare_when_pinned(machine: &Arc<Machine>) -> Option<Duration> {
    let due = preparation::show(machine)?;
    let preparation = machine.pins.preparation()?;
    let is_pinned = |image: &ImageReference| {
        let fact = machine.store.get::<PinFact>(&image.to_string());
        fact.is_some_and(|fact| matches!(fact.state, State::Pinned { .. }))
    };
    // Every image tells when it is due itself.
    if !preparation.images.iter().all(is_pinned) {
        return None;
    }
    match permit_now(machine, slice::from_ref(&preparation.terms)) {
        _ if !due.is_zero() => Some(due),
        Ok(_) => preparation::write(machine, preparation).await,
        Err(Wait::Window(opens)) => opens.duration_since(SystemTime::now()).ok(),
        Err(_) => Some(SHORT_SLEEP),
    }
}

/// Shows all pinned images as resources, and no others.
fn show_wanted(machine: &Machine, wanted: &[Wanted]) {
    machine.store.retain::<PinFact>(|id| {
        let mut wanted = wanted.iter();
        wanted.any(|it| it.reference.to_string() == id)
    });
    for it in wanted {
        let id = it.reference.to_string();
        let known = machine.store.get::<PinFact>(&id);
        let fact = PinFact {
            named_by: it.named_by.clone(),
            state: known.map(|fact| fact.state).unwrap_or_default(),
        };
        machine.store.put(&id, fact);
    }
}

/// The place of an image.
enum Found {
    /// In the store, whole and allowed.
    Here(ImageDigests),
    /// At its registry.
    Away(Box<Verified<ResolvedImage>>),
}

/// Why an image is not found at its registry.
#[derive(Debug, thiserror::Error)]
// The error of a pull is as large.
#[allow(clippy::large_enum_variant)]
enum NotFound {
    #[error(transparent)]
    Pull(#[from] PullError),
    #[error(transparent)]
    Held(#[from] Box<Held>),
}

/// One turn.
struct Keeper<'a> {
    machine: &'a Arc<Machine>,
    pace: &'a Pace,
    puller: Puller,
    judging: Judging,
    most_of_documents: usize,
}

impl Keeper<'_> {
    async fn see_to(&self, wanted: &[Wanted]) {
        let now = SystemTime::now();
        let (mut away, mut documents) = (Vec::new(), 0);
        let is_judged = self.judging == Judging::Once;
        for it in wanted {
            let reference = &it.reference;
            let state = self.state(reference);
            match &state {
                State::Pinned { digest }
                    if is_judged && self.machine.images.get(*digest).is_some() =>
                {
                    continue;
                }
                State::Pinned { .. } => self.tell(reference, Event::Gone),
                State::Failed { .. }
                    if is_judged
                        && time_until_due(&state, now).is_some_and(|pause| !pause.is_zero()) =>
                {
                    continue;
                }
                State::Waiting { .. } | State::Fetching { .. } => {
                    let wait = self.must_wait(it);
                    let has_to = wait.is_some();
                    self.tell(reference, Event::Waits(wait.unwrap_or(Wait::Turn)));
                    if has_to {
                        continue;
                    }
                }
                _ => self.tell(reference, Event::Waits(Wait::Turn)),
            }
            // It waits for its turn: the images before it are fetched first, or have to wait themselves.
            if documents >= self.most_of_documents {
                continue;
            }
            match self.find(reference).await {
                Ok(Found::Here(image)) => self.pin(reference, image).await,
                Ok(Found::Away(image)) => {
                    documents += bytes_of_documents(&image);
                    away.push((it, image));
                }
                Err(error) => self.failed(reference, &error),
            }
        }
        if away.is_empty() {
            return;
        }
        let _held = self.note(&away).await;
        if !self.has_room(&away).await {
            return;
        }
        for (it, image) in &away {
            self.fetch_in_window(it, image).await;
        }
    }

    fn state(&self, reference: &ImageReference) -> State {
        let fact = self.machine.store.get::<PinFact>(&reference.to_string());
        fact.map(|fact| fact.state).unwrap_or_default()
    }

    fn tell(&self, reference: &ImageReference, event: Event) {
        tell(self.machine, reference, event);
    }

    fn failed(&self, reference: &ImageReference, error: &anyhow::Error) {
        tracing::warn!("{reference} is pinned, and is not here: {error:#}");
        self.tell(reference, Event::Failed(format!("{error:#}")));
    }

    /// Finds an image: in the store, if it is known which one it is; else at its registry; if that is away, in the store by its name.
    async fn find(&self, reference: &ImageReference) -> anyhow::Result<Found> {
        let images = &self.machine.images;
        let meaning = self.machine.pins.meaning(reference);
        if let Some(meaning) = &meaning
            && meaning.blobs.is_empty()
            && let Some(image) = images.get(meaning.digest)
        {
            // Its files were looked at before it was noted, and are looked at again before it is used. The rules may have changed.
            let known = ImageDigests::of_pulled(&image, Some(meaning.image()));
            let admitted = known.admit(&self.puller, reference, image, images);
            let admitted = timeout(LOOK, admitted).await;
            admitted.context("no registry gave its signature in time")??;
            return Ok(Found::Here(known));
        }
        let meant = meaning.as_ref().map(Meaning::image);
        let known = match &meaning {
            // It was here once: if its record is damaged, or it is gone, its blobs may be left.
            Some(meaning) if meaning.blobs.is_empty() => Some(meaning.digest),
            Some(meaning) => images.get(meaning.digest).map(|image| image.digest()),
            None => {
                let named = reference.digest().and_then(|_| images.find(reference));
                named.map(|image| image.digest())
            }
        };
        if let Some(digest) = known
            && let Some(image) = self.usable(reference, digest, meant).await?
        {
            return Ok(Found::Here(image));
        }
        let away = match timeout(LOOK, self.look_up(reference, meant)).await {
            Ok(Ok(image)) => return Ok(Found::Away(Box::new(image))),
            Ok(Err(NotFound::Pull(error))) if error.is_unreachable() => chain(&error),
            Ok(Err(error)) => return Err(error.into()),
            Err(_) => format!("no answer within {} s", LOOK.as_secs()),
        };
        let by_name = match meant {
            // It would be another image.
            Some(_) => None,
            None => images.find(reference),
        };
        if let Some(image) = by_name
            && let Some(image) = self.usable(reference, image.digest(), None).await?
        {
            tracing::warn!(
                "{reference}: its registry is away, {} is pinned, which is here: {away}",
                image.digest
            );
            return Ok(Found::Here(image));
        }
        anyhow::bail!("{away}")
    }

    /// Looks up what a name means, or the image that it is known to mean.
    async fn look_up(
        &self,
        reference: &ImageReference,
        meant: Option<ImageDigests>,
    ) -> Result<Verified<ResolvedImage>, NotFound> {
        let resolved = match meant {
            Some(meant) => meant.resolve(&self.puller, reference).await?,
            None => {
                let resolved = self.puller.resolve(reference).await?;
                check_tag(reference, resolved.digest(), &resolved.config)?;
                resolved
            }
        };
        Ok(self.puller.verify(resolved).await?)
    }

    /// Returns the digests of an image of the store if its files are whole, or can be made again from its blobs, and the rules allow it; `None`
    /// if it has to be fetched. `meant` is what is known of it beside.
    async fn usable(
        &self,
        reference: &ImageReference,
        digest: Digest,
        meant: Option<ImageDigests>,
    ) -> anyhow::Result<Option<ImageDigests>> {
        let (puller, images) = (&self.puller, &self.machine.images);
        let whole = puller.whole(reference, digest, images).await?;
        let Some(image) = whole else {
            return Ok(None);
        };
        let digests = ImageDigests::of_pulled(&image, meant);
        digests.admit(puller, reference, image, images).await?;
        Ok(Some(digests))
    }

    /// Notes an image that is in the store: from then on it stays.
    async fn pin(&self, reference: &ImageReference, image: ImageDigests) {
        self.tell(reference, Event::Here(image.digest));
        let meaning = Meaning::of(image, Vec::new());
        self.machine
            .pins
            .note(vec![(reference.clone(), meaning)])
            .await;
        tracing::info!("{reference} is pinned: {}", image.digest);
        self.tell(reference, Event::Recorded);
    }

    /// Notes what the names mean, and holds what has come of the images.
    async fn note(&self, away: &[(&Wanted, Box<Verified<ResolvedImage>>)]) -> Option<HeldBlobs> {
        let blobs = self.machine.images.blobs();
        let meanings = away.iter().map(|(it, image)| {
            let meaning = Meaning::of(ImageDigests::of_resolved(image), image.blobs());
            (it.reference.clone(), meaning)
        });
        let held = blobs.map(|blobs| blobs.hold(away.iter().flat_map(|(_, image)| image.blobs())));
        self.machine.pins.note(meanings.collect()).await;
        held
    }

    /// Computes the room for all images of this turn that have to be fetched, before the first of them is. Without it none is.
    async fn has_room(&self, away: &[(&Wanted, Box<Verified<ResolvedImage>>)]) -> bool {
        let (mut installer, mut others): (Vec<Layer>, Vec<Vec<Layer>>) = Default::default();
        for (it, image) in away {
            match self.is_of_upgrade(&it.reference) {
                true => installer.extend(image.layers.iter().cloned()),
                false => others.push(image.layers.clone()),
            }
        }
        let making = Making::MakesRoom;
        let room = room_ahead(&self.machine.images, &installer, &others, making).await;
        let lack = match room {
            Ok(room) if room.is_enough() => return true,
            Ok(room) => anyhow::anyhow!(
                "there is no room for the pinned images that are to be fetched ({}), so none of them is: {}; unpin some, remove an image or \
                 files of a user volume, or take a larger disk",
                away.len(),
                room.numbers
            ),
            Err(error) => error.context("the room is not known"),
        };
        for (it, _) in away {
            self.failed(&it.reference, &lack);
        }
        false
    }

    /// Whether this is the installer's image of the upgrade that is being prepared, or that the channel has come to.
    fn is_of_upgrade(&self, reference: &ImageReference) -> bool {
        let preparation = self.machine.pins.preparation();
        preparation.is_some_and(|it| it.image == *reference)
            || self.machine.follow.image().as_ref() == Some(reference)
    }

    /// Returns why an image cannot be fetched now, if it is known which one it is: then its registry is not asked again until it can.
    fn must_wait(&self, it: &Wanted) -> Option<Wait> {
        let meaning = self.machine.pins.meaning(&it.reference)?;
        match self.machine.images.get(meaning.digest) {
            Some(_) => None,
            None => permit_now(self.machine, &it.terms).err(),
        }
    }

    /// Fetches an image if one of its windows is open, for as long as it is.
    async fn fetch_in_window(&self, it: &Wanted, image: &Verified<ResolvedImage>) {
        let reference = &it.reference;
        let (open_for, bandwidth) = match permit_now(self.machine, &it.terms) {
            Ok(permit) => permit,
            Err(wait) => return self.tell(reference, Event::Waits(wait)),
        };
        self.pace.set(bandwidth);
        self.tell(
            reference,
            Event::Begun(image.digest(), image.download_bytes()),
        );
        let fetched = tokio::select! {
            fetched = self.fetch(reference, image) => fetched,
            () = tokio::time::sleep(open_for) => {
                tracing::info!("{reference}: the window closes before it is here; it goes on in the next one");
                // The next turn says when that opens.
                return self.tell(reference, Event::Waits(Wait::Turn));
            }
        };
        match fetched {
            Ok(()) => self.pin(reference, ImageDigests::of_resolved(image)).await,
            Err(error) => self.failed(reference, &error),
        }
    }

    async fn fetch(
        &self,
        reference: &ImageReference,
        image: &Verified<ResolvedImage>,
    ) -> anyhow::Result<()> {
        let (machine, told) = (self.machine, AtomicU64::new(0));
        let progress = |progress: crate::oci::Progress| {
            let before = told.load(Ordering::Relaxed);
            if progress.bytes >= before + STEP {
                told.store(progress.bytes, Ordering::Relaxed);
                tell(machine, reference, Event::Arrived(progress.bytes));
            }
        };
        let limits = Limits::default();
        let images = match self.is_of_upgrade(reference) {
            true => machine.images.for_upgrade(),
            false => machine.images.clone(),
        };
        let pulled = self
            .puller
            .pull_with_progress(image, &images, &limits, &progress);
        pulled.await.context("it is not fetched")?;
        Ok(())
    }
}

fn bytes_of_documents(image: &ResolvedImage) -> usize {
    let index = image.index.as_ref().map_or(0, Vec::len);
    image.manifest.len() + image.config_document.len() + index
}

/// Returns for how long something may be done on one of these terms, and how fast; or why not now.
pub(super) fn permit_now(
    machine: &Machine,
    terms: &[Terms],
) -> Result<(Duration, Option<Bandwidth>), Wait> {
    let clock = machine.store.get::<ClockFact>("node");
    let knows_time = clock.is_some_and(|clock| clock.synced || clock.sync_disabled);
    permit(terms, SystemTime::now(), knows_time)
}

fn tell(machine: &Machine, reference: &ImageReference, event: Event) {
    let id = reference.to_string();
    // A pin that was taken back meanwhile is not shown again.
    if let Some(fact) = machine.store.get::<PinFact>(&id) {
        let state = after(fact.state, event, SystemTime::now());
        machine.store.put(&id, PinFact { state, ..fact });
    }
}
