//! Puts the files of extensions in their places: all of an image, or none of it.
//!
//! ```text
//! next image, and the one of before ──► chosen: the next one, unless it has no place ──► over /usr ──► below /etc
//!                                                                                          │ fails        │ fails
//!                                                                                          ▼              ▼
//!                                                                                   what lies there stays, and counts
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::Context as _;
use instar_extension::OsExtension as Files;

use super::usable::Usable;
use crate::base::blocking_io::{self, ANSWER};
use crate::etc_files::{OfExtensions, Offer, Taken};
use crate::machine::Machine;
use crate::os_extensions::Tree;
use crate::sequences::steps::overlay::load_overlay;
use crate::sys::overlay::layer;
use crate::values::EtcFile;

/// The images that an extension may have.
#[derive(Default)]
pub(super) struct Candidates {
    /// The one in force last.
    pub(super) before: Option<Usable>,
    /// Another one, which is to take its place.
    pub(super) next: Option<Usable>,
}

impl Candidates {
    fn get(&self, which: Taken) -> Option<&Usable> {
        match which {
            Taken::Before => self.before.as_ref(),
            Taken::Next => self.next.as_ref(),
        }
    }

    fn take(self, which: Taken) -> Option<Usable> {
        match which {
            Taken::Before => self.before,
            Taken::Next => self.next,
        }
    }

    fn best(&self) -> Taken {
        match self.next {
            Some(_) => Taken::Next,
            None => Taken::Before,
        }
    }

    /// Whether the next image has files for another place than the previous one.
    fn changes_place(&self) -> bool {
        let (before, next) = (self.before.as_ref(), self.next.as_ref());
        matches!((before.map(is_usr), next.map(is_usr)), (Some(before), Some(next)) if before != next)
    }
}

/// The result for one extension.
#[derive(Default)]
pub(super) struct Placed {
    /// The image whose files are there.
    pub(super) used: Option<Usable>,
    /// Why the files of the best image are not.
    pub(super) why: Option<String>,
}

type All = BTreeMap<String, Candidates>;
type Chosen = BTreeMap<String, Taken>;
type Reasons = BTreeMap<String, String>;

/// Puts the files of extensions in place, and takes those of others away. Returns what has become of each, and what went wrong with all of
/// them together.
pub(super) async fn place(
    machine: &Machine,
    mut all: All,
) -> (BTreeMap<String, Placed>, anyhow::Result<()>) {
    let there = There::find(machine).await;
    let mut reasons = without_unreadable(&mut all, &there).await;
    let put = match chosen(machine, &all, &mut reasons).await {
        Ok(chosen) => put(machine, &all, chosen).await,
        Err(error) => Err(error),
    };
    // Whatever has failed: the files that are there count.
    let there = There::find(machine).await;
    let placed = all.into_iter().map(|(name, candidates)| {
        let mut both = [Taken::Next, Taken::Before].into_iter();
        let found = both.find(|which| {
            let candidate = candidates.get(*which);
            candidate.is_some_and(|it| there.has(&name, it))
        });
        let is_best = found == Some(candidates.best());
        let failed = put.as_ref().err().filter(|_| !is_best);
        let why = reasons.remove(&name);
        let placed = Placed {
            used: found.and_then(|which| candidates.take(which)),
            why: why.or_else(|| failed.map(|error| format!("{error:#}"))),
        };
        (name, placed)
    });
    (placed.collect(), put)
}

/// Leaves images out whose files cannot be opened; returns why. One that lies over /usr already stays: only a change would open it again.
async fn without_unreadable(all: &mut All, there: &There) -> Reasons {
    let candidates = all.values().flat_map(|it| [&it.before, &it.next]);
    let of_usr = candidates.flatten().filter(|it| is_usr(it));
    let trees: BTreeSet<PathBuf> = of_usr.map(|it| it.tree.clone()).collect();
    let open = move || {
        let failed = trees.into_iter().filter_map(|tree| {
            let usr = tree.join("usr");
            let error = layer(&usr).err()?;
            Some((tree, format!("cannot open {}: {error}", usr.display())))
        });
        failed.collect::<BTreeMap<PathBuf, String>>()
    };
    // A disk that does not answer fails the next step as well, which says so.
    let failed = blocking_io::within(ANSWER, open).await.unwrap_or_default();
    let mut reasons = Reasons::new();
    let is_failed = |it: &mut Usable| failed.contains_key(&it.tree);
    for (name, candidates) in all {
        let best = match candidates.best() {
            Taken::Next => candidates.next.take_if(is_failed),
            Taken::Before => None,
        };
        let is_lost = |it: &mut Usable| is_failed(it) && !there.has(name, it);
        let before = candidates.before.take_if(is_lost);
        // One of before that is not used anyway is no loss.
        let lost = best.or_else(|| before.filter(|_| candidates.next.is_none()));
        if let Some(why) = lost.and_then(|it| failed.get(&it.tree)) {
            reasons.insert(name.clone(), why.clone());
        }
    }
    reasons
}

/// Chooses the image of each extension; adds why the best one is not taken.
async fn chosen(machine: &Machine, all: &All, reasons: &mut Reasons) -> anyhow::Result<Chosen> {
    let mut chosen = Chosen::new();
    let mut offers = BTreeMap::new();
    for (name, candidates) in all {
        if candidates.next.as_ref().is_some_and(is_usr) {
            chosen.insert(name.clone(), Taken::Next);
            continue;
        }
        if candidates.before.as_ref().is_some_and(is_usr) {
            chosen.insert(name.clone(), Taken::Before);
        }
        let offer = Offer {
            before: candidates.before.as_ref().and_then(texts),
            next: candidates.next.as_ref().and_then(texts),
        };
        if offer != Offer::default() {
            offers.insert(name.clone(), offer);
        }
    }
    if offers.is_empty() {
        return Ok(chosen);
    }
    let etc = machine.etc_files.clone();
    let choice = blocking_io::within(ANSWER, move || etc.choose(&offers)).await??;
    chosen.extend(choice.taken);
    reasons.extend(choice.refused);
    Ok(chosen)
}

/// Puts the chosen images in place, first those over /usr. If one of both places cannot be changed, no extension changes from one to the
/// other.
async fn put(machine: &Machine, all: &All, mut chosen: Chosen) -> anyhow::Result<()> {
    let over_usr = put_over_usr(machine, trees(all, &chosen)).await;
    if over_usr.is_err() {
        keep_places(all, &mut chosen);
    }
    let (etc, files) = (machine.etc_files.clone(), files(all, &chosen));
    let below_etc = blocking_io::within(ANSWER, move || etc.set_of_extensions(files)).await;
    let below_etc = below_etc.map_err(anyhow::Error::from);
    let below_etc = below_etc.and_then(|set| Ok(set?));
    if below_etc.is_err() && over_usr.is_ok() && keep_places(all, &mut chosen) {
        put_over_usr(machine, trees(all, &chosen))
            .await
            .context("take a change over /usr back, as the one below /etc has failed")?;
    }
    match (over_usr, below_etc) {
        (Err(one), Err(other)) => anyhow::bail!("{one:#}; {other:#}"),
        (one, other) => one.and(other),
    }
}

/// Goes back to the previous image for the extensions that would change from /usr to /etc or back; returns whether there are any.
fn keep_places(all: &All, chosen: &mut Chosen) -> bool {
    let mut has_changed = false;
    for (name, which) in chosen {
        let changes = all.get(name).is_some_and(Candidates::changes_place);
        if changes && *which == Taken::Next {
            *which = Taken::Before;
            has_changed = true;
        }
    }
    has_changed
}

async fn put_over_usr(machine: &Machine, trees: Vec<Tree>) -> anyhow::Result<()> {
    if !trees.is_empty() {
        load_overlay(machine).await?;
    }
    let layers = machine.os_extensions.layers.clone();
    blocking_io::within(ANSWER, move || layers.put(&trees)).await?
}

fn used<'a>(
    all: &'a All,
    chosen: &'a Chosen,
) -> impl Iterator<Item = (&'a String, &'a Usable)> + 'a {
    let used = |(name, which): (&'a String, &'a Taken)| Some((name, all.get(name)?.get(*which)?));
    chosen.iter().filter_map(used)
}

fn trees(all: &All, chosen: &Chosen) -> Vec<Tree> {
    used(all, chosen).filter_map(|(_, it)| tree(it)).collect()
}

fn files(all: &All, chosen: &Chosen) -> OfExtensions {
    let files = used(all, chosen).filter_map(|(name, it)| Some((name.clone(), texts(it)?)));
    files.collect()
}

fn is_usr(usable: &Usable) -> bool {
    usable.files == Files::Usr
}

/// Returns the tree that goes over /usr.
fn tree(usable: &Usable) -> Option<Tree> {
    match usable.files {
        Files::Usr => Some(Tree {
            image: usable.chosen.digest,
            path: usable.tree.clone(),
        }),
        Files::Etc(_) => None,
    }
}

/// Returns the files that go below /etc.
fn texts(usable: &Usable) -> Option<Vec<EtcFile>> {
    let Files::Etc(texts) = &usable.files else {
        return None;
    };
    let texts = texts.iter().map(|text| EtcFile {
        name: text.path.clone(),
        mode: text.mode,
        contents: text.text.clone(),
    });
    Some(texts.collect())
}

/// The files of extensions that are there.
struct There {
    over_usr: Vec<Tree>,
    below_etc: OfExtensions,
}

impl There {
    async fn find(machine: &Machine) -> Self {
        let layers = machine.os_extensions.layers.clone();
        let found = blocking_io::within(ANSWER, move || layers.in_force()).await;
        let found = found.map_err(anyhow::Error::from).flatten();
        let over_usr = found.unwrap_or_else(|error| {
            tracing::warn!("extensions: nobody knows which are over /usr: {error:#}");
            None
        });
        There {
            over_usr: over_usr.unwrap_or_default(),
            below_etc: machine.etc_files.of_extensions(),
        }
    }

    fn has(&self, name: &str, usable: &Usable) -> bool {
        match (tree(usable), texts(usable)) {
            (Some(tree), _) => self.over_usr.contains(&tree),
            (None, texts) => self.below_etc.get(name) == texts.as_ref(),
        }
    }
}
