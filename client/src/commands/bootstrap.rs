//! `bootstrap`: begins the cluster whose control plane is on the node.

use instar_api::machine::BootstrapRequest;
use instar_client::Failure;
use serde_json::json;

use crate::cli::Global;
use crate::target;

pub(super) async fn run(global: &Global) -> Result<(), Failure> {
    let node = target::one(global).await?;
    let request = node.request(BootstrapRequest::default());
    let reply = node.machine().bootstrap(request).await;
    reply.map_err(|status| node.explain("cannot begin the cluster", status))?;
    global.output.show(
        || format!("{}: the cluster begins", node.name()),
        || json!({ "node": node.name(), "done": "begun" }),
    )
}
