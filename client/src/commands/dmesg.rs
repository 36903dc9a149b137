//! `dmesg`: the kernel log.

use instar_api::machine::DmesgRequest;
use instar_client::Failure;

use crate::cli::Global;
use crate::lines::{Asked, Part};
use crate::{lines, target};

pub(super) async fn run(global: &Global, follow: bool, tail: bool) -> Result<(), Failure> {
    let node = target::one(global).await?;
    let doing = "cannot read the kernel log";
    let requested = Asked { follow, tail };
    let ask = async |part: Part| {
        let Asked { follow, tail } = part.of(requested, false);
        let request = DmesgRequest { follow, tail };
        let reply = node.machine().dmesg(node.request(request)).await?;
        Ok(reply.into_inner())
    };
    lines::print(global.output, &node, doing, ask).await
}
