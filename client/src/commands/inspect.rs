//! `inspect`: the node's internals.

use instar_api::inspect::inspect_service_client::InspectServiceClient;
use instar_client::Failure;
use serde_json::json;

use crate::cli::Global;
use crate::each_node::each_node;

/// Shows the dependencies between parts of the daemon. The interface has no field for edges yet, so the answer holds none.
pub(super) async fn dependencies(global: &Global) -> Result<(), Failure> {
    each_node(global, async |node| {
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
        Ok(())
    })
    .await
}
