//! machined's state of upgrades while it runs: images that failed here, and the version that is prepared for a reboot.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard};

use super::failed::FailedImages;
use super::prepared::Prepared;
use crate::base::lock::Lock as _;
use crate::init_link::InitLink;

/// The state of upgrades; all operations share it.
pub struct UpgradeState {
    failed: Mutex<FailedImages>,
    prepared: Mutex<Option<Prepared>>,
}

impl UpgradeState {
    /// Starts with the failures that the previous generation knew, and with the version in `kept`, which an earlier machined of this
    /// generation prepared and left with init.
    pub fn new(failed: FailedImages, kept: &mut BTreeMap<String, OwnedFd>) -> Self {
        UpgradeState {
            failed: Mutex::new(failed),
            prepared: Mutex::new(Prepared::adopt(kept)),
        }
    }

    /// Returns the images that failed here.
    pub fn failed_images(&self) -> MutexGuard<'_, FailedImages> {
        self.failed.locked()
    }

    /// Sets the version that the next reboot starts, in place of another one. init keeps it over a restart of machined.
    pub async fn set_prepared(&self, prepared: Prepared, init: &InitLink) {
        if let Err(error) = prepared.keep(init).await {
            tracing::warn!("the prepared version is lost should machined restart: {error:#}");
        }
        *self.lock_prepared() = Some(prepared);
    }

    /// Takes the prepared version; the caller starts it.
    pub fn take_prepared(&self) -> Option<Prepared> {
        self.lock_prepared().take()
    }

    /// Returns the size of the prepared version in memory, in bytes.
    pub fn prepared_bytes(&self) -> u64 {
        self.lock_prepared().as_ref().map_or(0, Prepared::bytes)
    }

    /// Drops the prepared version, if there is one.
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
