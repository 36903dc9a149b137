//! `dmesg`: the kernel log.

use instar_api::machine::DmesgRequest;
use instar_client::Failure;

use crate::cli::Global;
use crate::lines::Part;
use crate::{lines, target};

pub(super) async fn run(global: &Global, follow: bool, tail: bool) -> Result<(), Failure> {
    let node = target::one(global).await?;
    let doing = "cannot read the kernel log";
    let requested = Part {
        follow,
        tail: tail.then_some(0),
    };
    let ask = async |part: Part| {
        // The API has no number here: it sends all old lines, or none.
        let request = DmesgRequest {
            follow: part.follow,
            tail: part.tail == Some(0),
        };
        let reply = node.machine().dmesg(node.request(request)).await?;
        Ok(reply.into_inner())
    };
    lines::print(global.output, &node, doing, requested, message, ask).await
}

/// A record without its time, by which it is known again: a node computes the times anew for each reader, and they differ by some microseconds.
fn message(line: &str) -> &str {
    line.split_once("Z]: ").map_or(line, |(_, message)| message)
}
