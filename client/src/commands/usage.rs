//! `usage`: the size of files on the node.

use instar_api::machine::DiskUsageRequest;
use instar_client::Failure;
use serde_json::json;

use crate::cli::{Global, Usage};
use crate::each_node::each_node;
use crate::output::human;
use crate::unread_files::UnreadFiles;

pub(super) async fn run(global: &Global, arguments: &Usage) -> Result<(), Failure> {
    let mut unread = UnreadFiles::default();
    each_node(global, async |node| {
        let request = DiskUsageRequest {
            recursion_depth: i32::from(arguments.depth) + 1,
            all: arguments.all,
            threshold: arguments.threshold,
            paths: arguments.paths.clone(),
        };
        let explain = |status| node.explain("cannot count what files take", status);
        let reply = node.machine().disk_usage(node.request(request)).await;
        let mut stream = reply.map_err(explain)?.into_inner();
        while let Some(info) = stream.message().await.map_err(explain)? {
            if unread.tell(node, &info.error) {
                continue;
            }
            let size = u64::try_from(info.size).unwrap_or(0);
            global.output.show(
                || format!("{:>12}  {}", human(size), info.name),
                || json!({ "node": node.name(), "name": info.name, "bytes": size }),
            )?;
        }
        Ok(())
    })
    .await?;
    unread.end()
}
