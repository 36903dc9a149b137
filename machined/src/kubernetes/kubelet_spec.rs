//! How kubelet is told to run: its configuration, as the config makes it, and its options, as the plan has them.

use std::path::Path;

use instar_kubernetes_plan::{PLAN, Plan};
use serde_json::Value;

use super::{control, kubelet};
use crate::base::whole_file;
use crate::config::Kubernetes;

/// The service's name in the plan.
const KUBELET: &str = "kubelet";

/// How kubelet is told to run.
#[derive(Debug, Clone, PartialEq)]
pub struct KubeletSpec {
    /// Its options beside those of its unit; none while there is no plan.
    pub arguments: Vec<String>,
    /// Its configuration.
    pub configuration: Value,
}

/// Returns how kubelet is told to run. Blocks.
///
/// # Errors
/// The plan cannot be read.
pub fn kubelet_spec(kubernetes: &Kubernetes) -> anyhow::Result<KubeletSpec> {
    Ok(KubeletSpec {
        arguments: arguments(&control().join(PLAN))?,
        configuration: kubelet::fields(kubernetes),
    })
}

fn arguments(plan: &Path) -> anyhow::Result<Vec<String>> {
    let plan: Plan = whole_file::read_json(plan)?.unwrap_or_default();
    let variables = plan.environment.get(KUBELET);
    let options = variables.and_then(|variables| variables.get(kubelet::OPTIONS));
    let words = options
        .into_iter()
        .flat_map(|it| it.split_ascii_whitespace());
    Ok(words.map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_options_are_those_of_the_plan() {
        let directory = tempfile::tempdir().unwrap();
        let plan = directory.path().join(PLAN);
        assert!(arguments(&plan).unwrap().is_empty());
        let written = |text: &str| {
            std::fs::write(&plan, text).unwrap();
            arguments(&plan)
        };
        let of = |environment: &str| {
            written(&format!(
                r#"{{"node":"n","extensions":[],"environment":{environment}}}"#
            ))
        };
        assert!(of(r#"{"containerd":{}}"#).unwrap().is_empty());
        let kubelet = r#"{"kubelet":{"KUBELET_EXTRA_ARGS":"--node-ip=192.0.2.7 --v=2"}}"#;
        assert_eq!(of(kubelet).unwrap(), ["--node-ip=192.0.2.7", "--v=2"]);
        written("{").unwrap_err();
    }
}
