//! A pool of five nodes: a bad version stops after the first; a good one goes from node to node while machines leave, come back and lose their power,
//! while the API server is restarted, and while one operator takes another one's place.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::ensure;
use instar_tests::{Outcome, RolloutTimes, Scratch, chapters};

use super::eventually;
use super::fleet::{BROKEN, Fleet, REASON, the_engine_comes_to_the_same_actions};

const FIVE: [&str; 5] = ["worker-1", "worker-2", "worker-3", "worker-4", "worker-5"];
/// The machine that leaves the pool before its turn.
const LEAVES: &str = "worker-4";
/// The machine whose power is cut before its turn.
const LOSES_POWER: &str = "worker-5";

pub(super) async fn five_nodes_are_upgraded_while_machines_come_and_go(
    scratch: Scratch,
) -> Outcome {
    let mut fleet = Fleet::start_with(&scratch, &FIVE).await?;
    chapters![
        a_bad_version_stops_after_the_first(&fleet),
        they_go_one_by_one_while_all_changes(&mut fleet, &scratch),
        the_one_that_left_comes_back(&fleet),
        five_take_little_longer_than_their_upgrades(&fleet),
        the_engine_comes_to_the_same_actions(&fleet),
    ]
    .await
}

async fn a_bad_version_stops_after_the_first(fleet: &Fleet) -> Outcome {
    fleet.roll(&fleet.image(BROKEN), "")?;
    fleet.told("Halted", REASON).await?;
    for name in &FIVE[1..] {
        let upgrade = format!("lab.{name}.1");
        fleet.wait_for_phase(&upgrade, "Waiting").await?;
    }
    all_run(fleet, "v0.1.0").await
}

/// The number of this rollout is 2. The machine without power has booted again before its turn, and is upgraded as the others are.
async fn they_go_one_by_one_while_all_changes(fleet: &mut Fleet, scratch: &Scratch) -> Outcome {
    fleet.roll(&fleet.image("v0.2.0"), "")?;
    fleet.wait_for_phase("lab.worker-1.2", "Upgrading").await?;
    fleet.turn_the_last_off_and_on()?;
    let kubectl = fleet.cluster.plane.kubectl();
    kubectl.run(&["label", "node", LEAVES, "rack-"])?;
    fleet.wait_for_phase("lab.worker-2.2", "Upgrading").await?;
    fleet.restart_api_server()?;
    fleet.wait_for_phase("lab.worker-3.2", "Upgrading").await?;
    fleet.restart_operator(scratch, "second")?;
    fleet.told("Done", "4 of 4 nodes run v0.2.0").await?;
    fleet.wait_for_label(LOSES_POWER, "v0.2.0").await?;
    fleet.wait_for_label(LEAVES, "v0.1.0").await?;
    fleet.never_two_at_once(&["worker-1", "worker-2", "worker-3", LOSES_POWER])
}

async fn the_one_that_left_comes_back(fleet: &Fleet) -> Outcome {
    let kubectl = fleet.cluster.plane.kubectl();
    let began = Instant::now();
    kubectl.run(&["label", "node", LEAVES, "rack=r1"])?;
    fleet.told("Done", "5 of 5 nodes run v0.2.0").await?;
    println!("{LEAVES} alone took {:.1?}", began.elapsed());
    fleet.print(&["get", "nodeupgrades"])?;
    fleet.never_two_at_once(&FIVE)?;
    all_run(fleet, "v0.2.0").await
}

/// From the change of the pool on, which brings another image of the same version, until the last node has proved it: at most a fifth longer than the
/// upgrades of the nodes, each from its turn to its proof. Nothing else happens meanwhile.
async fn five_take_little_longer_than_their_upgrades(fleet: &Fleet) -> Outcome {
    let image = fleet.push_another()?;
    let asked = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    fleet.roll(&image, "")?;
    let kubectl = fleet.cluster.plane.kubectl();
    let times = eventually("all five have the other image", || {
        let pool = kubectl.get(&["pool", "lab"])?;
        let record = &pool["status"]["rollout"]["record"];
        let times = RolloutTimes::of_record(record, asked)?;
        ensure!(times.machines() == FIVE.len(), "{times}");
        Ok(times)
    })
    .await?;
    println!("{times}");
    times.take_little_longer_than_upgrades()
}

/// All nodes run the version, and none is cordoned.
async fn all_run(fleet: &Fleet, version: &str) -> Outcome {
    for name in FIVE {
        fleet.wait_for_label(name, version).await?;
        fleet.wait_until_uncordoned(name).await?;
        eventually(&format!("{name} is ready"), || {
            ensure!(fleet.is_ready(name)?, "it is not ready");
            Ok(())
        })
        .await?;
    }
    Ok(())
}
