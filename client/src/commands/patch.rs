//! `patch`: changes parts of a node's machine config.

pub(super) use instar_client::read_config;
use instar_client::{CONFIG_IN_FORCE, Failure, Node, is_on_trial};
use serde_json::json;

use super::apply_config::apply;
use crate::cli::{ApplyHow, ApplyMode, Global, Patch};
use crate::each_node::each_node;
use crate::patch;

pub(super) async fn run(global: &Global, arguments: &Patch) -> Result<(), Failure> {
    let file = arguments.patch_file.iter().map(|path| format!("@{path}"));
    let all: Vec<String> = arguments.patches.iter().cloned().chain(file).collect();
    let patches = patch::read_all(&all)?;
    each_node(global, async |node| {
        let config = read_config(node, &arguments.which.id).await?;
        let changed = patch::apply(&config, &patches)?;
        let confirms = confirms(arguments.how, &arguments.which.id);
        if changed == config && !(confirms && is_on_trial(node).await?) {
            nothing_applied(global, node)?;
        } else {
            apply(global, node, changed.into_bytes(), arguments.how).await?;
        }
        Ok(())
    })
    .await
}

/// Whether a config that is on trial stays if it is applied in this way once more. The patch that began the trial changes nothing of it.
fn confirms(how: ApplyHow, id: &str) -> bool {
    let stays = matches!(how.mode, ApplyMode::Auto | ApplyMode::NoReboot);
    stays && !how.dry_run && id == CONFIG_IN_FORCE
}

/// Reports that there was no change.
pub(super) fn nothing_applied(global: &Global, node: &Node) -> Result<(), Failure> {
    let words = "no change, nothing applied";
    global.output.show(
        || format!("{}: {words}", node.name()),
        || json!({ "node": node.name(), "warnings": [], "details": words }),
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn only_a_patch_to_stay_confirms_a_trial() {
        let with = |mode, dry_run, id| {
            let timeout = Duration::from_secs(60);
            confirms(
                ApplyHow {
                    mode,
                    dry_run,
                    timeout,
                },
                id,
            )
        };
        assert!(with(ApplyMode::Auto, false, "v1alpha1"));
        assert!(with(ApplyMode::NoReboot, false, "v1alpha1"));
        assert!(!with(ApplyMode::Auto, true, "v1alpha1"));
        assert!(!with(ApplyMode::Auto, false, "persistent"));
        for other in [ApplyMode::Reboot, ApplyMode::Staged, ApplyMode::Try] {
            assert!(!with(other, false, "v1alpha1"));
        }
    }
}
