//! Tests of an Instar machine as a node of a real Kubernetes cluster: one file per area.
//!
//! `make test-kubernetes` builds and runs all of them; as with `tests/e2e`, words behind `--test kubernetes --` select some.

// A panic is how a test fails.
#![allow(clippy::unwrap_used, clippy::panic)]

mod asked_api_server;
mod cluster;
mod cluster_api;
mod control_plane;
mod cordons;
mod dns_question;
mod fleet_lock;
mod followed;
mod kept;
mod kured;
mod manifests;
mod manifests_of_config;
mod node;
mod node_upgrades;
mod operator;
mod operator_pods;
mod own_cluster;
mod pool_page;
mod postgresql;
mod publisher;
mod recovery;
mod restart;
mod shown;
mod shutdown;
mod single_machine;
mod small_node;
mod start_times;
mod system_upgrade_controller;
mod times_of_ready;
mod upgrade_costs;
mod watched_node;

use std::process::ExitCode;
use std::time::Duration;

use instar_tests::Test;

/// Timeout for any step of the cluster or the node, on a host that runs others too.
const PATIENCE: Duration = Duration::from_secs(180);
/// Timeout for a step of a machine that is a whole cluster: it pulls and unpacks 300 MB, and under emulation on a host that runs others too each step takes
/// minutes.
const START: Duration = Duration::from_secs(900);
/// The time after which a machine is killed.
const LIFETIME: Duration = Duration::from_secs(3600);

fn main() -> ExitCode {
    let areas = machines().into_iter().chain(controllers());
    instar_tests::run(areas.flatten().collect())
}

/// Tests of a machine as a node, and as a cluster of its own.
fn machines() -> [Vec<Test>; 10] {
    [
        control_plane::tests(),
        followed::tests(),
        manifests_of_config::tests(),
        node::tests(),
        postgresql::tests(),
        recovery::tests(),
        restart::tests(),
        shutdown::tests(),
        single_machine::tests(),
        small_node::tests(),
    ]
}

/// Tests of programs of a cluster, and of fleets beside it, that act on machines.
fn controllers() -> [Vec<Test>; 8] {
    [
        cluster_api::tests(),
        fleet_lock::tests(),
        kured::tests(),
        node_upgrades::tests(),
        operator_pods::tests(),
        pool_page::tests(),
        system_upgrade_controller::tests(),
        upgrade_costs::tests(),
    ]
}
