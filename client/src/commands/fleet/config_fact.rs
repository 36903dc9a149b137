//! The engine's view of a node in a rollout of configs.

use instar_client::{Failure, Node, Standing};
use instar_rollout::{Condition, Fact, MachineName};
use instar_rollout_driver::fact;

use super::config_change::{ConfigChange, release_of};
use super::node_configs;
use super::store::Folder;
use crate::commands::patch::read_config;

/// The config in force, and the one for the next boot.
pub(super) const IN_FORCE: &str = "v1alpha1";
pub(super) const KEPT: &str = "persistent";
/// Looks at a node: its standing, and whether its configs have the change.
pub(super) async fn fact_of(
    node: &Node,
    name: &MachineName,
    change: &ConfigChange,
    folder: &Folder,
) -> Result<Fact, Failure> {
    let standing = Standing::of(node).await?;
    let in_force = read_config(node, IN_FORCE).await?;
    let kept = read_config(node, KEPT).await?;
    let known = node_configs::known(folder, name)?;
    let has = |config: &str| change.is_in(config, name, known.as_ref());
    let (is_in_force, is_kept) = (has(&in_force), has(&kept));
    let seen = fact(&standing);
    Ok(Fact {
        // The config in force is on trial: the node may go back.
        condition: match seen.condition {
            Condition::Ready if is_in_force && !is_kept => Condition::Busy,
            condition => condition,
        },
        running: Some(match is_in_force && is_kept {
            true => change.release(),
            false => release_of(in_force.as_bytes()),
        }),
        // Its history is of versions.
        history: 0,
        failure: None,
        hold: seen.hold,
    })
}
