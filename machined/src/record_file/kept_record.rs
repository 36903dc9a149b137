//! A record that a part of the machine shares: it is in memory, watchers are told of its changes, and it has a file once there is a directory.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use super::RecordFile;
use crate::base::lock::Lock as _;
use crate::base::whole_file;
use crate::state_partition::StateFile;

/// The record; clones share it.
#[derive(Debug, Default)]
pub struct KeptRecord<T> {
    shared: Arc<Shared<T>>,
}

#[derive(Debug, Default)]
struct Shared<T> {
    content: Mutex<T>,
    /// None until [`open`](KeptRecord::open) has set a directory. Locked by who holds the content, and nobody else.
    path: Mutex<Option<PathBuf>>,
    file: RecordFile,
    changes: watch::Sender<()>,
}

impl<T> Clone for KeptRecord<T> {
    fn clone(&self) -> Self {
        KeptRecord {
            shared: self.shared.clone(),
        }
    }
}

impl<T> KeptRecord<T> {
    /// Locks the record. Who changes it tells of it, and writes it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.shared.content.locked()
    }

    /// Keeps the record in this directory from now on. `take` takes in one that is there already: it is newer than a handed-over one.
    ///
    /// # Errors
    /// The one that is there cannot be read.
    pub fn open<R: DeserializeOwned>(
        &self,
        kind: StateFile,
        directory: &Path,
        take: impl FnOnce(&mut T, R),
    ) -> anyhow::Result<()> {
        let path = directory.join(kind.name);
        let read = whole_file::read_json(&path);
        let content = &mut *self.lock();
        *self.shared.path.locked() = Some(path);
        if let Some(read) = read? {
            take(content, read);
        }
        Ok(())
    }

    /// Tells watchers of a change.
    pub fn tell(&self) {
        self.shared.changes.send_replace(());
    }

    /// Returns a receiver that is notified about every change.
    pub fn watch(&self) -> watch::Receiver<()> {
        self.shared.changes.subscribe()
    }

    /// Writes the file, in the form that `written` returns. If that fails, the record holds until machined ends, and the log has `loss`.
    pub async fn write<R: Serialize + Send + 'static>(
        &self,
        kind: StateFile,
        loss: &'static str,
        written: impl FnOnce(&T) -> R,
    ) {
        let newest = || {
            let content = &*self.lock();
            let path = self.shared.path.locked().clone();
            (path, written(content))
        };
        self.shared.file.write(kind, loss, newest).await;
    }
}
