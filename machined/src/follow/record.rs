//! Keeps the record of a machine that follows a channel: on STATE, and with init for machines without a disk, whose upgrades without a
//! reboot would lose it otherwise.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use anyhow::Context as _;
use instar_channel::ChannelFiles;
use tokio::sync::watch;

use super::facts::LockPlace;
use super::stage::{Hold, OwedLock, Owes, Record, Stage};
use crate::base::lock::Lock as _;
use crate::base::{sealed_json, whole_file};
use crate::init_link::{InitLink, Scope};
use crate::record_file::RecordFile;
use crate::state_partition::{CHANNEL_FILES, StateFile, UPGRADE_FOLLOW};
use crate::values::{Digest, ImageReference, Version};

/// The name of the record in errors.
const WHAT: &str = "the record of the channel";
/// Limit on the record that init keeps, in bytes: 32 holds and a release.
const LARGEST: u64 = 1 << 20;

/// The record, shared by the sequence, the API and the pulls of images.
#[derive(Debug, Default)]
pub struct Follow {
    state: Mutex<State>,
    file: RecordFile,
    brought_file: RecordFile,
    wishes: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct State {
    record: Option<Record>,
    /// The image that is to be fetched.
    image: Option<ImageReference>,
    /// Where the record and what was brought are kept. `None` until [`Follow::open`] has set it.
    directory: Option<PathBuf>,
    /// Whether the list is to be asked for at once.
    look: bool,
    /// The lock that is being given back where the machine owes it.
    giving_back: Option<LockPlace>,
    /// The channel's files that a person has brought last, by a call or in a bundle.
    brought: Option<ChannelFiles>,
}

impl State {
    /// The path of a file, once there is a directory.
    fn file(&self, kind: StateFile) -> Option<PathBuf> {
        let directory = self.directory.as_ref()?;
        Some(directory.join(kind.name))
    }
}

impl Follow {
    /// The name under which init keeps the record.
    pub const NAME: &'static str = "upgrade-follow";

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.locked()
    }

    /// Keeps the record and the lists that persons brought in this directory from now on, and reads those that are there.
    pub fn open(&self, directory: &Path) -> anyhow::Result<()> {
        let record = whole_file::read_json(&directory.join(UPGRADE_FOLLOW.name));
        let brought = whole_file::read_json(&directory.join(CHANNEL_FILES.name));
        let mut state = self.lock();
        state.directory = Some(directory.to_owned());
        state.record = record?;
        state.brought = brought?;
        Ok(())
    }

    /// Takes up the record that the generation before left with init: it is at least as new as the one on STATE.
    pub fn adopt(&self, left: &OwnedFd) -> anyhow::Result<()> {
        let record = sealed_json::from_memfd(left, WHAT, LARGEST)?;
        self.lock().record = Some(record);
        Ok(())
    }

    /// Returns the record, if there is one.
    pub fn record(&self) -> Option<Record> {
        self.lock().record.clone()
    }

    /// Begins a record, or turns the one that there is to this channel and key. `identity` makes the machine's identity for a new one.
    pub fn begin(&self, source: &str, identity: impl FnOnce() -> String) {
        let mut state = self.lock();
        match &mut state.record {
            Some(record) if record.source == source => return,
            Some(record) => record.turn_to(source.to_owned()),
            none => *none = Some(Record::begin(source.to_owned(), identity())),
        }
        // It is of another channel, or by another key. Its file stays until something else is brought, and is of no use to this one either.
        state.brought = None;
    }

    /// Changes the record, and keeps it before it returns. `None`: the machine follows no channel.
    pub async fn change<T>(
        &self,
        init: &InitLink,
        change: impl FnOnce(&mut Record) -> T,
    ) -> Option<T> {
        let (outcome, changed) = {
            let mut state = self.lock();
            let record = state.record.as_mut()?;
            let before = record.clone();
            let outcome = change(record);
            (outcome, *record != before)
        };
        if changed {
            self.write(init).await;
        }
        Some(outcome)
    }

    /// Writes the record to STATE and to init. If that fails, it holds until machined ends.
    async fn write(&self, init: &InitLink) {
        let newest = || {
            let state = self.lock();
            (state.file(UPGRADE_FOLLOW), state.record.clone())
        };
        let loss = "what is known of the channel is kept in memory alone";
        self.file.write(UPGRADE_FOLLOW, loss, newest).await;
        let record = self.record();
        let kept = async {
            let memfd = sealed_json::to_memfd(Self::NAME, WHAT, &record.context("it is gone")?)?;
            init.keep(Self::NAME, Scope::Machine, &memfd).await
        };
        if let Err(error) = kept.await {
            tracing::warn!("init does not keep {WHAT}: {error:#}");
        }
    }

    /// The image that is to be fetched now.
    pub fn image(&self) -> Option<ImageReference> {
        self.lock().image.clone()
    }

    /// Sets the image that is to be fetched; returns whether it is another one.
    pub fn set_image(&self, image: Option<ImageReference>) -> bool {
        let mut state = self.lock();
        let changed = state.image != image;
        state.image = image;
        changed
    }

    /// Has the list asked for at once.
    pub fn ask_for_look(&self) {
        self.lock().look = true;
        self.wishes.send_replace(());
    }

    /// Keeps files of the channel that a person brings, and has the list looked for at once: they count as one more server.
    pub async fn bring(&self, files: ChannelFiles) {
        self.lock().brought = Some(files);
        let newest = || {
            let state = self.lock();
            (state.file(CHANNEL_FILES), state.brought.clone())
        };
        let loss = "the list that was brought is kept in memory alone";
        self.brought_file.write(CHANNEL_FILES, loss, newest).await;
        self.ask_for_look();
    }

    /// The files of the channel that were brought last.
    pub fn brought(&self) -> Option<ChannelFiles> {
        self.lock().brought.clone()
    }

    /// Whether a caller wants the list to be asked for. A second call says no.
    pub fn take_look(&self) -> bool {
        std::mem::take(&mut self.lock().look)
    }

    /// Approves the release with this digest that the machine goes to.
    ///
    /// # Errors
    /// The machine goes to another one or to none.
    pub async fn approve(&self, digest: Digest, init: &InitLink) -> anyhow::Result<()> {
        let approve = |record: &mut Record| match &mut record.stage {
            Stage::Target(target) if target.release.digest == digest => {
                target.approved = true;
                true
            }
            _ => false,
        };
        let approved = self.change(init, approve).await == Some(true);
        anyhow::ensure!(
            approved,
            "{digest} is not the release that this machine goes to"
        );
        self.wishes.send_replace(());
        Ok(())
    }

    /// Holds a release: the machine does not go to it.
    ///
    /// # Errors
    /// The machine follows no channel.
    pub async fn hold(
        &self,
        digest: Digest,
        version: Version,
        init: &InitLink,
    ) -> anyhow::Result<()> {
        let hold = Hold {
            digest,
            version,
            why: "a person holds it".to_owned(),
            until: None,
            has_failed: false,
            is_over: false,
        };
        let held = self.change(init, |record| record.hold_release(hold)).await;
        held.context("this machine follows no channel")?;
        self.wishes.send_replace(());
        Ok(())
    }

    /// Notes that a person goes back from the running release to another version. Does nothing if the machine follows no channel.
    pub async fn leave(&self, digest: Digest, version: Version, to: &str, init: &InitLink) {
        self.change(init, |record| record.leave(digest, version, to))
            .await;
    }

    /// Takes a hold back, also that of a release that has failed. Returns whether there was one.
    pub async fn release(&self, digest: Digest, init: &InitLink) -> bool {
        let release = |record: &mut Record| {
            let before = record.holds.len();
            record.holds.retain(|hold| hold.digest != digest);
            record.holds.len() < before
        };
        let was_held = self.change(init, release).await;
        self.wishes.send_replace(());
        was_held.unwrap_or(false)
    }

    /// Notes that the machine was asked to start again.
    pub async fn expect_start(&self, init: &InitLink) {
        self.change(init, Record::expect_start).await;
    }

    /// Owes the lock to where it is held, because the config names no channel any more.
    pub async fn leave_lock(&self, init: &InitLink) {
        self.change(init, Record::leave_lock).await;
        self.wishes.send_replace(());
    }

    /// Locks that the machine owes and may give back now.
    pub fn due_back(&self) -> Vec<OwedLock> {
        let state = self.lock();
        state
            .record
            .as_ref()
            .map_or_else(Vec::new, Record::due_back)
    }

    /// Notes that a lock is given back now; false if the machine does not owe it any more.
    pub fn begin_to_give_back(&self, at: &LockPlace) -> bool {
        let mut state = self.lock();
        let record = state.record.as_ref();
        let is_owed = record.is_some_and(|record| record.owed.iter().any(|owed| owed.at == *at));
        state.giving_back = is_owed.then(|| at.clone());
        is_owed
    }

    /// Whether this lock is being given back: who asks for it now might lose it at once.
    pub fn is_giving_back(&self, at: &LockPlace) -> bool {
        self.lock().giving_back.as_ref() == Some(at)
    }

    /// Notes the server's answer to a lock that was given back.
    pub async fn gave_back(&self, at: &LockPlace, is_taken: bool, init: &InitLink) -> Owes {
        let note = |record: &mut Record| record.gave_back(at, is_taken);
        let owes = self.change(init, note).await;
        self.lock().giving_back = None;
        owes.unwrap_or(Owes::Nothing)
    }

    /// Has the next step done at once.
    pub fn look_again(&self) {
        self.wishes.send_replace(());
    }

    /// Watches the wishes of callers.
    pub fn watch(&self) -> watch::Receiver<()> {
        self.wishes.subscribe()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn following() -> Follow {
        let follow = Follow::default();
        follow.begin("stable by a", || "me".to_owned());
        follow
    }

    fn change(follow: &Follow, change: impl FnOnce(&mut Record)) {
        change(follow.lock().record.as_mut().unwrap());
    }

    #[test]
    fn another_key_or_channel_keeps_what_is_known_of_releases() {
        let follow = following();
        let bad = Digest::of(b"bad");
        let hold = Hold {
            digest: bad,
            version: "v0.2.0".parse().unwrap(),
            why: "hangs".to_owned(),
            until: None,
            has_failed: true,
            is_over: false,
        };
        change(&follow, |record| record.hold_release(hold));
        for source in ["stable by b", "beta by b"] {
            follow.begin(source, || "another".to_owned());
            let record = follow.record().unwrap();
            let known = (record.source.as_str(), record.identity.as_str());
            assert_eq!(known, (source, "me"));
            assert!(record.hold(bad).is_some() && record.has_lock, "{source}");
        }
    }

    #[test]
    fn a_lock_is_given_back_where_it_is_owed_alone() {
        let (follow, at) = (
            following(),
            LockPlace {
                url: "https://lock.example".to_owned(),
                group: "drawer".to_owned(),
            },
        );
        assert!(!follow.begin_to_give_back(&at) && !follow.is_giving_back(&at));
        change(&follow, |record| {
            record.lock_at = Some(at.clone());
            record.leave_lock();
        });
        assert_eq!(follow.due_back()[0].at, at);
        assert!(follow.begin_to_give_back(&at) && follow.is_giving_back(&at));
        // Another address of the same group may be the same server's, which has one slot of it for this machine.
        change(&follow, |record| {
            record.has_lock = true;
            record.lock_at = Some(LockPlace {
                url: "https://10.0.0.1".to_owned(),
                ..at.clone()
            });
        });
        assert!(follow.due_back().is_empty());
    }
}
