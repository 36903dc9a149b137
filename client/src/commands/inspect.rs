//! `inspect`: the node's own workings.

use instar_api::inspect::inspect_service_client::InspectServiceClient;
use instar_client::Failure;
use serde_json::json;

use crate::cli::Global;
use crate::target;

/// Which parts of the daemon depend on which. The interface has no place for edges yet, so a node has nothing to tell but that it is asked.
pub(super) async fn dependencies(global: &Global) -> Result<(), Failure> {
    for node in target::all(global).await? {
        let mut inspect = InspectServiceClient::new(node.channel());
        let reply = inspect
            .controller_runtime_dependencies(node.request(()))
            .await;
        let reply = reply.map_err(|status| node.explain("cannot ask for dependencies", status))?;
        node.only(reply.into_inner().messages)?;
        global.output.show(
            || format!("{}: no part declares what it depends on", node.name()),
            || json!({ "node": node.name(), "edges": [] }),
        )?;
    }
    Ok(())
}
