//! Keeps the record of a machine that follows a channel: on STATE, and with init for machines without a disk, whose upgrades without a
//! reboot would lose it otherwise.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use anyhow::Context as _;
use instar_channel::ChannelFiles;
use tokio::sync::watch;

use super::standing::{Hold, Record, Stage};
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

    /// Begins a record, unless there is one of this channel and key. `identity` makes the machine's identity for a new one.
    pub fn begin(&self, source: &str, identity: impl FnOnce() -> String) {
        let mut state = self.lock();
        if state.record.as_ref().is_none_or(|it| it.source != source) {
            state.record = Some(Record::begin(source.to_owned(), identity()));
            // It is of another channel. Its file stays until something else is brought, and is of no use to this one either.
            state.brought = None;
        }
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

    /// Has the next step done at once.
    pub fn look_again(&self) {
        self.wishes.send_replace(());
    }

    /// Watches the wishes of callers.
    pub fn watch(&self) -> watch::Receiver<()> {
        self.wishes.subscribe()
    }
}
