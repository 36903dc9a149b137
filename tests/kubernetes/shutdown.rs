//! Before a machine reboots, kubelet ends its pods in order (graceful node shutdown), also those that need longer than containers of a machine.

use anyhow::ensure;
use instar_tests::{Greeter, Node, Outcome, Scratch, Test, chapters, tests};
use serde_json::Value;

use crate::PATIENCE;
use crate::cluster::Cluster;
use crate::manifests;
use crate::operator::Operator;
use crate::shown::{give_it_a_network, is_ended_by_kubelet, is_ready, tell_time};

pub(crate) fn tests() -> Vec<Test> {
    tests![a_reboot_waits_for_pods]
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

async fn wait_for_database(node: &Node, cluster: &Cluster) -> Outcome {
    node.wait_until("the database is ready", PATIENCE, async || {
        let shown = cluster.plane.kubectl().get(&["deployment", "database"])?;
        ensure!(shown["status"]["readyReplicas"] == 1, "{}", shown["status"]);
        Ok(())
    })
    .await
}
