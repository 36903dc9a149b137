//! `logs`: what a service wrote.

use instar_api::common::ContainerDriver;
use instar_api::machine::LogsRequest;

use crate::cli::Global;
use crate::failure::Failure;
use crate::{lines, target};

/// Where services' logs live.
const NAMESPACE: &str = "system";
/// Tail length for the whole log.
const ALL: i32 = -1;

pub(super) async fn run(
    global: &Global,
    id: &str,
    follow: bool,
    tail: Option<u32>,
) -> Result<(), Failure> {
    let node = target::one(global).await?;
    let request = LogsRequest {
        namespace: NAMESPACE.to_owned(),
        id: id.to_owned(),
        driver: ContainerDriver::Containerd.into(),
        follow,
        tail_lines: tail.map_or(ALL, |lines| i32::try_from(lines).unwrap_or(ALL)),
    };
    let doing = format!("cannot read the log of {id:?}");
    let reply = node.machine().logs(node.request(request)?).await;
    let stream = reply
        .map_err(|status| node.explain(&doing, status))?
        .into_inner();
    lines::print(global.output, &node, &doing, stream).await
}
