//! `patch`: changes parts of a node's machine config.

pub(super) use instar_client::read_config;
use instar_client::{Failure, Node};
use serde_json::json;

use super::apply_config::apply;
use crate::cli::{Global, Patch};
use crate::each_node::each_node;
use crate::patch;

pub(super) async fn run(global: &Global, arguments: &Patch) -> Result<(), Failure> {
    let file = arguments.patch_file.iter().map(|path| format!("@{path}"));
    let all: Vec<String> = arguments.patches.iter().cloned().chain(file).collect();
    let patches = patch::read_all(&all)?;
    each_node(global, async |node| {
        let config = read_config(node, &arguments.which.id).await?;
        let changed = patch::apply(&config, &patches)?;
        if changed == config {
            nothing_applied(global, node)?;
        } else {
            apply(global, node, changed.into_bytes(), arguments.how).await?;
        }
        Ok(())
    })
    .await
}

/// Reports that there was no change.
pub(super) fn nothing_applied(global: &Global, node: &Node) -> Result<(), Failure> {
    let words = "no change, nothing applied";
    global.output.show(
        || format!("{}: {words}", node.name()),
        || json!({ "node": node.name(), "warnings": [], "details": words }),
    )
}
