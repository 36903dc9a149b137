//! machined's state of upgrades while it runs: images that failed here, the floor, and the version that is prepared for a reboot.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use super::failed::FailedImages;
use super::floor::{Floor, FloorInForce, UnreadFloor};
use super::handover::PendingUpgrade;
use super::prepared::Prepared;
use crate::base::lock::Lock as _;
use crate::init_link::InitLink;
use crate::values::Digest;

/// The state of upgrades; all operations share it.
pub struct UpgradeState {
    failed: Mutex<FailedImages>,
    floor: Mutex<Option<Floor>>,
    unread_floor: Mutex<Option<UnreadFloor>>,
    prepared: Mutex<Option<Prepared>>,
    is_rollback: AtomicBool,
    /// Images of versions that wait for their start, each with the fingerprint of a key that has signed it.
    signed: Mutex<BTreeSet<(Digest, Digest)>>,
}

impl UpgradeState {
    /// Starts with the failures and the floor that the previous generation knew, and with the version in `kept`, which an earlier machined
    /// of this generation prepared and left with init.
    pub fn new(
        failed: FailedImages,
        floor: Option<Floor>,
        kept: &mut BTreeMap<String, OwnedFd>,
    ) -> Self {
        UpgradeState {
            failed: Mutex::new(failed),
            floor: Mutex::new(floor),
            unread_floor: Mutex::default(),
            prepared: Mutex::new(Prepared::adopt(kept)),
            is_rollback: AtomicBool::new(false),
            signed: Mutex::default(),
        }
    }

    /// Notes that the running version was started because another one was given up.
    pub fn note_rollback(&self) {
        self.is_rollback.store(true, Ordering::Relaxed);
    }

    /// Whether the running version was started because another one was given up.
    pub fn is_rollback(&self) -> bool {
        self.is_rollback.load(Ordering::Relaxed)
    }

    /// Returns the images that failed here.
    pub fn failed_images(&self) -> MutexGuard<'_, FailedImages> {
        self.failed.locked()
    }

    /// Forgets that an image failed here, so that it may be tried again. Returns whether it had.
    pub fn forgive(&self, digest: &str) -> bool {
        let mut failed = self.failed.locked();
        let had_failed = failed.reason(digest).is_some();
        failed.forget(digest);
        had_failed
    }

    /// Returns the machine's floor, if a release has set one.
    pub fn floor(&self) -> Option<Floor> {
        self.floor.locked().clone()
    }

    /// Returns the floor that upgrades and rollbacks are judged by.
    pub fn floor_in_force(&self) -> FloorInForce {
        FloorInForce {
            known: self.floor(),
            unread: self.unread_floor.locked().clone(),
        }
    }

    /// Notes whether the machine's record of the floor cannot be read.
    pub fn note_unread_floor(&self, unread: Option<UnreadFloor>) {
        *self.unread_floor.locked() = unread;
    }

    /// Raises the floor to this one, if that is higher; returns the new floor if it rose.
    pub fn raise_floor(&self, to: Option<Floor>) -> Option<Floor> {
        let mut floor = self.floor.locked();
        let higher = Floor::higher(floor.clone(), to);
        let rose = higher != *floor;
        floor.clone_from(&higher);
        higher.filter(|_| rose)
    }

    /// Notes that the key of this fingerprint has signed an image, as its registry shows: a reboot does not ask again.
    pub fn note_signed(&self, image: Digest, key: Digest) {
        self.signed.locked().insert((image, key));
    }

    /// Whether that was noted.
    pub fn is_signed(&self, image: Digest, key: Digest) -> bool {
        self.signed.locked().contains(&(image, key))
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

    /// Returns the upgrade that the next reboot starts, if one is prepared.
    pub fn prepared_upgrade(&self) -> Option<PendingUpgrade> {
        let prepared = self.lock_prepared();
        prepared.as_ref().map(|prepared| prepared.upgrade.clone())
    }

    /// Returns the version that the next reboot starts, if one is prepared.
    pub fn prepared_version(&self) -> Option<String> {
        Some(self.prepared_upgrade()?.to)
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
