//! `logs`: the log of a service, or the names of all logs.

use instar_api::machine::LogsRequest;
use instar_client::Failure;
use serde_json::json;

use super::containers;
use crate::cli::Global;
use crate::each_node::each_node;
use crate::lines::Part;
use crate::output::table;
use crate::{lines, target};

/// Tail length for the whole log.
const ALL: i32 = -1;

pub(super) async fn run(
    global: &Global,
    id: &str,
    requested: Part,
    kubernetes: bool,
) -> Result<(), Failure> {
    let node = target::one(global).await?;
    let (namespace, driver) = containers::asked(kubernetes);
    let ask = async |part: Part| {
        let tail = part.tail.map(|lines| i32::try_from(lines).unwrap_or(ALL));
        let request = LogsRequest {
            namespace: namespace.clone(),
            id: id.to_owned(),
            driver,
            follow: part.follow,
            tail_lines: tail.unwrap_or(ALL),
        };
        let reply = node.machine().logs(node.request(request)).await?;
        Ok(reply.into_inner())
    };
    let doing = format!("cannot read the log of {id:?}");
    lines::print(global.output, &node, &doing, requested, |line| line, ask).await
}

/// Lists the names of logs.
pub(super) async fn names(global: &Global) -> Result<(), Failure> {
    each_node(global, async |node| {
        let reply = node.machine().logs_containers(node.request(())).await;
        let reply =
            reply.map_err(|status| node.explain("cannot ask for the logs' names", status))?;
        let names = node.only(reply.into_inner().messages)?.ids;
        global.output.show(
            || {
                let row = |name: &String| vec![node.name().to_owned(), name.clone()];
                table(&["NODE", "LOG"], &names.iter().map(row).collect::<Vec<_>>())
            },
            || json!({ "node": node.name(), "logs": names }),
        )?;
        Ok(())
    })
    .await
}
