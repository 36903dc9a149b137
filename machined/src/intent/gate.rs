//! Probes that must be answered before a new version is kept.

use std::time::Duration;

use crate::config::MachineConfig;
use crate::kubernetes::{KUBELET_UP, KubeletRun, kubelet_health, kubelet_run};
use crate::upgrade::{GateProbe, Run, Steady};

/// Time limit of a question to kubelet.
const KUBELET_ANSWER: Duration = Duration::from_secs(5);
/// Time for which kubelet has to be healthy (half of what is left, if that is less): one that crashes starts again within seconds, and
/// says that it is healthy in between.
const KUBELET_STEADY: Duration = Duration::from_secs(10);

/// Returns the probes of the config's gate, and the one of kubelet if it is among the services that were up before. `left`: the time that
/// the gate has.
///
/// kubelet is asked, and not the cluster: a control plane that cannot be reached is no fault of this machine's new version.
pub fn gate_probes(config: &MachineConfig, up_before: &[String], left: Duration) -> Vec<GateProbe> {
    let probes = config.upgrade_gate.probes.iter();
    let probes =
        probes.map(|probe| GateProbe::new(probe.name.clone(), probe.target.clone(), probe.timeout));
    let was_up = up_before.iter().any(|name| name == KUBELET_UP);
    let kubernetes = config.kubernetes.as_ref().filter(|_| was_up);
    let kubelet = kubernetes.and_then(kubelet_health);
    let steady = Steady {
        time: KUBELET_STEADY.min(left / 2),
        run: run_of_kubelet,
    };
    let kubelet = kubelet.map(|target| {
        GateProbe::new("kubelet".to_owned(), target, KUBELET_ANSWER).steadily(steady)
    });
    probes.chain(kubelet).collect()
}

fn run_of_kubelet() -> Option<Run> {
    kubelet_run().map(|KubeletRun { pid, restarts }| Run { pid, restarts })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::config;

    const OURS: &str = "\
---
apiVersion: instar.dev/v1alpha1
kind: KubernetesConfig
image: r.io/kubernetes:v1
---
apiVersion: instar.dev/v1alpha1
kind: ExtensionConfig
name: kubernetes
image: r.io/kubernetes:v1.36
";

    fn probes(documents: &str, up_before: &[&str]) -> usize {
        let worker = include_str!("../../../config/tests/data/1.14/worker.yaml");
        let parsed = config::parse(format!("{worker}{documents}").as_bytes()).unwrap();
        let up_before: Vec<String> = up_before.iter().map(|&name| name.to_owned()).collect();
        gate_probes(&parsed.config, &up_before, Duration::from_secs(60)).len()
    }

    #[test]
    fn kubelet_has_to_answer_if_it_did_before_and_still_runs_here() {
        assert_eq!(probes(OURS, &["kubernetes", KUBELET_UP]), 1);
        assert_eq!(probes(OURS, &["kubernetes"]), 0);
        assert_eq!(probes("", &[KUBELET_UP]), 0);
    }
}
