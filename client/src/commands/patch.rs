//! `patch`: changes parts of a node's machine config.

use instar_api::cosi::resource::GetRequest;
use instar_client::{Failure, FailureKind, Node};
use serde_json::json;

use super::apply_config::apply;
use super::get;
use crate::cli::{Global, Patch};
use crate::{patch, target};

pub(super) async fn run(global: &Global, arguments: &Patch) -> Result<(), Failure> {
    let file = arguments.patch_file.iter().map(|path| format!("@{path}"));
    let all: Vec<String> = arguments.patches.iter().cloned().chain(file).collect();
    let patches = patch::read_all(&all)?;
    for node in target::all(global).await? {
        let config = read_config(&node, &arguments.which.id).await?;
        let changed = patch::apply(&config, &patches)?;
        if changed == config {
            nothing_applied(global, &node)?;
        } else {
            apply(global, &node, changed.into_bytes(), arguments.how).await?;
        }
    }
    Ok(())
}

/// The node's machine config, as it was written. `id`: the one in force (`v1alpha1`) or for the next boot (`persistent`).
pub(super) async fn read_config(node: &Node, id: &str) -> Result<String, Failure> {
    let request = node.request(GetRequest {
        namespace: "config".to_owned(),
        r#type: "MachineConfigs.config.talos.dev".to_owned(),
        id: id.to_owned(),
        options: None,
    });
    let reply = get::state(node).get(request).await;
    let reply = reply.map_err(|status| node.explain("cannot get the machine config", status))?;
    let resource = reply.into_inner().resource.unwrap_or_default();
    match get::content(&resource).as_str() {
        Some(text) => Ok(text.to_owned()),
        None => Err(Failure::new(
            FailureKind::Failed,
            format!("{} sent no machine config", node.name()),
        )),
    }
}

/// Reports that there was no change.
pub(super) fn nothing_applied(global: &Global, node: &Node) -> Result<(), Failure> {
    let words = "no change, nothing applied";
    global.output.show(
        || format!("{}: {words}", node.name()),
        || json!({ "node": node.name(), "warnings": [], "details": words }),
    )
}
