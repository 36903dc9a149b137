//! Removes images that are no longer used, so that tags that move do not fill /var.
//!
//! An image stays while one of these conditions holds:
//!
//! - it is in force for a container, or a container of the config has its name;
//! - a container that has not been removed completely was made from it (its overlay is mounted);
//! - it waits for its start behind a name that a container follows, or may be gone back to;
//! - it is in use by a pull, a start or an upgrade;
//! - one of the last bundles brought it, or it keeps a file that one of them brought;
//! - it is pinned;
//! - its files were laid over /usr in this generation (`os_extensions/layers.rs`);
//! - a caller of the API asked for it within a day, and it is among the last few of these.
//!
//! With the images go the blobs and the shared files that no other image needs (`oci/src/store/collection.rs`).
//!
//! The file of a bundle's upload that nobody has gone on with for a day goes too.
//!
//! A power cut in the middle leaves a directory that the next sweep removes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::base::blocking_io;
use crate::base::error_chain::chain;
use crate::bundles::{BundleFact, FORGOTTEN, Phase, SILENCE, UPLOAD};
use crate::config::{ExtensionSource, OsExtensionSource};
use crate::machine::{Configured, Machine};
use crate::oci::{ImageStore, PulledImage, Urgency};
use crate::operation_lock::Operation;
use crate::values::{Digest, ImageReference};

/// Pause after a change, when containers are about to be started and stopped.
const AFTER_CHANGE: Duration = Duration::from_secs(5);
/// Interval while an image is still in use that is no longer named.
const AGAIN: Duration = Duration::from_secs(30);
/// Interval without any change: images that callers asked for get old.
const PERIOD: Duration = Duration::from_secs(3600);
/// Time that an image stays after a caller asked for it, so that a later config or upgrade can name it.
const ASKED_FOR: Duration = Duration::from_secs(24 * 3600);
/// Limit on these images; the newest stay.
const MOST_ASKED_FOR: usize = 8;

/// Collects after the boot, after every change of the config and of the images in force, at intervals, and at once for a pull that lacks room.
pub async fn keep(machine: Arc<Machine>) {
    let mut settled = machine.watch_settled();
    if settled.wait_for(|settled| *settled).await.is_err() {
        return;
    }
    let (mut config, mut in_force) = (machine.watch_config(), machine.images_in_force.watch());
    let mut pins = machine.pins.watch();
    loop {
        let silence = tokio::select! {
            () = tokio::time::sleep(AFTER_CHANGE) => FORGOTTEN,
            () = machine.images.lacks_room() => SILENCE,
        };
        forget_upload(&machine, silence).await;
        let pause = match collect(&machine).await {
            Ok(true) => PERIOD,
            Ok(false) => AGAIN,
            Err(error) => {
                tracing::warn!("images that nothing names stay for now: {error:#}");
                PERIOD
            }
        };
        machine.images.round_ended();
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = machine.images.lacks_room() => {
                // It is a change, and its pull waits.
                forget_upload(&machine, SILENCE).await;
                if let Err(error) = collect(&machine).await {
                    tracing::warn!("a pull lacks room, and images that nothing names stay: {error:#}");
                }
                machine.images.round_ended();
            }
            // The senders live in the machine.
            _ = config.changed() => {}
            _ = in_force.changed() => {}
            _ = pins.changed() => {}
        }
    }
}

/// Removes the file of a bundle's upload that nobody has gone on with for this time.
async fn forget_upload(machine: &Arc<Machine>, silence: Duration) {
    let forgetter = machine.clone();
    let forgetting = move || forgetter.bundles.uploads.forget(silence);
    match blocking_io::within(blocking_io::ANSWER, forgetting).await {
        Ok(Ok(false)) => {}
        Ok(Ok(true)) => {
            tracing::info!("the file of a bundle's upload is removed: nobody went on with it");
            let shown = machine.store.get::<BundleFact>(UPLOAD);
            if shown.is_some_and(|fact| matches!(fact.phase, Phase::Receiving { .. })) {
                machine.store.remove::<BundleFact>(UPLOAD);
            }
        }
        Ok(Err(error)) => tracing::warn!("the file of an upload stays: {}", chain(&error)),
        Err(error) => tracing::warn!("the file of an upload stays: {error}"),
    }
}

/// Removes images that are no longer named, and the blobs and shared files that no image needs; returns whether none of these images is
/// left or in use.
///
/// # Errors
/// The disk fails, or it is not known which images came by bundles: then nothing is removed in this round.
pub async fn collect(machine: &Machine) -> anyhow::Result<bool> {
    // In maintenance mode it is unknown which images are named.
    let Some(configured) = machine.config() else {
        return Ok(true);
    };
    if is_between_configs(machine) {
        return Ok(false);
    }
    // Removing an interrupted pull takes as long as the image has files.
    let store = machine.images.clone();
    let swept = blocking_io::within(blocking_io::ANSWER, move || {
        store.sweep()?;
        store.list()
    });
    let images = swept.await??;
    let facts = Facts {
        // The images themselves are dropped here: they would count as users.
        images: images.iter().map(StoredImage::of).collect(),
        named: named_by([Some(configured), machine.settled_config()]),
        needed: needed(machine)?,
        now: SystemTime::now(),
    };
    drop(images);
    let stays = |digest| {
        is_between_configs(machine)
            || is_needed(machine, digest)
            || facts.is_named(
                digest,
                &named_by([machine.config(), machine.settled_config()]),
            )
            || facts.has_changed(digest, &machine.images)
    };
    let are_gone = remove(&machine.images, &facts.surplus(), stays).await?;
    let store = machine.images.clone();
    let collecting = move || store.collect_surplus(Urgency::Usual);
    let bytes = blocking_io::within(blocking_io::ANSWER, collecting).await??;
    if bytes > 0 {
        tracing::info!("{bytes} bytes of blobs and shared files are removed: no image needs them");
    }
    Ok(are_gone)
}

/// Removes images, each unless it has to stay by now: a removal takes as long as the image has files, and meanwhile another config, a pin or a
/// bundle may come to need the next one. Returns whether none of them is left or in use.
async fn remove(
    store: &ImageStore,
    surplus: &[Digest],
    stays: impl Fn(Digest) -> bool,
) -> anyhow::Result<bool> {
    let mut are_gone = true;
    for &digest in surplus {
        if stays(digest) {
            continue;
        }
        let is_gone = store.remove_unused(digest).await?;
        if is_gone {
            tracing::info!("the image {digest} is removed: nothing names it any more");
        }
        are_gone &= is_gone;
    }
    Ok(are_gone)
}

/// Whether the config in force may be the wrong one to say what goes: it was only tried, its time is over, and the one that is about to return
/// is not known to the machine meanwhile.
pub fn is_between_configs(machine: &Machine) -> bool {
    let holder = machine.operations.check_free().err();
    holder.is_some_and(|busy| busy.operation == Operation::TakeBackConfig)
}

/// An image of the store, as far as it matters here.
#[derive(Debug, PartialEq, Eq)]
struct StoredImage {
    digest: Digest,
    names: BTreeSet<ImageReference>,
    asked_for_at: Option<SystemTime>,
}

impl StoredImage {
    fn of(image: &PulledImage) -> Self {
        StoredImage {
            digest: image.digest(),
            names: image.names().clone(),
            asked_for_at: image.asked_for_at(),
        }
    }
}

/// The facts that decide which images stay.
#[derive(Debug)]
struct Facts {
    images: Vec<StoredImage>,
    /// The images of the config's containers.
    named: BTreeSet<ImageReference>,
    /// The images that containers run, those that wait for their start or may be gone back to, those of the last bundles, pinned ones, and
    /// those that a node may go back to.
    needed: BTreeSet<Digest>,
    now: SystemTime,
}

impl Facts {
    /// The images that nothing names.
    fn surplus(&self) -> Vec<Digest> {
        let images = self.images.iter();
        let asked_for = images
            .clone()
            .filter_map(|image| Some((image.asked_for_at?, image.digest)));
        let of_callers = of_callers(asked_for, self.now);
        let surplus = images.filter(|image| {
            image.names.is_disjoint(&self.named)
                && !self.needed.contains(&image.digest)
                && !of_callers.contains(&image.digest)
        });
        surplus.map(|image| image.digest).collect()
    }

    /// Whether one of these names is an image's.
    fn is_named(&self, digest: Digest, named: &BTreeSet<ImageReference>) -> bool {
        let mut images = self.images.iter();
        images.any(|image| image.digest == digest && !image.names.is_disjoint(named))
    }

    /// Whether an image has another name since, a caller has asked for it, or it is gone: the next round judges it anew.
    fn has_changed(&self, digest: Digest, store: &ImageStore) -> bool {
        let now = store.get(digest).map(|image| StoredImage::of(&image));
        let mut images = self.images.iter();
        images.find(|image| image.digest == digest) != now.as_ref()
    }
}

/// Whether an image has to stay: a container runs it or needs it for its update, one of the last bundles brought it, or it is pinned. Every image
/// has to while that is not known.
pub fn is_needed(machine: &Machine, digest: Digest) -> bool {
    needed(machine).map_or_else(
        |error| {
            tracing::warn!("the image {digest} stays for now: {error:#}");
            true
        },
        |needed| needed.contains(&digest),
    )
}

/// Returns the images that containers run, those that their updates need, those of the last bundles, and pinned ones.
///
/// # Errors
/// The record of bundles cannot be read.
fn needed(machine: &Machine) -> anyhow::Result<BTreeSet<Digest>> {
    let mut needed = machine.images_in_force.digests();
    needed.extend(machine.image_updates.needed());
    needed.extend(machine.bundles.kept.images()?);
    needed.extend(machine.bundles.kept.files()?);
    needed.extend(machine.pins.digests());
    needed.extend(machine.node_record.digests());
    needed.extend(machine.os_extensions.record.digests());
    needed.extend(machine.os_extensions.layers.laid());
    // What a config that is only tried does not name is needed when it is taken back.
    let configs = [machine.config(), machine.settled_config()];
    let of_os = configs.iter().flatten();
    let of_os = of_os.flat_map(|it| &it.config.os_extensions);
    needed.extend(of_os.filter_map(|extension| match &extension.source {
        OsExtensionSource::File(file) => Some(file.sha256),
        OsExtensionSource::Image(_) => None,
    }));
    let extensions = configs
        .iter()
        .flatten()
        .filter_map(|it| it.config.kubernetes.as_ref());
    let extensions = extensions.flat_map(|kubernetes| &kubernetes.extensions);
    needed.extend(extensions.filter_map(|extension| match &extension.source {
        ExtensionSource::File(file) => Some(file.sha256),
        ExtensionSource::Image(_) | ExtensionSource::Published(_) => None,
    }));
    Ok(needed)
}

/// Returns the images of the containers of these configs.
fn named_by(configs: [Option<Arc<Configured>>; 2]) -> BTreeSet<ImageReference> {
    let configs = configs.iter().flatten();
    configs.flat_map(|it| names(it)).collect()
}

/// Returns the images of a config's containers.
fn names(configured: &Configured) -> impl Iterator<Item = ImageReference> {
    let containers = configured.config.containers.iter();
    containers.filter_map(|container| container.image.to_string().parse().ok())
}

/// Returns the images that callers asked for lately, newest first.
fn of_callers(
    asked_for: impl Iterator<Item = (SystemTime, Digest)>,
    now: SystemTime,
) -> Vec<Digest> {
    let young = asked_for.filter_map(|(at, digest)| {
        // A time in the future is from a wrong clock.
        let age = now.duration_since(at).ok()?;
        (age < ASKED_FOR).then_some((age, digest))
    });
    let mut young: Vec<(Duration, Digest)> = young.collect();
    young.sort();
    young.truncate(MOST_ASKED_FOR);
    young.into_iter().map(|(_, digest)| digest).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::containers::registry_for_tests::SignedRegistry;
    use crate::oci::{Keeps, Limits};

    #[test]
    fn what_nothing_names_is_surplus() {
        let now = SystemTime::now();
        let name = |text: &str| text.parse::<ImageReference>().unwrap();
        let image = |content: &str, names: &[&str], asked_for_at| StoredImage {
            digest: Digest::of(content.as_bytes()),
            names: names.iter().map(|text| name(text)).collect(),
            asked_for_at,
        };
        let facts = Facts {
            images: vec![
                image("named", &["r.io/old", "r.io/web"], None),
                image("in force", &["r.io/moved"], None),
                image("asked for", &["r.io/next"], Some(now)),
                image("surplus", &["r.io/old:1"], None),
            ],
            named: BTreeSet::from([name("r.io/web"), name("r.io/db")]),
            needed: BTreeSet::from([Digest::of(b"in force"), Digest::of(b"gone")]),
            now,
        };
        assert_eq!(facts.surplus(), [Digest::of(b"surplus")]);
    }

    #[test]
    fn what_callers_asked_for_stays_for_a_day_and_only_the_newest() {
        let now = SystemTime::now();
        let digest = |number: u64| Digest::of(&number.to_le_bytes());
        let minutes = |number: u64| now - Duration::from_secs(60 * number);
        let asked_for = (0..20).map(|number| (minutes(number), digest(number)));
        let kept = of_callers(asked_for, now);
        assert_eq!(kept, (0..8).map(digest).collect::<Vec<_>>());

        let yesterday = minutes(24 * 60);
        let to_come = now + Duration::from_secs(60);
        let odd = [(yesterday, digest(1)), (to_come, digest(2))];
        assert!(of_callers(odd.into_iter(), now).is_empty());
    }

    /// Another config comes while the first one is being removed.
    #[tokio::test]
    async fn an_image_that_comes_to_be_needed_during_a_round_stays() {
        let directory = tempfile::tempdir().unwrap();
        let store = ImageStore::new(directory.path().to_owned(), Keeps::ImagesAlone);
        let (registry, limits) = (SignedRegistry::start(), Limits::default());
        let puller = registry.puller();
        let mut surplus = Vec::new();
        for name in ["one:v1", "two:v1", "three:v1"] {
            let pushed = registry.push(name, name);
            let resolved = puller.look_up(&pushed.name).await.unwrap();
            puller.pull(&resolved, &store, &limits).await.unwrap();
            surplus.push(pushed.manifest);
        }
        let is_here = |digest: Digest| store.get(digest).is_some();
        let (first, second) = (surplus[0], surplus[1]);
        let stays = |digest| digest == second && !is_here(first);
        assert!(remove(&store, &surplus, stays).await.unwrap());
        let left: Vec<Digest> = surplus.into_iter().filter(|it| is_here(*it)).collect();
        assert_eq!(left, [second]);
    }
}
