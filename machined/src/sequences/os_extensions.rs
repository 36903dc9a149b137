//! Brings the extensions of the machine itself into force: fetches their images, checks them, and puts their files in place.
//!
//! ```text
//! config or pins change ──► wanted image here? ──no──► fetched; the one in force before stays meanwhile
//!                                 │ yes
//!                                 ▼
//!                              checked ──refused──► a problem (`get conditions`); the one in force before stays
//!                                 │                              ▲
//!                                 ▼                              │ no place
//!                     over /usr, or below /etc (placing.rs) ─────┤
//!                                                                └──► the record of those in force
//! ```
//!
//! A start puts those of the record in place before it starts containers, without asking anybody; the rest follows while they start. After a
//! restart of machined in the same generation they are in place already, and nothing changes.

mod placing;
#[cfg(test)]
mod tests;
mod usable;

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use self::placing::{Candidates, Placed, place};
use self::usable::{Usable, usable};
use super::extension_files::Fetches;
use crate::config::{OsExtension, OsExtensionSource};
use crate::kubernetes::trial::Chosen;
use crate::machine::{Configured, Machine};
use crate::oci::name_of_file;
use crate::os_extensions::OsExtensions;
use crate::pins::{PinFact, State};
use crate::status;
use crate::store::{ExtensionFact, ExtensionState, ExtensionTarget, Problem, Store};
use crate::values::Digest;

/// The interval between two looks while an image is missing, so that the fetch goes on.
const LOOK: Duration = Duration::from_secs(2);
/// The interval while all are in force, or there are none.
const IDLE: Duration = Duration::from_secs(300);
/// The interval while one is refused: a registry may name its signature later.
const AGAIN: Duration = Duration::from_secs(60);
/// The first word of a problem's subject; the name of the extension follows.
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
        && !machine.store.list::<ExtensionFact>().iter().any(|(_, it)| is_ours(it))
        && machine.os_extensions.record.get().is_empty()
        // An earlier machined may have put some in place, and the record may be lost.
        && machine.os_extensions.layers.laid().is_empty()
        && machine.etc_files.of_extensions().is_empty()
}

/// Whether an extension is one of the machine itself.
fn is_ours(fact: &ExtensionFact) -> bool {
    fact.target == ExtensionTarget::Os
}

/// An extension of the config, with the image that is used for it.
struct Settled {
    name: String,
    source: String,
    /// The image that the config wants, as far as it is known which one it is.
    wanted: Option<Chosen>,
    state: ExtensionState,
    /// Whether the last try to fetch it has failed: the next one is minutes away.
    has_failed: bool,
    candidates: Candidates,
    /// The image whose files are in their places.
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
    let candidates = all.iter_mut();
    let candidates = candidates.map(|it| (it.name.clone(), mem::take(&mut it.candidates)));
    let (placed, put) = place(machine, candidates.collect()).await;
    note_placed(&mut all, placed);
    forget_others(&machine.os_extensions, &all);
    show(machine, &all, put.as_ref().err());
    remember(machine, &all).await;
    let is = |state: fn(&ExtensionState) -> bool| all.iter().any(|it| state(&it.state));
    let is_coming = |it: &Settled| it.state == ExtensionState::Fetching && !it.has_failed;
    if all.iter().any(is_coming) {
        LOOK
    } else if put.is_err() || is(|state| *state != ExtensionState::InForce) {
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
    let wanted = wanted(&machine.store, extension);
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
    let (state, found) = match looked {
        Ok(Some(usable)) => (ExtensionState::InForce, Some(usable)),
        Ok(None) => (ExtensionState::Fetching, None),
        Err(error) => (ExtensionState::Refused(format!("{error:#}")), None),
    };
    let before = machine.os_extensions.record.get().remove(name);
    let candidates = match before {
        Some(before) if wanted.as_ref() != Some(&before) => Candidates {
            before: of_before(machine, configured, name, &before).await,
            next: found,
        },
        Some(_) => Candidates {
            before: found,
            next: None,
        },
        None => Candidates {
            before: None,
            next: found,
        },
    };
    Settled {
        name: name.clone(),
        source: extension.source.to_string(),
        wanted,
        state,
        has_failed: has_failed(&machine.store, extension),
        candidates,
        used: None,
    }
}

/// Returns the image that was in force last, if it may still be used.
async fn of_before(
    machine: &Machine,
    configured: &Configured,
    name: &str,
    before: &Chosen,
) -> Option<Usable> {
    let found = usable(machine, configured, name, before).await;
    found.unwrap_or_else(|error| {
        tracing::warn!("extension {name}: the previous image may not be used: {error:#}");
        None
    })
}

fn has_failed(store: &Store, extension: &OsExtension) -> bool {
    let OsExtensionSource::Image(image) = &extension.source else {
        return false;
    };
    let fact = store.get::<PinFact>(&image.to_string());
    fact.is_some_and(|fact| matches!(fact.state, State::Failed { .. }))
}

/// Returns the image that the config wants; `None` while nobody knows what its name means.
fn wanted(store: &Store, extension: &OsExtension) -> anyhow::Result<Option<Chosen>> {
    match &extension.source {
        OsExtensionSource::Image(image) => {
            let fact = store.get::<PinFact>(&image.to_string());
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

/// Forgets what was checked of images that are not used any more.
fn forget_others(extensions: &OsExtensions, all: &[Settled]) {
    let used = |(name, digest): &(String, Digest)| {
        let mut all = all.iter().filter(|it| it.name == *name);
        all.any(|it| {
            let used = it.used.as_ref().map(|used| &used.chosen);
            let chosen = used.into_iter().chain(&it.wanted);
            chosen.into_iter().any(|chosen| chosen.digest == *digest)
        })
    };
    extensions.checked.retain(used);
}

/// Notes whose files are there.
fn note_placed(all: &mut [Settled], mut placed: BTreeMap<String, Placed>) {
    for extension in all {
        let Placed { used, why } = placed.remove(&extension.name).unwrap_or_default();
        extension.used = used;
        if let (ExtensionState::InForce, Some(why)) = (&extension.state, why) {
            extension.state = ExtensionState::Refused(why);
        }
    }
}

/// Shows how far each extension is, and what is wrong.
fn show(machine: &Machine, all: &[Settled], not_placed: Option<&anyhow::Error>) {
    let mut problems = BTreeMap::new();
    for extension in all {
        let subject = format!("{SUBJECT}{}", extension.name);
        if let ExtensionState::Refused(why) = &extension.state {
            problems.insert(subject, why.clone());
        }
        let used = extension.used.as_ref().map(|it| &it.chosen);
        let shown = used.or(extension.wanted.as_ref());
        let fact = ExtensionFact {
            target: ExtensionTarget::Os,
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
        .retain_by_content::<ExtensionFact>(|name, it| !is_ours(it) || names.contains(name));
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
