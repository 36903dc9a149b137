//! The cost of an upgrade for a cluster, beside the real system-upgrade-controller on the same control plane: requests to the API server, bytes to
//! etcd, and memory. The nodes are objects alone, with simulated machines and kubelets behind them.

mod bed;

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use instar_tests::{
    FleetOperator, Outcome, Scratch, Test, UpgradeController, UpgradeCost, UpgradeMeter,
    cost_table, tests,
};

use self::bed::Bed;

/// The numbers of nodes, unless [`NODES`] has others.
const SIZES: &str = "100";
/// The variable with other numbers, as in `100,1000`.
const NODES: &str = "INSTAR_NODES";
/// Nodes that are upgraded at once, by either program.
const AT_ONCE: usize = 10;
/// The programs, as the table names them, and the users that they are for the API server.
const OPERATOR: (&str, &str) = (
    "instar-operator",
    "system:serviceaccount:instar-system:instar-operator",
);
const CONTROLLER: (&str, &str) = (
    "system-upgrade-controller",
    "system:serviceaccount:system-upgrade:system-upgrade",
);
/// The operator's requests for each node that are promised, and its memory.
const REQUESTS: f64 = 20.0;
const MEMORY_MIB: u64 = 150;
/// Timeout for a node to be upgraded, with those before it.
const PER_NODE: Duration = Duration::from_secs(6);
/// Timeout for anything else.
const PATIENCE: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(500);

pub(crate) fn tests() -> Vec<Test> {
    tests![upgrades_cost_a_cluster_little]
}

async fn upgrades_cost_a_cluster_little(scratch: Scratch) -> Outcome {
    let sizes = sizes()?;
    let most = sizes.iter().max().copied().unwrap_or_default();
    let mut bed = Bed::start(&scratch, most)?;
    let mut costs = Vec::new();
    for (round, size) in sizes.into_iter().enumerate() {
        bed.grow(size)?;
        costs.push(by_a_plan(&bed, &scratch, round).await?);
        costs.push(by_a_pool(&bed, &scratch, round).await?);
        println!("{}", cost_table(&costs));
    }
    let mut own = costs.iter().filter(|cost| cost.program == OPERATOR.0);
    own.try_for_each(|cost| cost.is_at_most(REQUESTS, MEMORY_MIB))
}

fn sizes() -> anyhow::Result<Vec<usize>> {
    let text = std::env::var(NODES).unwrap_or(SIZES.to_owned());
    let sizes = text.split(',').map(|size| size.trim().parse());
    let sizes: Result<Vec<usize>, _> = sizes.collect();
    let sizes = sizes.with_context(|| format!("{NODES} is not like 100,1000"))?;
    let grows = sizes.is_sorted_by(|one, next| one < next) && !sizes.contains(&0);
    ensure!(grows, "{NODES} has to grow from number to number");
    Ok(sizes)
}

/// The version that a round goes to. Each node goes to another one than it runs.
fn version(round: usize) -> String {
    format!("v0.{}.0", round + 2)
}

async fn by_a_plan(bed: &Bed, scratch: &Scratch, round: usize) -> anyhow::Result<UpgradeCost> {
    let controller = UpgradeController::start(&bed.plane, scratch, &format!("plan-{round}"))?;
    let kind = || bed.show_plans().map(drop);
    within(PATIENCE, "the controller makes its kind", kind).await?;
    let kubelets = bed.end_the_pods_of_jobs();
    let (name, user) = CONTROLLER;
    let meter = UpgradeMeter::start(&bed.plane, user)?;
    bed.plan(&version(round))?;
    let is_complete = || bed.is_the_plan_complete();
    within(bed.patience(), "the plan is carried out", is_complete).await?;
    let cost = meter.end(name, bed.nodes(), controller.memory()?)?;
    drop(controller);
    let ended = kubelets.ended();
    ensure!(ended >= bed.nodes(), "{ended} pods ended");
    bed.forget_the_plan().await?;
    Ok(cost)
}

async fn by_a_pool(bed: &Bed, scratch: &Scratch, round: usize) -> anyhow::Result<UpgradeCost> {
    let name = format!("pool-{round}");
    let way = bed.client_config()?;
    let operator = FleetOperator::start_as_built_for_its_image(&bed.plane, scratch, &name, &way)?;
    within(PATIENCE, "the operator drives", || drives(&operator)).await?;
    let (name, user) = OPERATOR;
    let meter = UpgradeMeter::start(&bed.plane, user)?;
    let version = version(round);
    bed.pool(&version)?;
    let is_done = || bed.is_the_pool_done(&version);
    within(bed.patience(), "all nodes run it", is_done).await?;
    let cost = meter.end(name, bed.nodes(), operator.memory()?)?;
    operator.kill();
    bed.forget_the_pool()?;
    Ok(cost)
}

fn drives(operator: &FleetOperator) -> Outcome {
    let log = operator.log()?;
    ensure!(log.contains("has the lease"), "it has no lease: {log}");
    Ok(())
}

/// Waits for this long at most, and says why it waited in vain.
async fn within(limit: Duration, what: &str, look: impl Fn() -> Outcome) -> Outcome {
    let until = Instant::now() + limit;
    while let Err(error) = look() {
        if Instant::now() > until {
            return Err(error).with_context(|| format!("not seen in time: {what}"));
        }
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}
