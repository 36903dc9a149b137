//! A node with one gibibyte of memory: what it needs beside kubelet and containerd, and twenty pods that live through an upgrade of the OS.

use anyhow::{Context as _, ensure};
use instar_tests::{Ending, Node, Outcome, Scratch, Test, chapters, tests, upgrade_and_follow};

use crate::cluster::Cluster;
use crate::kept::Watch;
use crate::operator::Operator;
use crate::shown::{it_joins_and_runs_pods, tell_time, wait_for_os, wait_for_pods};
use crate::{PATIENCE, START, manifests};

/// The node's memory.
const MEMORY_MIB: u32 = 1024;
/// The pods `server`, `beat`, `peer` and `holder` come on top.
const PODS: u32 = 16;
/// The most memory that the OS and the kernel may use beside the programs of Kubernetes. The goal is 40 MB.
const OWN_KIB: u64 = 80_000;
/// Parts of it, as the kernel names them.
const PARTS: [&str; 7] = [
    "AnonPages:",
    "Shmem:",
    "SUnreclaim:",
    "KernelStack:",
    "PageTables:",
    "Percpu:",
    "VmallocUsed:",
];
/// The programs of Kubernetes, and of its pods.
const OTHERS: [&str; 5] = [
    "kubelet",
    "containerd",
    "containerd-shim",
    "runc",
    "greeter",
];

pub(crate) fn tests() -> Vec<Test> {
    tests![twenty_pods_run_on_a_gibibyte]
}

async fn twenty_pods_run_on_a_gibibyte(scratch: Scratch) -> Outcome {
    let cluster = Cluster::start(&scratch)?;
    let plan = cluster.plan_node(&scratch)?.memory_mib(MEMORY_MIB);
    let node = plan.boot().await?;
    chapters![
        it_joins_and_runs_pods(&node, &cluster),
        the_os_needs_little_memory(&node),
        twenty_pods_run(&node, &cluster),
        a_pod_holds_a_connection_to_another(&node, &cluster, &scratch),
        the_os_is_upgraded_under_all_of_them(&node, &cluster),
        no_process_was_ended_for_want_of_memory(&node),
    ]
    .await
}

/// Memory that the kernel cannot have back by dropping caches, without that of Kubernetes and of pods.
async fn the_os_needs_little_memory(node: &Node) -> Outcome {
    let (used, others) = (used_kib(node).await?, others_kib(node).await?);
    let own = used.saturating_sub(others);
    println!("{used} KiB are used, {others} KiB by Kubernetes and its pods: {own} KiB by the OS");
    ensure!(own <= OWN_KIB, "{own} KiB");
    Ok(())
}

async fn used_kib(node: &Node) -> anyhow::Result<u64> {
    let memory = node.read("/proc/meminfo").await?;
    for part in PARTS {
        println!("{part} {} KiB", kib(&memory, part)?);
    }
    let mut used = kib(&memory, "MemTotal:")? + kib(&memory, "Shmem:")?;
    for free in ["MemFree:", "Buffers:", "Cached:", "SReclaimable:"] {
        used = used.saturating_sub(kib(&memory, free)?);
    }
    Ok(used)
}

/// The memory of the programs of Kubernetes and of its pods. Code that two of them share counts once.
async fn others_kib(node: &Node) -> anyhow::Result<u64> {
    let listed = node.machine().await?.processes(()).await?.into_inner();
    let mut sum = 0;
    for process in listed.messages.iter().flat_map(|of| &of.processes) {
        let is_other = OTHERS.iter().any(|name| process.command.starts_with(name));
        // One that has ended meanwhile uses nothing.
        let path = format!("/proc/{}/smaps_rollup", process.pid);
        if is_other && let Ok(held) = node.read(&path).await {
            let part = kib(&held, "Pss_Anon:")?;
            println!("{} {}: {part} KiB", process.pid, process.command);
            sum += part;
        }
    }
    ensure!(sum > 0, "no process of Kubernetes: {listed:?}");
    Ok(sum)
}

/// The KiB after a key.
fn kib(text: &str, key: &str) -> anyhow::Result<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    let number = line.and_then(|rest| rest.split_whitespace().next());
    let number = number.with_context(|| format!("no {key} in {text}"))?;
    Ok(number.parse()?)
}

async fn twenty_pods_run(node: &Node, cluster: &Cluster) -> Outcome {
    let kubectl = cluster.plane.kubectl();
    kubectl.apply("many", &manifests::many(&cluster.greeter(), PODS))?;
    node.wait_until("all pods are ready", START, async || {
        let shown = kubectl.get(&["deployment", "many"])?;
        let status = &shown["status"];
        ensure!(status["readyReplicas"] == PODS, "{status}");
        Ok(())
    })
    .await?;
    println!("{} KiB are used", used_kib(node).await?);
    tell_time(node, "its pods are ready").await
}

/// The pod ends when it loses the connection, which shows as a restart.
async fn a_pod_holds_a_connection_to_another(
    node: &Node,
    cluster: &Cluster,
    scratch: &Scratch,
) -> Outcome {
    let (kubectl, image) = (cluster.plane.kubectl(), cluster.greeter());
    kubectl.apply("peer", &manifests::peer(&image))?;
    wait_for_pods(node, cluster, &["peer"]).await?;
    let peer = cluster.pod("peer")?;
    let address = peer["status"]["podIP"].as_str().context("no address")?;
    kubectl.apply("holder", &manifests::holder(&image, address))?;
    wait_for_pods(node, cluster, &["holder"]).await?;
    let logs = ["logs", "-k", "default/holder:holder"];
    let operator = Operator::of(node, scratch)?;
    node.wait_until("the pods are connected", PATIENCE, async || {
        let said = operator.run(&logs).await?;
        ensure!(said.output.contains("holds a connection"), "{said:?}");
        Ok(())
    })
    .await
}

/// No container restarts, the connections live, and the node is ready all the time.
async fn the_os_is_upgraded_under_all_of_them(node: &Node, cluster: &Cluster) -> Outcome {
    let watch = Watch::start(node, cluster)?;
    let image = cluster.registry.installer_for_guest("v0.2.0");
    let followed = upgrade_and_follow(node, &image, START).await?;
    ensure!(followed.ending == Ending::Done, "{followed:#?}");
    wait_for_os(node, cluster, "v0.2.0").await?;
    let states = watch.end()?;
    let was_ready = states.iter().all(|state| state.starts_with("True "));
    ensure!(was_ready, "{states:#?}");
    Ok(())
}

async fn no_process_was_ended_for_want_of_memory(node: &Node) -> Outcome {
    let counters = node.read("/proc/vmstat").await?;
    let ended = counters.lines().find(|line| line.starts_with("oom_kill "));
    ensure!(ended == Some("oom_kill 0"), "{ended:?}");
    Ok(())
}
