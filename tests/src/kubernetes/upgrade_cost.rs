//! The cost of a rollout, measured from outside of the program that drives it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::audit::AuditedRequest;
use super::control_plane::ControlPlane;
use super::process_memory::ProcessMemory;
use crate::runner::Outcome;

/// Begins of the names by which the control plane's own programs call themselves.
const CONTROLLERS: [&str; 2] = ["kube-controller-manager/", "kube-scheduler/"];

/// Measures from its start on.
#[derive(Debug)]
pub struct UpgradeMeter<'a> {
    plane: &'a ControlPlane,
    /// The user of the program.
    user: &'static str,
    began: Instant,
    requests: usize,
    bytes_to_etcd: u64,
}

/// The cost of a rollout over all nodes.
#[derive(Debug)]
pub struct UpgradeCost {
    /// The program that drove it.
    pub program: &'static str,
    nodes: usize,
    /// The program's own requests for the nodes, by verb and resource.
    requests: BTreeMap<String, usize>,
    /// Requests of Kubernetes' controllers and its scheduler meanwhile.
    of_controllers: usize,
    bytes_to_etcd: u64,
    memory: ProcessMemory,
    took: Duration,
}

impl<'a> UpgradeMeter<'a> {
    /// Begins, for the requests of a user.
    pub fn start(plane: &'a ControlPlane, user: &'static str) -> Result<Self> {
        Ok(Self {
            plane,
            user,
            requests: plane.requests()?.len(),
            bytes_to_etcd: plane.bytes_to_etcd()?,
            began: Instant::now(),
        })
    }

    /// Ends: the program has upgraded this number of nodes, and has this memory now.
    pub fn end(
        self,
        program: &'static str,
        nodes: usize,
        memory: ProcessMemory,
    ) -> Result<UpgradeCost> {
        let took = self.began.elapsed();
        let bytes_to_etcd = self.plane.bytes_to_etcd()? - self.bytes_to_etcd;
        let (mut requests, mut of_controllers) = (BTreeMap::new(), 0);
        for request in self.plane.requests()?.iter().skip(self.requests) {
            if request.user == self.user && is_for_nodes(request) {
                let what = format!("{} {}", request.verb, request.resource);
                *requests.entry(what).or_default() += 1;
            }
            if CONTROLLERS
                .iter()
                .any(|name| request.agent.starts_with(name))
            {
                of_controllers += 1;
            }
        }
        Ok(UpgradeCost {
            program,
            nodes,
            requests,
            of_controllers,
            bytes_to_etcd,
            memory,
            took,
        })
    }
}

/// Watches and leases cost as much as time passes, however many nodes there are.
fn is_for_nodes(request: &AuditedRequest) -> bool {
    request.verb != "watch" && !request.resource.ends_with("/leases")
}

impl UpgradeCost {
    fn own(&self) -> f64 {
        self.per_node(self.requests.values().sum::<usize>() as f64)
    }

    fn per_node(&self, sum: f64) -> f64 {
        sum / self.nodes as f64
    }

    /// Whether it keeps to its promises.
    pub fn is_at_most(&self, requests: f64, mib: u64) -> Outcome {
        let own = self.own();
        let (program, nodes) = (self.program, self.nodes);
        ensure!(own <= requests, "{program}, {nodes} nodes: {own} requests");
        let most = self.memory.most_mib;
        ensure!(most <= mib, "{program}, {nodes} nodes: {most} MiB");
        Ok(())
    }
}

/// The costs as a table for a document, and the requests behind each row.
pub fn cost_table(costs: &[UpgradeCost]) -> String {
    let mut text = String::from(
        "| program | nodes | its requests per node | Kubernetes' controllers' per node | to etcd per node | its memory, at most | time |\n\
         | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for cost in costs {
        text.push_str(&format!(
            "| {} | {} | {:.1} | {:.1} | {:.1} KiB | {} MiB, {} MiB | {} s |\n",
            cost.program,
            cost.nodes,
            cost.own(),
            cost.per_node(cost.of_controllers as f64),
            cost.per_node(cost.bytes_to_etcd as f64) / 1024.0,
            cost.memory.now_mib,
            cost.memory.most_mib,
            cost.took.as_secs()
        ));
    }
    for cost in costs {
        let requests = cost.requests.iter();
        let requests = requests.map(|(what, count)| format!("{count} {what}"));
        let requests: Vec<String> = requests.collect();
        text.push_str(&format!(
            "{}, {} nodes: {}\n",
            cost.program,
            cost.nodes,
            requests.join(", ")
        ));
    }
    text
}
