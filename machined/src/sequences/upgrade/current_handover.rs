//! The hand-over for a machined that restarts: the machine config in force, and no upgrade that has ended.
//!
//! Without it, the restarted machined would return to the config that the last upgrade left, or, on a machine without a disk that got its
//! config over the API, to none at all: maintenance mode, in which any caller may bring one. Without the leases in it, it would write a
//! resolv.conf without resolvers and another hostname until a DHCP server answers.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::init_link::Scope;
use crate::machine::Machine;
use crate::network::{Lease, Ours};
use crate::upgrade::{Handover, ReleaseOrigin, handover};

/// Least time between two hand-overs that are left because the network has changed. A DHCP server may give leases of a few seconds.
const NETWORK_PAUSE: Duration = Duration::from_secs(10);

/// The task that keeps the hand-over up to date. It ends with this value if the generation does not prove itself.
pub(in crate::sequences) struct CurrentHandover {
    has_proved_itself: watch::Sender<bool>,
    task: AbortHandle,
}

impl CurrentHandover {
    /// Starts the task. `received`: the hand-over of the generation before. Until this generation has proved itself the task leaves that one
    /// again after each change of the network alone: whichever version comes next has to know what this one has set, to take it back. One that
    /// says that the upgrade was rolled back is left at once.
    pub(in crate::sequences) fn start(machine: &Arc<Machine>, received: Option<Handover>) -> Self {
        let (has_proved_itself, mut proof) = watch::channel(false);
        let machine = machine.clone();
        let task = crate::base::task::spawn(async move {
            if let Some(received) = received {
                keep_received(&machine, &received, &mut proof).await;
            }
            if is_proved(&mut proof).await {
                keep(machine).await;
            }
        });
        Self {
            has_proved_itself,
            task: task.abort_handle(),
        }
    }

    /// From now on the hand-over is that of this generation.
    pub(in crate::sequences) fn prove(&self) {
        self.has_proved_itself.send_replace(true);
    }

    /// Leaves what the network has set up to now to the version before, which takes it back.
    pub(in crate::sequences) async fn give_up(&self, machine: &Machine, received: &Handover) {
        // What it is about to leave is older.
        self.task.abort();
        leave_received(machine, received).await;
    }
}

/// Leaves the hand-over that was received after each change of the network, until the generation has proved itself.
async fn keep_received(machine: &Machine, received: &Handover, proof: &mut watch::Receiver<bool>) {
    let mut network =
        NetworkChanges::new(machine.network.watch_leases(), machine.network.watch_ours());
    if received.rolled_back {
        leave_received(machine, received).await;
    }
    loop {
        tokio::select! {
            _ = is_proved(proof) => return,
            () = network.next() => leave_received(machine, received).await,
        }
    }
}

/// Waits until the generation has proved itself; false once it is given up.
async fn is_proved(proof: &mut watch::Receiver<bool>) -> bool {
    proof.wait_for(|proved| *proved).await.is_ok()
}

async fn leave_received(machine: &Machine, received: &Handover) {
    let left = Handover {
        leases: machine.network.leases(),
        network: Some(machine.network.ours()),
        ..received.clone()
    };
    if let Err(error) = leave(machine, &left).await {
        tracing::warn!("the next version may leave parts of this one's network: {error:#}");
    }
}

/// Leaves the hand-over with init after every sequence and every change of the config: all of these hold the lock of operations. Also after every
/// change of the images in force, of their updates, of pins, and of the network's leases and of what it has set.
async fn keep(machine: Arc<Machine>) {
    let mut holder = machine.operations.watch();
    let mut in_force = machine.images_in_force.watch();
    let (mut updates, mut pins) = (machine.image_updates.watch(), machine.pins.watch());
    let mut network =
        NetworkChanges::new(machine.network.watch_leases(), machine.network.watch_ours());
    loop {
        if holder.wait_for(Option::is_none).await.is_err() {
            return;
        }
        if let Err(error) = leave_own(&machine).await {
            tracing::warn!("a machined that is started again finds an older config: {error:#}");
        }
        tokio::select! {
            changed = holder.changed() => if changed.is_err() { return },
            // These senders live in the machine.
            _ = in_force.changed() => {}
            _ = updates.changed() => {}
            _ = pins.changed() => {}
            () = network.next() => {}
        }
    }
}

/// The changes of the network that a hand-over has to follow.
struct NetworkChanges {
    leases: watch::Receiver<Vec<Lease>>,
    ours: watch::Receiver<Ours>,
    /// The time before which no change is told.
    earliest: Instant,
}

impl NetworkChanges {
    fn new(leases: watch::Receiver<Vec<Lease>>, ours: watch::Receiver<Ours>) -> Self {
        let mut changes = Self {
            leases,
            ours,
            earliest: Instant::now(),
        };
        changes.take_as_seen();
        changes
    }

    /// Waits for a change. All changes up to now are one.
    async fn next(&mut self) {
        tokio::time::sleep_until(self.earliest).await;
        let changed = tokio::select! {
            changed = self.leases.changed() => changed,
            changed = self.ours.changed() => changed,
        };
        if changed.is_err() {
            // The network's task has ended, so nothing changes any more.
            std::future::pending::<()>().await;
        }
        self.take_as_seen();
        self.earliest = Instant::now() + NETWORK_PAUSE;
    }

    fn take_as_seen(&mut self) {
        self.leases.mark_unchanged();
        self.ours.mark_unchanged();
    }
}

async fn leave_own(machine: &Machine) -> anyhow::Result<()> {
    // A config on trial is left out. What it has set in the network is in the list: the settled config undoes it.
    let configured = machine.settled_config();
    let left = of(
        machine,
        configured.map(|configured| configured.text.clone()),
    );
    leave(machine, &left).await
}

async fn leave(machine: &Machine, left: &Handover) -> anyhow::Result<()> {
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
        leases: machine.network.leases(),
        network: Some(machine.network.ours()),
        failed: machine.upgrades.failed_images().clone(),
        floor: machine.upgrades.floor(),
        origin: machine.store.get(ReleaseOrigin::RUNNING),
        images_in_force: machine.images_in_force.settled(),
        image_updates: machine.image_updates.all(),
        pins: machine.pins.record(),
        images_checked: machine.images.checked(),
        own_certificates: machine.own_certificates.borrow().clone(),
        pinned_key: machine.pinned_key.borrow().clone(),
        granted_certificate: machine.granted_certificate.borrow().clone(),
        ..Handover::default()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::network::{CleanupPolicy, Network, Options};
    use crate::sequences::image_pins::machine_for_tests::unbooted;

    const LEASE: &str = r#"{"link":"eth0","mac":"52:54:00:00:00:02","address":"10.0.2.15/24","server":"10.0.2.2",
        "gateways":["10.0.2.2"],"classless_routes":[],"resolvers":["10.0.2.3"],"domain":null,"time_servers":[],
        "hostname":"node-7","mtu":null,"obtained":100,"renew_after":1800,"rebind_after":3150,"lifetime":3600}"#;
    const OURS: &str =
        r#"{"addresses":[["eth0","10.0.2.15/24"]],"routes":[],"mtus":{"eth0":1500}}"#;

    #[tokio::test]
    async fn what_is_left_has_the_leases_and_what_the_network_has_set() {
        let directory = tempfile::tempdir().unwrap();
        let mut machine = unbooted(directory.path()).await;
        let leases: Vec<Lease> = vec![serde_json::from_str(LEASE).unwrap()];
        let ours: Ours = serde_json::from_str(OURS).unwrap();
        let options = Options {
            etc: directory.path().join("etc"),
            cleanup: CleanupPolicy::Keep,
            ours: ours.clone(),
            ..Options::default()
        };
        // Without a spec the network changes nothing.
        let network = Network::start(options, None, leases.clone()).unwrap();
        Arc::get_mut(&mut machine).unwrap().network = network;

        let left = of(&machine, None).to_memfd().unwrap();
        let read = Handover::from_memfd(&left).unwrap();
        assert_eq!((read.leases, read.network), (leases, Some(ours)));
    }

    async fn is_silent(changes: &mut NetworkChanges) -> bool {
        let told = tokio::time::timeout(NETWORK_PAUSE * 9, changes.next());
        told.await.is_err()
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_of_the_network_is_told_at_once_and_the_next_ones_after_a_pause() {
        let (leases, leases_seen) = watch::channel(Vec::new());
        let (ours, ours_seen) = watch::channel(Ours::default());
        let mut changes = NetworkChanges::new(leases_seen, ours_seen);
        assert!(is_silent(&mut changes).await);

        // Both in one reconciliation are one change.
        ours.send_replace(serde_json::from_str(OURS).unwrap());
        leases.send_replace(vec![serde_json::from_str(LEASE).unwrap()]);
        let begin = Instant::now();
        changes.next().await;
        assert_eq!(begin.elapsed(), Duration::ZERO);

        leases.send_replace(Vec::new());
        ours.send_replace(Ours::default());
        changes.next().await;
        let pause = begin.elapsed();
        assert!((NETWORK_PAUSE..NETWORK_PAUSE * 2).contains(&pause));
        assert!(is_silent(&mut changes).await);

        // The network's task has ended.
        drop((leases, ours));
        assert!(is_silent(&mut changes).await);
    }
}
