//! The locks that delay a shutdown. Each is a pipe: its holder has one end, and closes it when the shutdown may go on.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard};

use anyhow::{Context as _, Result, ensure};
use instar_base::lock::Lock as _;
use tokio::net::unix::pipe;

/// Limit on locks at once. kubelet holds one.
const MOST: usize = 64;

/// The locks that are held; clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Locks(Arc<Mutex<Vec<Arc<pipe::Receiver>>>>);

impl Locks {
    /// Makes a lock, and returns the end for its holder.
    ///
    /// # Errors
    /// There are too many locks, or descriptors are used up.
    pub(crate) fn add(&self) -> Result<OwnedFd> {
        let mut held = self.open();
        ensure!(held.len() < MOST, "{MOST} locks are held already");
        let (sender, receiver) = pipe::pipe().context("cannot make a pipe")?;
        let end = sender.into_blocking_fd().context("cannot make a pipe")?;
        held.push(Arc::new(receiver));
        Ok(end)
    }

    /// The number of locks that are held.
    pub(crate) fn held(&self) -> usize {
        self.open().len()
    }

    /// Waits until all locks are closed that are held now.
    pub(crate) async fn all_closed(&self) {
        let held = self.open().clone();
        for lock in held {
            // An error is an end as well.
            let _ = closed(&lock).await;
        }
    }

    /// The locks whose holders have not closed them.
    fn open(&self) -> MutexGuard<'_, Vec<Arc<pipe::Receiver>>> {
        let mut held = self.0.locked();
        held.retain(|lock| is_held(lock));
        held
    }
}

/// Whether the other end is open. Its holder writes nothing.
fn is_held(lock: &pipe::Receiver) -> bool {
    !matches!(lock.try_read(&mut [0]), Ok(0))
}

async fn closed(lock: &pipe::Receiver) -> std::io::Result<()> {
    loop {
        lock.readable().await?;
        if !is_held(lock) {
            return Ok(());
        }
    }
}
