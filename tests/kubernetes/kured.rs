//! The real kured: it sees that a reboot waits, cordons and drains the node, asks for the reboot, and lets pods come back.

use anyhow::{Context as _, ensure};
use instar_tests::{
    FollowedProgram, GREETER_PORT, Greeter, ImageUnderTest, Node, OciImage, Outcome, Scratch, Test,
    chapters, http, prepare_upgrade, push_kured, tests,
};
use serde_json::Value;

use crate::PATIENCE;
use crate::cluster::{Cluster, NAME};
use crate::manifests::{self, RebootBy};
use crate::operator::{Operator, it_is_told};
use crate::shown::{give_it_a_network, wait_for_os};

/// The file by which kured sees that a reboot waits, as a pod sees it.
const SENTINEL: &str = "/read/sentinel/reboot-required";
/// kured's lock: an annotation of its DaemonSet.
const LOCK: &str = "weave.works/kured-node-lock";

/// The version that gives itself up, and why.
const BROKEN: &str = "v0.3.0";
const REASON: &str = "the moon is full";

pub(crate) fn tests() -> Vec<Test> {
    tests![
        kured_reboots_into_a_prepared_version,
        kured_reboots_by_its_command,
        a_broken_version_costs_one_reboot,
    ]
}

async fn kured_reboots_into_a_prepared_version(scratch: Scratch) -> Outcome {
    let cluster = Cluster::start(&scratch)?;
    let node = cluster.plan_node(&scratch)?.boot().await?;
    let before = Before::of(&node, &cluster, RebootBy::Signal).await?;
    let mut seen = Seen::from_now_on(&cluster)?;
    chapters![
        no_reboot_is_required(&node),
        a_prepared_version_waits_for_a_reboot(&node, &cluster, "v0.2.0"),
        kured_locks_and_cordons(&mut seen),
        the_version_starts(&node, &cluster, &before),
        kured_uncordons_and_unlocks(&mut seen),
        pods_are_back_and_no_reboot_is_required(&node, &before),
    ]
    .await
}

/// The way that kured takes unless it is told otherwise.
async fn kured_reboots_by_its_command(scratch: Scratch) -> Outcome {
    let cluster = Cluster::start(&scratch)?;
    let node = cluster.plan_node(&scratch)?.boot().await?;
    let before = Before::of(&node, &cluster, RebootBy::Command).await?;
    chapters![
        a_prepared_version_waits_for_a_reboot(&node, &cluster, "v0.2.0"),
        the_version_starts(&node, &cluster, &before),
        pods_are_back_and_no_reboot_is_required(&node, &before),
    ]
    .await
}

/// kured asks for nothing but the file: if it came again after the failure, the node would be drained and rebooted for ever.
async fn a_broken_version_costs_one_reboot(scratch: Scratch) -> Outcome {
    let cluster = Cluster::start(&scratch)?;
    push_broken(&cluster, &scratch)?;
    let node = cluster.plan_node(&scratch)?.boot().await?;
    let before = Before::of(&node, &cluster, RebootBy::Signal).await?;
    let mut seen = Seen::from_now_on(&cluster)?;
    chapters![
        a_prepared_version_waits_for_a_reboot(&node, &cluster, BROKEN),
        kured_locks_and_cordons(&mut seen),
        the_node_goes_back_and_says_why(&node, &scratch),
        kured_uncordons_and_unlocks(&mut seen),
        pods_are_back_and_no_reboot_is_required(&node, &before),
        it_was_tried_once(&node, &scratch),
    ]
    .await
}

fn push_broken(cluster: &Cluster, scratch: &Scratch) -> Outcome {
    let broken = OciImage::read(&ImageUnderTest::second()?.installer())?;
    let broken = broken.first_layer_alone();
    let broken = broken.giving_up(scratch, BROKEN, REASON)?;
    broken.push(&cluster.registry, "instar/installer", BROKEN)?;
    Ok(())
}

/// The node with kured and another pod, before anything waits.
struct Before {
    node: Value,
    kernel: String,
    answerer: String,
}

impl Before {
    async fn of(node: &Node, cluster: &Cluster, way: RebootBy) -> anyhow::Result<Self> {
        node.wait_until("the node appears", PATIENCE, async || cluster.node())
            .await?;
        give_it_a_network(node, cluster).await?;
        apply(cluster, way)?;
        wait_for_rollout(node, cluster, &["deployment", "answerer"]).await?;
        let kured = ["daemonset", "kured", "-n", "kube-system"];
        wait_for_rollout(node, cluster, &kured).await?;
        Ok(Self {
            node: cluster.node()?,
            kernel: node.kernel_boot_id().await?,
            answerer: Greeter::of(node)?.get("/since")?,
        })
    }
}

/// Has the cluster run kured and another pod.
fn apply(cluster: &Cluster, way: RebootBy) -> Outcome {
    let kubectl = cluster.plane.kubectl();
    kubectl.apply("answerer", &manifests::answerer(&cluster.greeter()))?;
    let kured = push_kured(&cluster.registry)?;
    kubectl.apply(
        "kured",
        &manifests::kured(&kured, cluster.plane.port(), way),
    )
}

async fn wait_for_rollout(node: &Node, cluster: &Cluster, words: &[&str]) -> Outcome {
    node.wait_until("its pod is ready", PATIENCE, async || {
        let shown = cluster.plane.kubectl().get(words)?;
        let status = &shown["status"];
        let ready = [&status["numberReady"], &status["readyReplicas"]];
        ensure!(ready.into_iter().any(|ready| *ready == 1), "{status}");
        Ok(())
    })
    .await
}

/// The traces of kured's work in the cluster, line by line.
struct Seen {
    /// Whether the node is cordoned.
    node: FollowedProgram,
    /// kured's lock, with the node that holds it.
    lock: FollowedProgram,
}

impl Seen {
    fn from_now_on(cluster: &Cluster) -> anyhow::Result<Self> {
        let follow = |object: &[&str], field: &str| {
            let shown = format!("jsonpath={field}{{\"\\n\"}}");
            let words = [&["get", "--watch", "-o", &shown], object].concat();
            cluster.plane.kubectl().follow(&words)
        };
        Ok(Self {
            node: follow(&["node", NAME], "cordoned: {.spec.unschedulable}")?,
            lock: follow(
                &["daemonset", "kured", "-n", "kube-system"],
                "{.metadata.annotations}",
            )?,
        })
    }
}

async fn no_reboot_is_required(node: &Node) -> Outcome {
    ensure!(sentinel(node)?.is_none(), "the file is there");
    Ok(())
}

async fn a_prepared_version_waits_for_a_reboot(
    node: &Node,
    cluster: &Cluster,
    version: &str,
) -> Outcome {
    let image = cluster.registry.installer_for_guest(version);
    let prepared = prepare_upgrade(node, &image).await??;
    ensure!(prepared.exit_code == 0, "{prepared:#?}");
    let seen = node.wait_until("the file is there", PATIENCE, async || {
        sentinel(node)?.context("it is not there")
    });
    let seen = seen.await?;
    println!("{seen}");
    let words = format!("{version} is prepared");
    ensure!(seen.contains(&words), "{seen}");
    Ok(())
}

async fn kured_locks_and_cordons(seen: &mut Seen) -> Outcome {
    let is_locked = |line: &str| line.contains(LOCK) && line.contains(NAME);
    let locked = seen.lock.wait_for("kured's lock", PATIENCE, is_locked)?;
    println!("{locked}");
    let is_cordoned = |line: &str| line == "cordoned: true";
    seen.node.wait_for("the cordon", PATIENCE, is_cordoned)?;
    Ok(())
}

/// The prepared version starts without the kernel, and the node is the same object.
async fn the_version_starts(node: &Node, cluster: &Cluster, before: &Before) -> Outcome {
    wait_for_os(node, cluster, "v0.2.0").await?;
    let version = node.version().await?.tag;
    ensure!(version == "v0.2.0", "{version} runs");
    let kernel = node.kernel_boot_id().await?;
    ensure!(kernel == before.kernel, "the kernel was started anew");
    let shown = cluster.node()?;
    println!("{}", shown["status"]["nodeInfo"]);
    let same = shown["metadata"]["uid"] == before.node["metadata"]["uid"];
    ensure!(same, "it is another node: {shown:#}");
    Ok(())
}

async fn the_node_goes_back_and_says_why(node: &Node, scratch: &Scratch) -> Outcome {
    it_is_told(node, scratch, "upgrades", REASON).await?;
    let version = node.version().await?.tag;
    ensure!(version == "v0.1.0", "{version} runs");
    Ok(())
}

async fn it_was_tried_once(node: &Node, scratch: &Scratch) -> Outcome {
    let operator = Operator::of(node, scratch)?;
    let said = operator.run(&["get", "upgrades", "-o", "json"]).await?;
    let failures = said.output.matches("\"failed\"").count();
    ensure!(failures == 1, "{said:?}");
    Ok(())
}

async fn kured_uncordons_and_unlocks(seen: &mut Seen) -> Outcome {
    let is_uncordoned = |line: &str| line == "cordoned: ";
    (seen.node).wait_for("the end of the cordon", PATIENCE, is_uncordoned)?;
    let is_unlocked = |line: &str| !line.contains(LOCK);
    (seen.lock).wait_for("the end of the lock", PATIENCE, is_unlocked)?;
    println!("{:#?}", seen.lock.heard());
    Ok(())
}

async fn pods_are_back_and_no_reboot_is_required(node: &Node, before: &Before) -> Outcome {
    node.wait_until("the pod answers again", PATIENCE, async || {
        let answerer = Greeter::of(node)?.get("/since")?;
        ensure!(answerer != before.answerer, "it is the previous one");
        Ok(())
    })
    .await?;
    no_reboot_is_required(node).await
}

/// Reads the file by which kured sees that a reboot waits, in a pod.
fn sentinel(node: &Node) -> anyhow::Result<Option<String>> {
    let answer = http(&node.guest_port(GREETER_PORT)?, "GET", SENTINEL, &[], &[])?;
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    match answer.status {
        200 => Ok(Some(text)),
        404 => Ok(None),
        status => anyhow::bail!("{status}: {text}"),
    }
}
