//! The hand-over for a machined that restarts: the machine config in force, and no upgrade that has ended.
//!
//! Without it, the restarted machined would return to the config that the last upgrade left, or, on a machine without a disk that got its
//! config over the API, to none at all: maintenance mode, in which any caller may bring one.

use std::sync::Arc;

use anyhow::Context as _;

use crate::init_link::Scope;
use crate::machine::Machine;
use crate::upgrade::{Handover, ReleaseOrigin, handover};

/// Leaves the hand-over with init after every sequence and every change of the config, from the moment at which the generation has proved
/// itself: all of these hold the lock of operations. Also after every change of the images in force, of their updates, and of pins.
pub(in crate::sequences) async fn keep(machine: Arc<Machine>) {
    let mut holder = machine.operations.watch();
    let mut in_force = machine.images_in_force.watch();
    let (mut updates, mut pins) = (machine.image_updates.watch(), machine.pins.watch());
    loop {
        if holder.wait_for(Option::is_none).await.is_err() {
            return;
        }
        if let Err(error) = leave(&machine).await {
            tracing::warn!("a machined that is started again finds an older config: {error:#}");
        }
        tokio::select! {
            changed = holder.changed() => if changed.is_err() { return },
            // These senders live in the machine.
            _ = in_force.changed() => {}
            _ = updates.changed() => {}
            _ = pins.changed() => {}
        }
    }
}

async fn leave(machine: &Machine) -> anyhow::Result<()> {
    // A config on trial is left out. The network's leases are in force already when machined alone restarts.
    let configured = machine.settled_config();
    let left = of(
        machine,
        configured.map(|configured| configured.text.clone()),
    );
    let memfd = left.to_memfd()?;
    let kept = machine
        .init
        .keep(handover::NAME, Scope::Machine, &memfd)
        .await;
    kept.context("leave the hand-over with init")
}

/// Returns all that a generation leaves at any time, with this machine config: an upgrade adds what is true of it alone.
pub(super) fn of(machine: &Machine, machine_config: Option<String>) -> Handover {
    Handover {
        machine_config,
        failed: machine.upgrades.failed_images().clone(),
        floor: machine.upgrades.floor(),
        origin: machine.store.get(ReleaseOrigin::RUNNING),
        images_in_force: machine.images_in_force.all(),
        image_updates: machine.image_updates.all(),
        pins: machine.pins.record(),
        images_checked: machine.images.checked(),
        own_certificates: machine.own_certificates.borrow().clone(),
        pinned_key: machine.pinned_key.borrow().clone(),
        granted_certificate: machine.granted_certificate.borrow().clone(),
        ..Handover::default()
    }
}
