//! Managers of Cluster API and the extension, where nodes and their operator are objects that the test writes.

use std::cell::Cell;

use anyhow::ensure;
use instar_tests::{
    CapiExtension, ClusterApi, ControlPlane, Outcome, Scratch, install_fleet_operator,
};
use serde_json::{Value, json};

use super::objects::{self, patch_status};
use crate::node_upgrades::eventually;

/// The pool that updates the node of a Machine.
pub(super) fn pool(uid: &str) -> String {
    format!("pool/machine-{uid}")
}

/// The cluster, its manager, and the extension.
pub(super) struct Lab {
    pub(super) extension: CapiExtension,
    pub(super) plane: ControlPlane,
    pub(super) managers: ClusterApi,
    /// Its nodes, which are objects alone.
    pub(super) nodes: Vec<String>,
    /// Whether they say that they are not ready.
    pub(super) are_sick: Cell<bool>,
    /// How often its nodes were said to be alive.
    beats: Cell<u32>,
}

impl Lab {
    /// Starts a control plane with the managers and the extension.
    pub(super) fn start(scratch: &Scratch) -> anyhow::Result<Self> {
        let plane = ControlPlane::start(scratch)?;
        install_fleet_operator(&plane)?;
        let managers = ClusterApi::start(&plane, scratch)?;
        Ok(Self {
            extension: CapiExtension::start(&plane, scratch)?,
            plane,
            managers,
            nodes: Vec::new(),
            are_sick: Cell::new(false),
            beats: Cell::new(0),
        })
    }

    /// Registers the extension with these settings, and waits until the core manager has asked it what it serves.
    pub(super) async fn register(&self, settings: &Value) -> Outcome {
        objects::register(&self.plane, &self.extension.url(), settings)?;
        eventually("the extension is discovered", || {
            let shown = self.plane.kubectl().get(&["extensionconfig", "instar"])?;
            let discovered = objects::condition(&shown, "Discovered");
            ensure!(discovered.starts_with("True"), "{discovered}");
            let handlers = shown["status"]["handlers"].as_array();
            ensure!(handlers.map(Vec::len) == Some(3), "{shown:#}");
            Ok(())
        })
        .await
    }

    /// Adds a node.
    pub(super) fn add_node(&mut self, name: &str) -> Outcome {
        let node = json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        });
        self.plane.kubectl().apply("node", &node.to_string())?;
        self.nodes.push(name.to_owned());
        Ok(())
    }

    /// Has the kubelet of a node tell this version.
    pub(super) fn kubelet_tells(&self, node: &str, version: &str) -> Outcome {
        let info = json!({"status": {"nodeInfo": {"kubeletVersion": version}}});
        patch_status(&self.plane, &format!("node/{node}"), &info.to_string())
    }

    /// Waits for the deployment's machine, and has it be this node; returns the id of the Machine.
    pub(super) async fn have_machine(&self, node: &str) -> anyhow::Result<String> {
        let plane = &self.plane;
        let provided = self.seen("its objects", || objects::provide_worker(plane, node));
        provided.await?;
        self.seen("its node", || objects::machine_of(plane, node))
            .await
    }

    /// Waits until the managers' log has these words.
    pub(super) async fn managers_log(&self, words: &str) -> Outcome {
        self.seen(&format!("a manager's log: {words}"), || {
            ensure!(self.managers.log()?.contains(words), "no word of it");
            Ok(())
        })
        .await
    }

    /// Waits for something. The nodes are objects alone: the test says for them that they are alive.
    pub(super) async fn seen<T>(
        &self,
        what: &str,
        look: impl Fn() -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let seen = eventually(what, || {
            self.nodes_live()?;
            look()
        });
        let seen = seen.await;
        if seen.is_err() {
            println!("{}\n{}", self.managers.log()?, self.extension.log()?);
        }
        seen
    }

    fn nodes_live(&self) -> Outcome {
        // That it changes is all that counts.
        self.beats.set(self.beats.get() + 1);
        let (minute, second) = (self.beats.get() / 60 % 60, self.beats.get() % 60);
        let now = format!("2026-01-01T00:{minute:02}:{second:02}Z");
        let conditions = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"].map(|kind| {
            let holds = kind == "Ready" && !self.are_sick.get();
            let status = if holds { "True" } else { "False" };
            json!({"type": kind, "status": status, "reason": "T", "message": "t", "lastHeartbeatTime": now})
        });
        let ready = json!({"status": {"conditions": conditions}});
        for node in &self.nodes {
            patch_status(&self.plane, &format!("node/{node}"), &ready.to_string())?;
        }
        Ok(())
    }

    /// Says what the operator would say of the pool.
    pub(super) fn operator_says(
        &self,
        uid: &str,
        phase: &str,
        message: &str,
        updated: u32,
    ) -> Outcome {
        let name = pool(uid);
        let pool = self.plane.kubectl().get(&[&name])?;
        let condition = json!({
            "type": "Updated", "status": if updated == 1 { "True" } else { "False" }, "reason": phase, "message": message,
            // Some seconds ago, as the pool is made in this chapter.
            "lastTransitionTime": pool["metadata"]["creationTimestamp"],
        });
        // Of a version, and of the patches if there are some.
        let rollout = json!({
            "number": 1, "image": pool["spec"]["image"], "configPatches": pool["spec"]["configPatches"], "record": {},
        });
        let status = json!({"status": {
            "observedGeneration": pool["metadata"]["generation"], "phase": phase, "message": message, "nodes": 1, "updated": updated,
            "failed": 0, "conditions": [condition], "rollout": rollout,
        }});
        patch_status(&self.plane, &name, &status.to_string())
    }
}
