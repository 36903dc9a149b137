//! A machine that is a cluster loses etcd's data, and the cluster comes back from a snapshot: on the same machine, and on a new one.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use instar_tests::{Greeter, Node, Outcome, Release, Scratch, Talosctl, Test, chapters, tests};
use serde_json::Value;

use crate::START;
use crate::manifests;
use crate::own_cluster::{Host, Own};
use crate::shown::{is_ready, tell_time};

/// An object whose value tells the state of a cluster.
const NOTE: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: note}\ndata: {at: before}\n";
const LATER: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: note}\ndata: {at: after}\n";

pub(crate) fn tests() -> Vec<Test> {
    tests![a_cluster_comes_back_from_a_snapshot]
}

async fn a_cluster_comes_back_from_a_snapshot(scratch: Scratch) -> Outcome {
    let host = Host::start(&scratch).await?;
    let node = host.plan(&scratch)?.boot().await?;
    let own = Own::of(&node, &scratch)?;
    let snapshot = Snapshot::in_folder(&scratch)?;
    chapters![
        a_cluster_has_pods_and_a_note(&own, &node, &host),
        etcd_tells_how_it_is(&own),
        a_snapshot_is_taken(&own, &snapshot),
        a_cluster_that_runs_is_not_replaced(&own, &snapshot),
        its_data_are_lost(&own, &node),
        files_that_are_no_snapshot_change_nothing(&own, &node, &snapshot),
        it_comes_back(&own, &node, &snapshot),
        it_comes_back_on_a_new_machine(node, &host, &scratch, &snapshot),
    ]
    .await
}

/// The file of a snapshot, and files that are none.
struct Snapshot {
    folder: Scratch,
    file: PathBuf,
}

impl Snapshot {
    fn in_folder(scratch: &Scratch) -> anyhow::Result<Self> {
        Ok(Self {
            folder: scratch.clone(),
            file: scratch.join("snapshot.db"),
        })
    }

    /// Writes a file with other bytes.
    fn like_it(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) -> anyhow::Result<PathBuf> {
        let mut bytes = std::fs::read(&self.file)?;
        change(&mut bytes);
        self.folder.write(name, bytes)
    }
}

fn text(path: &Path) -> anyhow::Result<&str> {
    path.to_str().context("a path that is no text")
}

async fn a_cluster_has_pods_and_a_note(own: &Own, node: &Node, host: &Host) -> Outcome {
    it_has_no_cluster(own, node).await?;
    own.run(&["bootstrap"]).await?;
    own.run(&["kubeconfig", text(&own.kubeconfig)?]).await?;
    node.wait_until("its API takes objects", START, async || {
        let network = manifests::network(&host.greeter());
        own.kubectl()?.apply("network", &network)
    })
    .await?;
    let pods = manifests::own_cluster(&host.greeter());
    own.kubectl()?.apply("pods", &pods)?;
    own.kubectl()?.apply("note", NOTE)?;
    its_pods_answer(own, node, "it has pods").await
}

async fn its_pods_answer(own: &Own, node: &Node, moment: &str) -> Outcome {
    node.wait_until("the node is ready", START, async || {
        let shown = own.node()?;
        ensure!(is_ready(&shown), "{}", shown["status"]["conditions"]);
        Ok(())
    })
    .await?;
    let greets = async || Greeter::of(node)?.greets();
    let answers = node.wait_until("the Deployment answers", START, greets);
    answers.await?;
    tell_time(node, moment).await
}

async fn etcd_tells_how_it_is(own: &Own) -> Outcome {
    let status = own.run(&["etcd", "status"]).await?;
    ensure!(status.contains("3.7.3"), "{status}");
    println!("{status}");
    let alarms = own.run(&["etcd", "alarm", "list"]).await?;
    ensure!(alarms.lines().count() == 1, "{alarms}");
    own.run(&["etcd", "alarm", "disarm"]).await?;
    own.run(&["etcd", "defrag"]).await.map(drop)
}

async fn a_snapshot_is_taken(own: &Own, snapshot: &Snapshot) -> Outcome {
    own.run(&["etcd", "snapshot", text(&snapshot.file)?])
        .await?;
    // Gone with the data, as whatever comes after a snapshot.
    own.kubectl()?.apply("note", LATER)
}

async fn a_cluster_that_runs_is_not_replaced(own: &Own, snapshot: &Snapshot) -> Outcome {
    refused(own, &snapshot.file, "its etcd answers").await?;
    ensure!(note(own)? == "after");
    Ok(())
}

async fn refused(own: &Own, file: &Path, words: &str) -> Outcome {
    let bootstrap = ["bootstrap", "--recover-from", text(file)?];
    let said = own.client.run(&bootstrap).await?;
    ensure!(
        said.code != Some(0) && said.complaint.contains(words),
        "{said:?}"
    );
    Ok(())
}

fn note(own: &Own) -> anyhow::Result<Value> {
    let note = own.kubectl()?.get(&["configmap", "note"])?;
    Ok(note["data"]["at"].clone())
}

async fn its_data_are_lost(own: &Own, node: &Node) -> Outcome {
    let reset = ["reset", "--system-labels-to-wipe", "EPHEMERAL", "--reboot"];
    own.run(&reset).await?;
    it_has_no_cluster(own, node).await
}

async fn it_has_no_cluster(own: &Own, node: &Node) -> Outcome {
    node.wait_until("it tells that it has no cluster", START, async || {
        let said = own.run(&["get", "kubernetes", "-o", "yaml"]).await?;
        ensure!(said.contains("the cluster has not begun"), "{said}");
        Ok(())
    })
    .await
}

async fn files_that_are_no_snapshot_change_nothing(
    own: &Own,
    node: &Node,
    snapshot: &Snapshot,
) -> Outcome {
    let altered = snapshot.like_it("altered.db", |it| it[3 * 4096] ^= 1)?;
    let truncated = snapshot.like_it("truncated.db", |it| it.truncate(it.len() / 2))?;
    let other = snapshot.like_it("other.db", |it| it[..8192].fill(b'x'))?;
    refused(own, &altered, "it was altered or damaged").await?;
    refused(own, &truncated, "it is truncated").await?;
    refused(own, &other, "it is no database of etcd").await?;
    it_has_no_cluster(own, node).await
}

async fn it_comes_back(own: &Own, node: &Node, snapshot: &Snapshot) -> Outcome {
    let bootstrap = ["bootstrap", "--recover-from", text(&snapshot.file)?];
    println!("{}", own.run(&bootstrap).await?);
    it_is_the_cluster_of_the_snapshot(own, node).await
}

async fn it_is_the_cluster_of_the_snapshot(own: &Own, node: &Node) -> Outcome {
    node.wait_until("its note is there", START, async || {
        let note = note(own)?;
        ensure!(note == "before", "{note}");
        Ok(())
    })
    .await?;
    let members = own.run(&["etcd", "members"]).await?;
    ensure!(members.lines().count() == 2, "{members}");
    its_pods_answer(own, node, "it is back").await
}

/// The config has the keys of the cluster, so the snapshot is all that a new machine needs.
async fn it_comes_back_on_a_new_machine(
    node: Node,
    host: &Host,
    scratch: &Scratch,
    snapshot: &Snapshot,
) -> Outcome {
    node.end();
    let node = host.plan(scratch)?.name("another").boot().await?;
    let own = Own::of(&node, scratch)?;
    it_has_no_cluster(&own, &node).await?;
    let talosctl = Talosctl::of(&node, Release::V1_13).await?;
    let bootstrap = format!("bootstrap --recover-from {}", text(&snapshot.file)?);
    let said = talosctl.run(&bootstrap).await;
    ensure!(said.code == Some(0), "{said:?}");
    it_is_the_cluster_of_the_snapshot(&own, &node).await
}
