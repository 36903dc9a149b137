//! Showing the lines of a byte stream.

use instar_api::common::Data;
use instar_client::{Failure, Lines, Node};
use serde_json::json;
use tonic::Streaming;

use crate::output::Output;

/// Shows every line of a stream as it comes, until its end.
pub(crate) async fn print(
    output: Output,
    node: &Node,
    doing: &str,
    mut stream: Streaming<Data>,
) -> Result<(), Failure> {
    let show = |line: String| {
        output.show(
            || line.clone(),
            || json!({ "node": node.name(), "line": line }),
        )
    };
    let mut lines = Lines::default();
    while let Some(data) = stream
        .message()
        .await
        .map_err(|status| node.explain(doing, status))?
    {
        for line in lines.push(&data.bytes) {
            show(line)?;
        }
    }
    lines.finish().map_or(Ok(()), show)
}
