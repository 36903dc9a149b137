//! A database on a node's disk: upgrades of both kinds replace the OS under it, and no row that it has confirmed is lost.

use anyhow::{Context as _, ensure};
use instar_tests::{
    Committed, Database, Identity, Instarctl, Node, Outcome, RowWriter, Scratch, Test, chapters,
    push_postgresql, tests,
};

use crate::cluster::Cluster;
use crate::manifests;
use crate::shown::{give_it_a_network, tell_time, wait_for_os, wait_until_ready};
use crate::{LIFETIME, START};

/// PostgreSQL's port on its node.
const PORT: u16 = 5432;
/// The number of upgrades without `INSTAR_UPGRADES`: two without a reboot, two by one.
const UPGRADES: u32 = 4;
/// The versions that take turns.
const VERSIONS: [&str; 2] = ["v0.2.0", "v0.1.0"];

pub(crate) fn tests() -> Vec<Test> {
    tests![confirmed_rows_survive_upgrades]
}

async fn confirmed_rows_survive_upgrades(scratch: Scratch) -> Outcome {
    let cluster = Cluster::start(&scratch)?;
    let node = install(&cluster, &scratch).await?;
    let database = Database::at(&node.guest_port(PORT)?)?;
    chapters![
        postgresql_runs(&node, &cluster, &database),
        its_rows_survive(&node, &cluster, &scratch, &database),
    ]
    .await
}

fn upgrades() -> anyhow::Result<u32> {
    match std::env::var("INSTAR_UPGRADES") {
        Ok(number) => number.parse().context("INSTAR_UPGRADES is no number"),
        Err(_) => Ok(UPGRADES),
    }
}

async fn install(cluster: &Cluster, scratch: &Scratch) -> anyhow::Result<Node> {
    // Its certificate is the authority's: one that is known by its fingerprint alone would be another one after a reboot.
    let identity = Identity::administrator()?;
    let life = LIFETIME * (1 + upgrades()? / 20);
    let plan = cluster.plan_installation(scratch, identity, life)?;
    let node = plan.forward(PORT).start()?;
    node.wait_until_installed("v0.1.0", START).await?;
    Ok(node)
}

async fn postgresql_runs(node: &Node, cluster: &Cluster, database: &Database) -> Outcome {
    node.wait_until("the node appears", START, async || cluster.node())
        .await?;
    give_it_a_network(node, cluster).await?;
    let image = push_postgresql(&cluster.registry)?;
    let manifest = manifests::postgresql(&image);
    cluster.plane.kubectl().apply("postgresql", &manifest)?;
    let answers = async || database.has_table();
    node.wait_until("PostgreSQL has a table", START, answers)
        .await?;
    tell_time(node, "PostgreSQL has a table").await
}

/// Every second upgrade is by a reboot, the others are under the running server.
async fn its_rows_survive(
    node: &Node,
    cluster: &Cluster,
    scratch: &Scratch,
    database: &Database,
) -> Outcome {
    let rows = RowWriter::start(database.clone());
    writes_on(node, &rows).await?;
    for (turn, version) in (0..upgrades()?).zip(VERSIONS.iter().cycle()) {
        let by_reboot = turn % 2 == 1;
        let before = rows.committed();
        upgrade(node, cluster, scratch, version, by_reboot).await?;
        writes_on(node, &rows).await?;
        let after = rows.committed();
        println!("upgrade {turn} to {version}: {}", told(&after));
        let is_undisturbed = after.connections == before.connections;
        ensure!(is_undisturbed || by_reboot, "the connection was lost");
        after.are_in(database)?;
    }
    Ok(())
}

fn told(rows: &Committed) -> String {
    let (count, connections, gap) = (rows.count(), rows.connections, rows.longest_gap);
    format!("{count} rows over {connections} connections, {gap:?} without one at most")
}

/// Upgrades the node, and waits until it is ready with the version.
async fn upgrade(
    node: &Node,
    cluster: &Cluster,
    scratch: &Scratch,
    version: &str,
    by_reboot: bool,
) -> Outcome {
    let image = cluster.registry.installer_for_guest(version);
    let kernel = node.kernel_boot_id().await?;
    let words = ["upgrade", "--image", &image];
    let reboot = ["--reboot-mode", "powercycle"];
    let more: &[&str] = if by_reboot { &reboot } else { &[] };
    let client = Instarctl::of(node, scratch)?;
    let said = client.run(&[&words, more].concat()).await?;
    ensure!(said.code == Some(0), "{said:?}");
    let rebooted = node.kernel_boot_id().await? != kernel;
    ensure!(rebooted == by_reboot, "whether it rebooted: {rebooted}");
    wait_for_os(node, cluster, version).await?;
    wait_until_ready(node, cluster).await
}

/// Waits until a row is confirmed that is younger than this call.
async fn writes_on(node: &Node, rows: &RowWriter) -> Outcome {
    let before = rows.committed().count();
    node.wait_until("another row is confirmed", START, async || {
        let now = rows.committed().count();
        ensure!(now > before, "{now} rows");
        Ok(())
    })
    .await
}
