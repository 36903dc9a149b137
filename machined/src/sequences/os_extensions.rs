//! Brings the extensions of the machine itself into force: fetches their images, checks them, and puts their files in place.
//!
//! ```text
//! config or pins change ──► wanted image here? ──no──► fetched; the one in force before stays meanwhile
//!                                 │ yes
//!                                 ▼
//!                              checked ──refused──► a problem (`get conditions`); the one in force before stays
//!                                 │
//!                                 ▼
//!                     over /usr, or below /etc ──► the record of those in force
//! ```
//!
//! A start puts those of the record in place before it starts containers, without asking anybody; the rest follows while they start.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use instar_extension::OsExtension as Files;

use super::extension_files::Fetches;
use super::extension_image::admitted;
use super::steps::overlay::load_overlay;
use crate::base::blocking_io::{self, ANSWER};
use crate::base::lock::Lock as _;
use crate::config::{OsExtension, OsExtensionSource};
use crate::kubernetes::trial::Chosen;
use crate::machine::{Configured, Machine};
use crate::oci::verification::VerificationError;
use crate::oci::{PullError, VerifiedImage, name_of_file};
use crate::os_extensions::{OsExtensionFact, OsExtensionState, Tree, checked};
use crate::pins::{PinFact, State};
use crate::status;
use crate::store::Problem;
use crate::values::{Digest, EtcFile};

/// The interval between two looks while an image is missing, so that the fetch goes on.
const LOOK: Duration = Duration::from_secs(2);
/// The interval while all are in force, or there are none.
const IDLE: Duration = Duration::from_secs(300);
/// The interval while one is refused: a registry may name its signature later.
const AGAIN: Duration = Duration::from_secs(60);
/// What the subjects of problems begin with; the name of the extension follows.
const SUBJECT: &str = "extension ";
/// The subject of a problem with all extensions together.
const ALL: &str = "extensions";

/// Keeps the extensions as the config wants them, for as long as the machine runs.
pub async fn keep(machine: Arc<Machine>) {
    if !may_begin(&machine).await {
        return;
    }
    let mut config = machine.watch_config();
    let mut fetches = None;
    loop {
        let pause = match machine.config() {
            Some(configured) if is_idle(&machine, &configured) => {
                fetches = None;
                IDLE
            }
            Some(configured) if machine.disk.status().borrow().var_mounted => {
                // In memory of its own, which is there only with extensions.
                let fetches = fetches.get_or_insert_with(|| Box::new(Fetches::default()));
                Box::pin(turn(&machine, &configured, Some(fetches))).await
            }
            // Its disk comes, or goes.
            Some(_) => LOOK,
            None => IDLE,
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = config.changed() => {}
        }
    }
}

/// Waits until extensions may be fetched: as soon as services start if the config has some, and else at the boot's end. False if it does not
/// come any more.
pub(super) async fn may_begin(machine: &Machine) -> bool {
    let mut settled = machine.watch_settled();
    let mut begins = machine.os_extensions.watch_begins();
    tokio::select! {
        settled = settled.wait_for(|settled| *settled) => settled.is_ok(),
        begins = begins.wait_for(|begins| *begins) => begins.is_ok(),
    }
}

/// Puts the extensions in place whose images are here; fetches none.
pub(super) async fn settle(machine: &Machine) {
    let Some(configured) = machine.config() else {
        return;
    };
    if !is_idle(machine, &configured) {
        Box::pin(turn(machine, &configured, None)).await;
    }
}

/// Whether there is nothing to put in place and nothing to take away.
fn is_idle(machine: &Machine, configured: &Configured) -> bool {
    configured.config.os_extensions.is_empty()
        && machine.store.list::<OsExtensionFact>().is_empty()
        && machine.os_extensions.record.get().is_empty()
}

/// An extension that may be used.
struct Usable {
    chosen: Chosen,
    tree: PathBuf,
    /// While it is here, the store keeps the image. None if it could not be asked for: then the record keeps it.
    _image: Option<VerifiedImage>,
    files: Files,
}

/// An extension of the config, with the image that is used for it.
struct Settled {
    name: String,
    source: String,
    /// The image that the config wants, as far as it is known which one it is.
    wanted: Option<Chosen>,
    state: OsExtensionState,
    /// Whether the last try to fetch it has failed: the next one is minutes away.
    has_failed: bool,
    used: Option<Usable>,
}

/// Carries out the config once; returns the time until the next look.
async fn turn(
    machine: &Machine,
    configured: &Configured,
    mut fetches: Option<&mut Box<Fetches>>,
) -> Duration {
    let mut all = Vec::new();
    for extension in &configured.config.os_extensions {
        all.push(settled(machine, configured, extension, fetches.as_deref_mut()).await);
    }
    let placed = place(machine, &all).await;
    note_placed(&mut all, &placed);
    forget_others(machine, &all);
    show(machine, &all, placed.as_ref().err());
    if placed.is_ok() {
        remember(machine, &all).await;
    }
    let is = |state: fn(&OsExtensionState) -> bool| all.iter().any(|it| state(&it.state));
    let is_coming = |it: &Settled| it.state == OsExtensionState::Fetching && !it.has_failed;
    if all.iter().any(is_coming) {
        LOOK
    } else if placed.is_err() || is(|state| *state != OsExtensionState::InForce) {
        AGAIN
    } else {
        IDLE
    }
}

/// Finds out which image is used for an extension: the wanted one, or else the one in force before.
async fn settled(
    machine: &Machine,
    configured: &Configured,
    extension: &OsExtension,
    fetches: Option<&mut Box<Fetches>>,
) -> Settled {
    let name = &extension.name;
    let wanted = wanted(machine, extension);
    let looked = match &wanted {
        Ok(Some(chosen)) => usable(machine, configured, name, chosen).await,
        Ok(None) => Ok(None),
        Err(error) => Err(anyhow::anyhow!("{error:#}")),
    };
    let wanted = wanted.ok().flatten();
    let looked = match (looked, &extension.source, &wanted, fetches) {
        (Ok(None), OsExtensionSource::File(file), Some(chosen), Some(fetches)) => {
            let (store, config) = (&machine.images, &configured.config);
            let going = fetches.go_on(store, config, &chosen.image, file).await;
            going.map(|()| None)
        }
        (looked, ..) => looked,
    };
    let (state, mut used) = match looked {
        Ok(Some(usable)) => (OsExtensionState::InForce, Some(usable)),
        Ok(None) => (OsExtensionState::Fetching, None),
        Err(error) => (OsExtensionState::Refused(format!("{error:#}")), None),
    };
    let before = machine.os_extensions.record.get().remove(name);
    if let (None, Some(before)) = (&used, before)
        && wanted.as_ref() != Some(&before)
    {
        used = usable(machine, configured, name, &before)
            .await
            .unwrap_or_else(|error| {
                tracing::warn!("extension {name}: the one before is not used either: {error:#}");
                None
            });
    }
    Settled {
        name: name.clone(),
        source: extension.source.to_string(),
        wanted,
        state,
        has_failed: has_failed(machine, extension),
        used,
    }
}

fn has_failed(machine: &Machine, extension: &OsExtension) -> bool {
    let OsExtensionSource::Image(image) = &extension.source else {
        return false;
    };
    let fact = machine.store.get::<PinFact>(&image.to_string());
    fact.is_some_and(|fact| matches!(fact.state, State::Failed { .. }))
}

/// Returns the image that the config wants; `None` while nobody knows what its name means.
fn wanted(machine: &Machine, extension: &OsExtension) -> anyhow::Result<Option<Chosen>> {
    match &extension.source {
        OsExtensionSource::Image(image) => {
            let fact = machine.store.get::<PinFact>(&image.to_string());
            Ok(fact.and_then(|fact| match fact.state {
                State::Pinned { digest } => Some(Chosen {
                    image: image.clone(),
                    digest,
                }),
                _ => None,
            }))
        }
        OsExtensionSource::File(file) => Ok(Some(Chosen {
            image: name_of_file(&extension.name, file.sha256)?,
            digest: file.sha256,
        })),
    }
}

/// Checks an image; `None` if it is not here. What has been checked in this generation stays usable until the rules refuse it: a registry
/// that is silent takes no files away.
async fn usable(
    machine: &Machine,
    configured: &Configured,
    name: &str,
    chosen: &Chosen,
) -> anyhow::Result<Option<Usable>> {
    let key = (name.to_owned(), chosen.digest);
    let known = machine.os_extensions.checked.locked().get(&key).cloned();
    let image = match (admitted(machine, configured, chosen).await, &known) {
        (Ok(Some(image)), _) => Some(image),
        (Ok(None), _) => return Ok(None),
        (Err(error), Some(_)) if !is_refusal(&error) => {
            tracing::warn!(
                "extension {name}: it stays as it is, nobody can say whether it may: {error:#}"
            );
            None
        }
        (Err(error), _) => return Err(error),
    };
    let (tree, files) = match (known, &image) {
        (Some(known), _) => known,
        (None, Some(image)) => {
            let tree = image.rootfs();
            let files = check(machine, name, tree.clone()).await?;
            let known = (tree, files);
            let mut checked = machine.os_extensions.checked.locked();
            checked.insert(key, known.clone());
            known
        }
        (None, None) => return Ok(None),
    };
    Ok(Some(Usable {
        chosen: chosen.clone(),
        tree,
        _image: image,
        files,
    }))
}

async fn check(machine: &Machine, name: &str, tree: PathBuf) -> anyhow::Result<Files> {
    let (name, version) = (name.to_owned(), machine.running.version.clone());
    let layers = machine.os_extensions.layers.clone();
    let check = move || checked(&name, &tree, &version, layers.own_usr());
    blocking_io::within(ANSWER, check).await?
}

/// Whether the rules say that an image may not be used, and not just that nobody can tell.
fn is_refusal(error: &anyhow::Error) -> bool {
    let refused = error.downcast_ref::<PullError>();
    refused.is_some_and(|error| {
        matches!(error, PullError::NotVerified(why) if matches!(**why, VerificationError::Refused(_)))
    })
}

/// Forgets what was checked of images that are not used any more.
fn forget_others(machine: &Machine, all: &[Settled]) {
    let used = |(name, digest): &(String, Digest)| {
        let mut all = all.iter().filter(|it| it.name == *name);
        all.any(|it| {
            let used = it.used.as_ref().map(|used| &used.chosen);
            let chosen = used.into_iter().chain(&it.wanted);
            chosen.into_iter().any(|chosen| chosen.digest == *digest)
        })
    };
    let mut checked = machine.os_extensions.checked.locked();
    checked.retain(|key, _| used(key));
}

/// Puts the files of all extensions in place. Returns the extensions whose files in /etc have no place there, with the reasons.
async fn place(machine: &Machine, all: &[Settled]) -> anyhow::Result<BTreeMap<String, String>> {
    let (mut trees, mut texts) = (Vec::new(), Vec::new());
    for (name, used) in all
        .iter()
        .filter_map(|it| Some((&it.name, it.used.as_ref()?)))
    {
        match &used.files {
            Files::Usr => trees.push(Tree {
                image: used.chosen.digest,
                path: used.tree.clone(),
            }),
            Files::Etc(files) => {
                let files = files.iter().map(|text| EtcFile {
                    name: text.path.clone(),
                    mode: text.mode,
                    contents: text.text.clone(),
                });
                texts.push((name.clone(), files.collect()));
            }
        }
    }
    if !trees.is_empty() {
        load_overlay(machine).await?;
    }
    put(machine, trees, texts).await
}

async fn put(
    machine: &Machine,
    trees: Vec<Tree>,
    texts: Vec<(String, Vec<EtcFile>)>,
) -> anyhow::Result<BTreeMap<String, String>> {
    let (layers, etc) = (
        machine.os_extensions.layers.clone(),
        machine.etc_files.clone(),
    );
    let put = move || {
        layers.put(&trees)?;
        Ok(etc.set_of_extensions(texts)?)
    };
    blocking_io::within(ANSWER, put).await?
}

/// Takes back that an extension is in force if its files could not be put in place.
fn note_placed(all: &mut [Settled], placed: &anyhow::Result<BTreeMap<String, String>>) {
    for extension in all.iter_mut().filter(|it| it.used.is_some()) {
        let why = match placed {
            Ok(refused) => refused.get(&extension.name).cloned(),
            Err(error) => Some(format!("{error:#}")),
        };
        let Some(why) = why else {
            continue;
        };
        if placed.is_ok() {
            // The record keeps the one before.
            extension.used = None;
        }
        if extension.state == OsExtensionState::InForce {
            extension.state = OsExtensionState::Refused(why);
        }
    }
}

/// Shows how far each extension is, and what is wrong.
fn show(machine: &Machine, all: &[Settled], not_placed: Option<&anyhow::Error>) {
    let mut problems = BTreeMap::new();
    for extension in all {
        let subject = format!("{SUBJECT}{}", extension.name);
        if let OsExtensionState::Refused(why) = &extension.state {
            problems.insert(subject, why.clone());
        }
        let used = extension.used.as_ref().map(|it| &it.chosen);
        let shown = used.or(extension.wanted.as_ref());
        let fact = OsExtensionFact {
            source: extension.source.clone(),
            digest: shown.map(|chosen| chosen.digest.to_string()),
            state: extension.state.clone(),
        };
        machine.store.put(&extension.name, fact);
    }
    if let Some(error) = not_placed {
        problems.insert(ALL.to_owned(), format!("{error:#}"));
    }
    let names: BTreeSet<&str> = all.iter().map(|it| it.name.as_str()).collect();
    machine
        .store
        .retain::<OsExtensionFact>(|name| names.contains(name));
    machine.store.retain::<Problem>(|subject| {
        let is_ours = subject.starts_with(SUBJECT) || subject == ALL;
        !is_ours || problems.contains_key(subject)
    });
    for (subject, reason) in problems {
        let known = machine.store.get::<Problem>(&subject);
        if known.is_none_or(|known| known.reason != reason) {
            tracing::error!("{subject}: {reason}");
            status::note_problem(machine, &subject, &reason);
        }
    }
}

/// Records what is in force. What the config names and nothing is used for stays in the record: its image may be used again later.
async fn remember(machine: &Machine, all: &[Settled]) {
    let before = machine.os_extensions.record.get();
    let images = all.iter().filter_map(|extension| {
        let used = extension.used.as_ref().map(|it| it.chosen.clone());
        let chosen = used.or_else(|| before.get(&extension.name).cloned())?;
        Some((extension.name.clone(), chosen))
    });
    let images: BTreeMap<String, Chosen> = images.collect();
    if images != before {
        let names: Vec<&str> = images.keys().map(String::as_str).collect();
        tracing::info!("extensions of the machine: {}", told(&names));
    }
    if let Err(error) = machine.os_extensions.record.set(images).await {
        tracing::warn!("extensions of the machine: the record of those in force: {error:#}");
    }
}

fn told(names: &[&str]) -> String {
    match names {
        [] => "none any more".to_owned(),
        names => names.join(", "),
    }
}
