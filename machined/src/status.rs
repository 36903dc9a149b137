//! The machine's readiness: compares the config with the facts in the store.

use std::sync::Arc;

use crate::kubernetes::KubernetesFact;
use crate::machine::Machine;
use crate::network::NetworkStatus;
use crate::services::Phase;
use crate::store::{ClockFact, MachineStage, MachineStatus, NetworkFact, Problem};

/// Keeps stage and readiness of a booted machine up to date, until a sequence takes the machine down.
pub async fn follow(machine: Arc<Machine>) {
    let mut changes = machine.store.watch();
    loop {
        // A sequence that ends the machine sets the stage itself.
        if matches!(
            machine.status().stage,
            MachineStage::Booting | MachineStage::Running | MachineStage::Maintenance
        ) {
            machine.set_status(assess(&machine));
        }
        // A lag only means that many facts have changed.
        let _ = changes.recv().await;
    }
}

/// Waits in maintenance mode until there is a config.
pub async fn maintenance(machine: &Arc<Machine>) {
    let mut config = machine.watch_config();
    while config.borrow_and_update().is_none() {
        machine.set_status(assess(machine));
        if config.changed().await.is_err() {
            return;
        }
    }
    // The problem of the last config does not apply to this one.
    machine.store.remove::<Problem>("config");
}

/// Returns the stage, and the conditions of the config that are not met.
pub fn assess(machine: &Machine) -> MachineStatus {
    let mut unmet: Vec<(String, String)> = machine
        .store
        .list::<Problem>()
        .into_iter()
        .map(|(about, problem)| (about.id, problem.reason))
        .collect();
    if machine.config().is_none() {
        let advice = machine.maintenance().borrow().advice();
        unmet.push((
            "config".to_owned(),
            format!("there is no machine config; {advice}"),
        ));
        return MachineStatus {
            stage: MachineStage::Maintenance,
            ready: false,
            unmet,
        };
    }
    let network: NetworkFact = machine.store.get("status").unwrap_or_default();
    if !network.address_ready {
        unmet.push(("network".to_owned(), "no link has an address".to_owned()));
    }
    for service in machine.services.list() {
        let status = service.status();
        // A service that was stopped over the API is in its desired state.
        if !status.is_up() && status.phase != Phase::Finished {
            unmet.push(("services".to_owned(), service.summary()));
        }
    }
    let nodes = machine.store.list::<KubernetesFact>().into_iter();
    let of_nodes = nodes.filter_map(|(_, node)| node.unmet());
    unmet.extend(of_nodes.map(|why| (MachineStatus::KUBERNETES.to_owned(), why)));
    MachineStatus {
        stage: MachineStage::Running,
        ready: unmet.is_empty(),
        unmet,
    }
}

/// Notes a problem that keeps the machine from being ready.
pub fn note_problem(machine: &Machine, about: &str, reason: &str) {
    machine.store.put(
        about,
        Problem {
            reason: reason.to_owned(),
        },
    );
}

/// Publishes the network's state for as long as it is watched.
pub fn follow_network(machine: &Arc<Machine>) {
    let (store, mut status) = (machine.store.clone(), machine.network.status());
    crate::base::task::spawn(async move {
        loop {
            let fact = network_fact(&status.borrow_and_update());
            store.put("status", fact);
            if status.changed().await.is_err() {
                return;
            }
        }
    });
}

fn network_fact(status: &NetworkStatus) -> NetworkFact {
    NetworkFact {
        address_ready: status.address_ready,
        connectivity_ready: status.connectivity_ready,
        hostname_ready: !status.hostname.is_empty(),
        etc_files_ready: status.etc_files_ready,
    }
}

/// Publishes the clock's state for as long as it is watched.
pub fn follow_clock(machine: &Arc<Machine>) {
    let (store, mut status) = (machine.store.clone(), machine.clock.status());
    crate::base::task::spawn(async move {
        loop {
            let fact = {
                let status = status.borrow_and_update();
                ClockFact {
                    synced: status.synced,
                    sync_disabled: status.disabled,
                }
            };
            store.put("node", fact);
            if status.changed().await.is_err() {
                return;
            }
        }
    });
}
