//! `time`: compares the node's clock with a time server's.

use instar_api::time::TimeRequest;
use instar_api::time::time_service_client::TimeServiceClient;
use instar_client::Failure;
use serde_json::json;

use crate::cli::Global;
use crate::each_node::each_node;
use crate::output::{table, time};

pub(super) async fn run(global: &Global, server: Option<String>) -> Result<(), Failure> {
    each_node(global, async |node| {
        let mut clock = TimeServiceClient::new(node.channel());
        let reply = match server.clone() {
            Some(server) => clock.time_check(node.request(TimeRequest { server })).await,
            None => clock.time(node.request(())).await,
        };
        let reply = reply.map_err(|status| node.explain("cannot compare clocks", status))?;
        let answer = node.only(reply.into_inner().messages)?;
        let (local, remote) = (answer.localtime.as_ref(), answer.remotetime.as_ref());
        let behind = seconds(remote) - seconds(local);
        global.output.show(
            || {
                table(
                    &["NODE", "SERVER", "NODE-TIME", "SERVER-TIME", "BEHIND"],
                    &[vec![
                        node.name().to_owned(),
                        answer.server.clone(),
                        time(local),
                        time(remote),
                        format!("{behind:.6} s"),
                    ]],
                )
            },
            || {
                json!({
                    "node": node.name(),
                    "server": answer.server,
                    "node_time": time(local),
                    "server_time": time(remote),
                    "behind_seconds": behind,
                })
            },
        )?;
        Ok(())
    })
    .await
}

fn seconds(at: Option<&prost_types::Timestamp>) -> f64 {
    at.map_or(0.0, |at| at.seconds as f64 + f64::from(at.nanos) / 1e9)
}
