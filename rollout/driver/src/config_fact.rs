//! The engine's view of a node in a rollout of configs.

use instar_client::{CONFIG_IN_FORCE, CONFIG_KEPT, Failure, Node, Standing, read_config};
use instar_rollout::{Condition, Fact, MachineName};

use crate::answers::fact;
use crate::config_change::{ConfigChange, NodeConfigStore, release_of};

/// The configs of a node that have the change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ChangeStatus {
    is_in_force: bool,
    is_kept: bool,
}

impl ChangeStatus {
    /// Whether the config in force is on trial: the node may go back to the other one. A config that is kept and not in force waits for a
    /// boot, unless the node goes back: then the old config is the one on trial.
    fn is_on_trial(self, goes_back: bool) -> bool {
        match self.is_in_force {
            true => !self.is_kept,
            false => self.is_kept && goes_back,
        }
    }
}

/// Looks at a node: its standing, and whether its configs have the change. `goes_back`: it was asked to have its previous config.
///
/// # Errors
/// A call failed, or its previous configs cannot be read.
pub async fn config_fact(
    node: &Node,
    name: &MachineName,
    goes_back: bool,
    change: &ConfigChange,
    configs: &impl NodeConfigStore,
) -> Result<Fact, Failure> {
    let standing = Standing::of(node).await?;
    let in_force = read_config(node, CONFIG_IN_FORCE).await?;
    let kept = read_config(node, CONFIG_KEPT).await?;
    let known = configs.known(name).await?;
    let has = |config: &str| change.is_in(config, name, known.as_ref());
    let status = ChangeStatus {
        is_in_force: has(&in_force),
        is_kept: has(&kept),
    };
    let seen = fact(&standing);
    Ok(Fact {
        condition: match seen.condition {
            Condition::Ready if status.is_on_trial(goes_back) => Condition::Busy,
            condition => condition,
        },
        running: Some(match status.is_in_force && status.is_kept {
            true => change.release(),
            false => release_of(in_force.as_bytes()),
        }),
        // Its history is of versions.
        history: 0,
        failure: None,
        hold: seen.hold,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_on_trial_is_told_from_one_that_has_to_boot() {
        for (is_in_force, is_kept, goes_back, expected) in [
            (false, false, false, false),
            // Tried, and not told to keep it yet.
            (true, false, false, true),
            (true, true, false, false),
            // It takes effect with the next boot.
            (false, true, false, false),
            // The way back is tried, and the node may return to the change by itself.
            (false, true, true, true),
            // The way back takes effect with the next boot.
            (true, false, true, true),
            (false, false, true, false),
        ] {
            let status = ChangeStatus {
                is_in_force,
                is_kept,
            };
            assert_eq!(
                status.is_on_trial(goes_back),
                expected,
                "{status:?}, {goes_back}"
            );
        }
    }
}
