//! Showing the lines of a byte stream.

use std::time::Duration;

use instar_api::common::Data;
use instar_client::{Failure, Lines, Node, ask_again};
use serde_json::json;
use tokio::time::{Instant, timeout};
use tonic::{Status, Streaming};

use crate::left_off::LeftOff;
use crate::output::Output;

/// A log that is read again has told what there was when nothing has come for so long.
const QUIET: Duration = Duration::from_millis(500);

/// One that never rests has told enough by then.
const READ_AGAIN: Duration = Duration::from_secs(5);

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// What the user asked for.
    Requested,
    /// All of it, to go on where the stream left off.
    Whole,
}

/// Shows every line of a stream as it comes, until its end. Over a change of versions without a reboot it goes on.
pub(crate) async fn print(
    output: Output,
    node: &Node,
    doing: &str,
    ask: impl AsyncFn(Part) -> Result<Streaming<Data>, Status>,
) -> Result<(), Failure> {
    let show = |line: &str| {
        output.show(
            || line.to_owned(),
            || json!({ "node": node.name(), "line": line }),
        )
    };
    let explain = |status| node.explain(doing, status);
    let mut stream = ask(Part::Requested).await.map_err(explain)?;
    let mut lines = Lines::default();
    let mut left_off = LeftOff::default();
    loop {
        match stream.message().await {
            Ok(Some(data)) => {
                for line in lines.push(&data.bytes) {
                    show(&line)?;
                    left_off.note(&line);
                }
            }
            Ok(None) => return lines.finish().map_or(Ok(()), |line| show(&line)),
            Err(ended) => {
                let again = ask_again(ended, async || ask(Part::Whole).await).await;
                stream = again.map_err(explain)?;
                lines = Lines::default();
                let log = what_there_is(&mut stream, &mut lines).await;
                for line in left_off.new_in(&log.map_err(explain)?).to_owned() {
                    show(&line)?;
                    left_off.note(&line);
                }
            }
        }
    }
}

/// The lines of a stream up to now.
async fn what_there_is(
    stream: &mut Streaming<Data>,
    lines: &mut Lines,
) -> Result<Vec<String>, Status> {
    let mut log = Vec::new();
    let until = Instant::now() + READ_AGAIN;
    while Instant::now() < until
        && let Ok(next) = timeout(QUIET, stream.message()).await
    {
        match next? {
            Some(data) => log.extend(lines.push(&data.bytes)),
            None => break,
        }
    }
    Ok(log)
}
