//! A node starts again with what it has: after a reboot and after a power cut, while no registry answers and no publisher of its extensions.

use anyhow::ensure;
use instar_tests::{
    Greeter, Node, Outcome, Scratch, Test, chapters, extension_file, sha256_digest, tests,
};
use serde_json::Value;

use crate::PATIENCE;
use crate::cluster::{Cluster, Extension};
use crate::kept::Kept;
use crate::operator::{Operator, apply, it_is_told};
use crate::publisher::Publisher;
use crate::shown::{
    is_ended_by_kubelet, is_ready, it_joins_and_runs_pods, run_pods, tell_time, wait_for_pods,
};
use crate::start_times::NextStart;

pub(crate) fn tests() -> Vec<Test> {
    tests![
        starts_again_from_what_it_has,
        joins_after_a_power_cut_while_it_joins
    ]
}

/// The pods of the node.
const PODS: [&str; 2] = ["server", "beat"];

async fn starts_again_from_what_it_has(scratch: Scratch) -> Outcome {
    let cluster = Cluster::start(&scratch)?;
    let publisher = Publisher::start()?;
    let files = [
        publisher.publish("containerd")?,
        publisher.publish("kubernetes")?,
    ];
    let node = cluster.plan_node_with(&scratch, &files)?.boot().await?;
    chapters![
        extensions_come_as_files(&node, &cluster),
        another_file_than_the_config_names_is_refused(&node, &cluster, &publisher, &scratch),
        the_right_digest_ends_the_failure(&node, &cluster, &files, &scratch),
        after_a_reboot_the_node_is_back(&node, &cluster, publisher, &scratch),
        after_a_power_cut_the_node_is_back(node, &cluster),
    ]
    .await
}

/// kubelet has written its certificate and key, and flushed neither: they are empty after the cut.
async fn joins_after_a_power_cut_while_it_joins(scratch: Scratch) -> Outcome {
    let cluster = Cluster::start(&scratch)?;
    let node = cluster.plan_node(&scratch)?.boot().await?;
    node.wait_until("the node appears", PATIENCE, async || cluster.node())
        .await?;
    let node = node.power_cycle().await?;
    it_joins_and_runs_pods(&node, &cluster).await
}

async fn extensions_come_as_files(node: &Node, cluster: &Cluster) -> Outcome {
    it_joins_and_runs_pods(node, cluster).await?;
    Greeter::of(node)?.greets()
}

/// Both digests are told: that of the config and that of the file. What runs goes on.
async fn another_file_than_the_config_names_is_refused(
    node: &Node,
    cluster: &Cluster,
    publisher: &Publisher,
    scratch: &Scratch,
) -> Outcome {
    let before = Kept::of(node, cluster)?;
    let found = sha256_digest(&extension_file("kubernetes")?);
    let wanted = sha256_digest(b"another file");
    let mistaken = publisher.with_digest("kubernetes", &wanted)?;
    apply(node, cluster, scratch, &[mistaken]).await?;
    let words = format!("its digest is {found}, and not {wanted}");
    it_is_told(node, scratch, "extensions", &words).await?;
    let after = Kept::of(node, cluster)?;
    ensure!(before == after, "{before:#?} became {after:#?}");
    Ok(())
}

async fn the_right_digest_ends_the_failure(
    node: &Node,
    cluster: &Cluster,
    files: &[Extension],
    scratch: &Scratch,
) -> Outcome {
    let before = Kept::of(node, cluster)?;
    apply(node, cluster, scratch, files).await?;
    let operator = Operator::of(node, scratch)?;
    let shown = node.wait_until("no failure is told", PATIENCE, async || {
        let shown = operator.run(&["get", "extensions", "-o", "yaml"]).await?;
        ensure!(!shown.output.contains("and not sha256:"), "{shown:?}");
        Ok(shown.output)
    });
    println!("{}", shown.await?);
    let after = Kept::of(node, cluster)?;
    ensure!(before == after, "{before:#?} became {after:#?}");
    Ok(())
}

/// Neither the registry nor the publisher of the extensions answers from now on.
async fn after_a_reboot_the_node_is_back(
    node: &Node,
    cluster: &Cluster,
    publisher: Publisher,
    scratch: &Scratch,
) -> Outcome {
    let before = Start::of(node, cluster)?;
    let start = NextStart::watch(node, cluster)?;
    cluster.registry.freeze()?;
    drop(publisher);
    let operator = Operator::of(node, scratch)?;
    let said = operator.run(&["reboot", "--no-wait"]).await?;
    ensure!(said.code == Some(0), "{said:?}");
    println!("{}", start.times(node).await?);
    before.is_followed_by_another(node, cluster).await?;
    its_user_brings_the_pods_back(node, cluster).await
}

async fn its_user_brings_the_pods_back(node: &Node, cluster: &Cluster) -> Outcome {
    // kubelet ended the previous pods for good, as nothing brings them back but their user.
    for name in PODS {
        let pod = cluster.pod(name)?;
        ensure!(is_ended_by_kubelet(&pod), "{}", pod["status"]);
        let words = ["delete", "pod", name];
        cluster.plane.kubectl().run(&words)?;
    }
    run_pods(node, cluster).await
}

async fn after_a_power_cut_the_node_is_back(node: Node, cluster: &Cluster) -> Outcome {
    let before = Start::of(&node, cluster)?;
    let node = node.power_cycle().await?;
    before.is_followed_by_another(&node, cluster).await?;
    before.pods_run_again(&node, cluster).await
}

/// One start of the node, as its cluster and its pod `server` tell of it.
struct Start {
    node: Value,
    server: String,
}

impl Start {
    fn of(node: &Node, cluster: &Cluster) -> anyhow::Result<Self> {
        Ok(Self {
            node: cluster.node()?,
            server: Greeter::of(node)?.get("/since")?,
        })
    }

    /// Waits for the next start of the same node.
    async fn is_followed_by_another(&self, node: &Node, cluster: &Cluster) -> Outcome {
        node.wait_until("the node is ready again", PATIENCE, async || {
            let shown = cluster.node()?;
            let boot = |node: &Value| node["status"]["nodeInfo"]["bootID"].clone();
            let is_another = boot(&shown) != boot(&self.node);
            ensure!(is_another && is_ready(&shown), "{}", shown["status"]);
            let same = shown["metadata"]["uid"] == self.node["metadata"]["uid"];
            ensure!(same, "it is another node: {shown:#}");
            Ok(())
        })
        .await?;
        tell_time(node, "it is ready again").await
    }

    async fn pods_run_again(self, node: &Node, cluster: &Cluster) -> Outcome {
        node.wait_until("the pod answers again", PATIENCE, async || {
            let server = Greeter::of(node)?.get("/since")?;
            ensure!(server != self.server, "it is the previous one");
            Ok(())
        })
        .await?;
        wait_for_pods(node, cluster, &PODS).await
    }
}
