//! What machined keeps of upgrades while it runs: images that failed here, and the version that waits for a reboot.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard};

use super::failed::FailedImages;
use super::prepared::Prepared;
use crate::base::lock::Lock as _;
use crate::init_link::InitLink;

/// The state of upgrades, which every operation shares.
pub struct UpgradeState {
    failed: Mutex<FailedImages>,
    prepared: Mutex<Option<Prepared>>,
}

impl UpgradeState {
    /// Begins with the failures that the previous generation knew, and with the version in `kept`, which an earlier machined of this
    /// generation prepared and left with init.
    pub fn new(failed: FailedImages, kept: &mut BTreeMap<String, OwnedFd>) -> Self {
        UpgradeState {
            failed: Mutex::new(failed),
            prepared: Mutex::new(Prepared::adopt(kept)),
        }
    }

    /// The record of images that failed here.
    pub fn failed_images(&self) -> MutexGuard<'_, FailedImages> {
        self.failed.locked()
    }

    /// Has a version wait for a reboot into it, in the place of another one. init keeps it over a restart of machined.
    pub async fn set_prepared(&self, prepared: Prepared, init: &InitLink) {
        if let Err(error) = prepared.keep(init).await {
            tracing::warn!("the prepared version is lost should machined restart: {error:#}");
        }
        *self.lock_prepared() = Some(prepared);
    }

    /// Takes the version that waits for a reboot into it: the caller starts it.
    pub fn take_prepared(&self) -> Option<Prepared> {
        self.lock_prepared().take()
    }

    /// The bytes of memory that the waiting version takes.
    pub fn prepared_bytes(&self) -> u64 {
        self.lock_prepared().as_ref().map_or(0, Prepared::bytes)
    }

    /// Drops the version that waits for a reboot into it, if there is one.
    pub async fn forget_prepared(&self, init: &InitLink) {
        let Some(prepared) = self.take_prepared() else {
            return;
        };
        tracing::warn!("{} was prepared and goes", prepared.upgrade.to);
        if let Err(error) = Prepared::drop_kept(init).await {
            tracing::warn!("init holds on to the prepared version: {error:#}");
        }
    }

    fn lock_prepared(&self) -> MutexGuard<'_, Option<Prepared>> {
        self.prepared.locked()
    }
}
