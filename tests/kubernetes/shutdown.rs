//! Before a machine reboots, kubelet ends its pods in order (graceful node shutdown), also those that need longer than containers of a machine; and an
//! upgrade by a reboot keeps the node away for no longer than a plain reboot does.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use instar_tests::{Greeter, Identity, Instarctl, Node, Outcome, Scratch, Test, chapters, tests};
use serde_json::Value;

use crate::cluster::Cluster;
use crate::manifests;
use crate::operator::Operator;
use crate::shown::{give_it_a_network, is_ended_by_kubelet, is_ready, tell_time};
use crate::times_of_ready::TimesOfReady;
use crate::{LIFETIME, PATIENCE, START};

/// The time by which an upgrade may be longer than a reboot: its first boot has more to do.
const MORE: Duration = Duration::from_secs(1);
/// The times of the condition are whole seconds, so each of two differences may be off by one.
const ROUNDED: Duration = Duration::from_secs(2);
/// The versions that the node is upgraded to, one after the other.
const VERSIONS: [&str; 2] = ["v0.2.0", "v0.1.0"];

pub(crate) fn tests() -> Vec<Test> {
    tests![
        a_reboot_waits_for_pods,
        an_upgrade_keeps_the_node_away_no_longer_than_a_reboot
    ]
}

async fn a_reboot_waits_for_pods(scratch: Scratch) -> Outcome {
    let cluster = Cluster::start(&scratch)?;
    let node = cluster.plan_node(&scratch)?.boot().await?;
    chapters![
        a_database_runs(&node, &cluster),
        it_ends_in_order_before_the_reboot(&node, &cluster, &scratch),
        one_pod_has_taken_its_place(&node, &cluster),
    ]
    .await
}

async fn a_database_runs(node: &Node, cluster: &Cluster) -> Outcome {
    node.wait_until("the node appears", PATIENCE, async || cluster.node())
        .await?;
    give_it_a_network(node, cluster).await?;
    let kubectl = cluster.plane.kubectl();
    kubectl.apply("database", &manifests::database(&cluster.greeter()))?;
    wait_for_database(node, cluster).await?;
    let ends = Greeter::of(node)?.get("/list/data")?;
    ensure!(ends.is_empty(), "{ends}");
    Ok(())
}

async fn it_ends_in_order_before_the_reboot(
    node: &Node,
    cluster: &Cluster,
    scratch: &Scratch,
) -> Outcome {
    let before = cluster.node()?;
    let operator = Operator::of(node, scratch)?;
    let said = operator.run(&["reboot", "--no-wait"]).await?;
    ensure!(said.code == Some(0), "{said:?}");
    is_back(node, cluster, &before).await?;
    tell_time(node, "it is ready again").await
}

/// Waits until the same node is ready in another boot.
async fn is_back(node: &Node, cluster: &Cluster, before: &Value) -> Outcome {
    let boot = |node: &Value| node["status"]["nodeInfo"]["bootID"].clone();
    node.wait_until("the node is ready again", PATIENCE, async || {
        let shown = cluster.node()?;
        let is_another = boot(&shown) != boot(before);
        ensure!(is_another && is_ready(&shown), "{}", shown["status"]);
        let same = shown["metadata"]["uid"] == before["metadata"]["uid"];
        ensure!(same, "it is another node: {shown:#}");
        Ok(())
    })
    .await
}

async fn one_pod_has_taken_its_place(node: &Node, cluster: &Cluster) -> Outcome {
    wait_for_database(node, cluster).await?;
    let ends = Greeter::of(node)?.get("/read/data/ends")?;
    println!("{ends}");
    ensure!(ends == "ended in order\n", "{ends}");
    let of_machine = node.read("/var/mnt/database/ends").await?;
    ensure!(of_machine == ends, "{of_machine}");
    let of_database = ["pods", "-l", "app=database"];
    let pods = cluster.plane.kubectl().get(&of_database)?;
    let pods = pods["items"].as_array().into_iter().flatten();
    let (old, new): (Vec<&Value>, Vec<_>) = pods.partition(|pod| is_ended_by_kubelet(pod));
    ensure!(new.len() == 1 && old.len() == 1, "{new:#?}\n{old:#?}");
    Ok(())
}

async fn an_upgrade_keeps_the_node_away_no_longer_than_a_reboot(scratch: Scratch) -> Outcome {
    let cluster = Cluster::start(&scratch)?;
    let plan = cluster.plan_installation(&scratch, Identity::administrator()?, LIFETIME)?;
    let node = plan.start()?;
    node.wait_until_installed("v0.1.0", START).await?;
    let away = Away(&node, &cluster, &scratch);
    chapters![
        a_database_is_deployed(&away),
        both_take_the_same_time(&away),
    ]
    .await
}

/// A node whose absences are measured, its cluster and the folder of its client.
struct Away<'a>(&'a Node, &'a Cluster, &'a Scratch);

async fn a_database_is_deployed(Away(node, cluster, _): &Away<'_>) -> Outcome {
    node.wait_until("the node appears", START, async || cluster.node())
        .await?;
    give_it_a_network(node, cluster).await?;
    let manifest = manifests::database(&cluster.greeter());
    cluster.plane.kubectl().apply("database", &manifest)?;
    wait_for_database(node, cluster).await?;
    // Before that an upgrade does not wait for kubelet, and the node begins only once the version is committed.
    let kept = "the node is ready with its extensions, which are kept";
    node.wait_for_line(kept, PATIENCE).map(drop)
}

/// The shorter of two absences of each kind, as a host that others share adds to each. A reboot that does not count comes first: the emulator's firmware
/// takes five seconds in it and fifteen to twenty in each one after it.
async fn both_take_the_same_time(away: &Away<'_>) -> Outcome {
    away.over(&["reboot"]).await?;
    let (mut reboots, mut upgrades) = (Vec::new(), Vec::new());
    for version in VERSIONS {
        reboots.push(away.over(&["reboot"]).await?);
        let image = away.1.registry.installer_for_guest(version);
        let upgrade = ["upgrade", "--image", &image, "--reboot-mode", "powercycle"];
        upgrades.push(away.over(&upgrade).await?);
    }
    println!("not ready over reboots: {reboots:?}, over upgrades by a reboot: {upgrades:?}");
    let shortest = |times: &[Duration]| times.iter().min().copied().context("no time");
    let (reboot, upgrade) = (shortest(&reboots)?, shortest(&upgrades)?);
    ensure!(upgrade <= reboot + MORE + ROUNDED);
    Ok(())
}

impl Away<'_> {
    /// How long the cluster does not call the node ready over one command of its operator.
    async fn over(&self, command: &[&str]) -> anyhow::Result<Duration> {
        let Self(node, cluster, scratch) = *self;
        end_back_off_of_network(cluster)?;
        let before = cluster.node()?;
        let times = TimesOfReady::start(cluster)?;
        let said = Instarctl::of(node, scratch)?.run(command).await?;
        ensure!(said.code == Some(0), "{said:?}");
        is_back(node, cluster, &before).await?;
        wait_for_database(node, cluster).await?;
        times.away()
    }
}

/// The DaemonSet's controller waits twice as long for each pod of a node that failed, and each shutdown fails two: the one that ends, and the one that comes
/// in its place too early. Without this each absence would be longer than the one before. A new generation of the DaemonSet begins with one second.
fn end_back_off_of_network(cluster: &Cluster) -> Outcome {
    for rollout in [&["restart"][..], &["status", "--timeout=120s"]] {
        let command = [
            &["rollout"],
            rollout,
            &["daemonset/network", "-n", "kube-system"],
        ];
        cluster.plane.kubectl().run(&command.concat())?;
    }
    Ok(())
}

async fn wait_for_database(node: &Node, cluster: &Cluster) -> Outcome {
    node.wait_until("the database is ready", PATIENCE, async || {
        let shown = cluster.plane.kubectl().get(&["deployment", "database"])?;
        ensure!(shown["status"]["readyReplicas"] == 1, "{}", shown["status"]);
        Ok(())
    })
    .await
}
