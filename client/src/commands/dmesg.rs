//! `dmesg`: the kernel log.

use instar_api::machine::DmesgRequest;
use instar_client::Failure;

use crate::cli::Global;
use crate::{lines, target};

pub(super) async fn run(global: &Global, follow: bool, tail: bool) -> Result<(), Failure> {
    let node = target::one(global).await?;
    let doing = "cannot read the kernel log";
    let reply = node
        .machine()
        .dmesg(node.request(DmesgRequest { follow, tail }))
        .await;
    let stream = reply
        .map_err(|status| node.explain(doing, status))?
        .into_inner();
    lines::print(global.output, &node, doing, stream).await
}
