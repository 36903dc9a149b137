//! `health`: waits until the node's own checks pass.

use std::time::Duration;

use instar_api::cluster::HealthCheckRequest;
use instar_api::cluster::cluster_service_client::ClusterServiceClient;
use instar_client::Failure;
use serde_json::json;

use crate::cli::Global;
use crate::each_node::each_node;

pub(super) async fn run(global: &Global, wait_timeout: Duration) -> Result<(), Failure> {
    each_node(global, async |node| {
        let request = HealthCheckRequest {
            wait_timeout: prost_types::Duration::try_from(wait_timeout).ok(),
            cluster_info: None,
        };
        let explain = |status| node.explain("is not healthy", status);
        let mut cluster = ClusterServiceClient::new(node.channel());
        let reply = cluster.health_check(node.request(request)).await;
        let mut stream = reply.map_err(explain)?.into_inner();
        while let Some(progress) = stream.message().await.map_err(explain)? {
            global.output.show(
                || format!("{}: {}", node.name(), progress.message),
                || json!({ "node": node.name(), "message": progress.message }),
            )?;
        }
        Ok(())
    })
    .await
}
