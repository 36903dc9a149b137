//! A control plane whose nodes are objects alone, and machines that are simulated.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use instar_tests::{
    ApiProxy, ControlPlane, Identity, JobKubelets, Outcome, PlainApi, Scratch, SimulatedMachines,
    install_fleet_operator,
};
use serde_json::{Value, json};

use super::{AT_ONCE, PATIENCE, PER_NODE, within};
use crate::manifests::{self, SYSTEM_UPGRADE};

/// The version that each node runs at first.
const BEFORE: &str = "v0.1.0";

pub(super) struct Bed {
    pub(super) plane: ControlPlane,
    proxy: ApiProxy,
    machines: SimulatedMachines,
    identity: Identity,
    nodes: usize,
}

impl Bed {
    /// Starts it without nodes, for this number of them at most.
    pub(super) fn start(scratch: &Scratch, most: usize) -> anyhow::Result<Self> {
        let plane = ControlPlane::start_for_objects(scratch)?;
        install_fleet_operator(&plane)?;
        let account = manifests::system_upgrade_account();
        plane.kubectl().apply("system-upgrade", &account)?;
        let proxy = ApiProxy::start(&plane)?;
        let identity = Identity::administrator()?;
        let upgraded = labels(proxy.client());
        Ok(Self {
            machines: SimulatedMachines::start(&identity, most, BEFORE, Box::new(upgraded))?,
            plane,
            proxy,
            identity,
            nodes: 0,
        })
    }

    /// The number of nodes.
    pub(super) fn nodes(&self) -> usize {
        self.nodes
    }

    /// Makes nodes until there are so many.
    pub(super) fn grow(&mut self, nodes: usize) -> Outcome {
        let new = self.nodes..nodes;
        let new =
            new.map(|node| manifests::simulated_node(&name(node), &self.machines.address(node)));
        let new: Vec<String> = new.collect();
        self.plane.kubectl().create("nodes", &new.join("---\n"))?;
        self.nodes = nodes;
        Ok(())
    }

    /// The way of the operator to the machines.
    pub(super) fn client_config(&self) -> anyhow::Result<String> {
        self.identity.client_config("127.0.0.1:1")
    }

    /// Timeout for all nodes to be upgraded.
    pub(super) fn patience(&self) -> Duration {
        let nodes = u32::try_from(self.nodes).unwrap_or(u32::MAX);
        PATIENCE + PER_NODE.saturating_mul(nodes)
    }

    /// Ends the pods of jobs, as kubelets whose containers work at once, until the value is dropped.
    pub(super) fn end_the_pods_of_jobs(&self) -> JobKubelets {
        JobKubelets::start(self.proxy.client(), SYSTEM_UPGRADE)
    }

    /// Has a plan name this version for all nodes.
    pub(super) fn plan(&self, version: &str) -> Outcome {
        let plan = manifests::plan_of_many(version, AT_ONCE);
        self.plane.kubectl().apply("plan", &plan)
    }

    pub(super) fn show_plans(&self) -> anyhow::Result<Value> {
        self.plane.kubectl().get(&["plans", "-n", SYSTEM_UPGRADE])
    }

    pub(super) fn is_the_plan_complete(&self) -> Outcome {
        let shown = self.show_plans()?;
        let status = &shown["items"][0]["status"];
        let conditions = status["conditions"].as_array();
        let mut conditions = conditions.into_iter().flatten();
        let is_complete = conditions.any(|it| it["type"] == "Complete" && it["status"] == "True");
        ensure!(is_complete, "{status:#}");
        Ok(())
    }

    /// Removes the plan and its jobs, so that the next round begins without them.
    pub(super) async fn forget_the_plan(&self) -> Outcome {
        let kubectl = self.plane.kubectl();
        let delete = |what: &[&str]| {
            let here = ["-n", SYSTEM_UPGRADE, "--wait=false"];
            kubectl.run(&[&["delete"], what, &here].concat())
        };
        delete(&["plan", "many"])?;
        delete(&["jobs", "--all"])?;
        within(self.patience(), "its pods are gone", || self.has_no_pods()).await
    }

    fn has_no_pods(&self) -> Outcome {
        let pods = ["pods", "-n", SYSTEM_UPGRADE];
        let left = self.plane.kubectl().get(&pods)?;
        let left = left["items"].as_array().context("no list of pods")?.len();
        ensure!(left == 0, "{left} pods are left");
        Ok(())
    }

    /// Has a pool of all nodes name this version.
    pub(super) fn pool(&self, version: &str) -> Outcome {
        let image = format!("registry.example/installer:{version}");
        let policy = format!("  policy: {{atOnce: {AT_ONCE}}}\n");
        let pool = crate::node_upgrades::pool("many", "r1", &image, &policy);
        self.plane.kubectl().apply("pool", &pool)
    }

    pub(super) fn is_the_pool_done(&self, version: &str) -> Outcome {
        let shown = self.plane.kubectl().get(&["pool", "many"])?;
        let status = &shown["status"];
        let message = status["message"].as_str().unwrap_or_default();
        let all = format!("{0} of {0} nodes run {version}", self.nodes);
        let is_done = status["phase"] == "Done" && message.contains(&all);
        ensure!(is_done, "{}: {message}", status["phase"]);
        Ok(())
    }

    pub(super) fn forget_the_pool(&self) -> Outcome {
        let delete = ["delete", "pool", "many"];
        self.plane.kubectl().run(&delete).map(drop)
    }
}

fn name(node: usize) -> String {
    format!("n{node}")
}

/// Labels nodes with the version that their machines run, as kubelets do.
fn labels(api: PlainApi) -> impl Fn(usize, &str) + Send + Sync + 'static {
    move |node, version| {
        let label = json!({"metadata": {"labels": {"instar.dev/version": version}}});
        // The operator waits for the label in vain then, and names the node.
        if let Err(error) = api.merge(&format!("/api/v1/nodes/{}", name(node)), &label) {
            eprintln!("{}: its label is not set: {error:#}", name(node));
        }
    }
}
