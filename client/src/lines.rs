//! Shows the lines of a byte stream.

use std::time::Duration;

use instar_api::common::Data;
use instar_client::{Failure, Lines, Node, ask_again};
use serde_json::json;
use tokio::time::timeout;
use tonic::{Status, Streaming};

use crate::left_off::LeftOff;
use crate::output::Output;

/// Timeout for a log that is read again to deliver its old lines.
const READ_AGAIN: Duration = Duration::from_secs(5);

/// The part of a log that is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// The part that the user asked for.
    Requested,
    /// All old lines, and then the end: their number tells how many lines of the next stream are old.
    UpToNow,
    /// All old lines and the new ones, to continue where the broken stream ended.
    Whole,
}

/// The user's request for a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked<Tail> {
    /// Whether to follow the log.
    pub(crate) follow: bool,
    /// The length of the tail.
    pub(crate) tail: Tail,
}

impl Part {
    /// The request to send for this part; `all` stands for the whole log.
    pub(crate) fn of<Tail>(self, requested: Asked<Tail>, all: Tail) -> Asked<Tail> {
        match self {
            Part::Requested => requested,
            Part::UpToNow => Asked {
                follow: false,
                tail: all,
            },
            Part::Whole => Asked {
                follow: true,
                tail: all,
            },
        }
    }
}

/// Shows every line of a stream as it comes, until its end. Continues after a change of versions without a reboot.
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
                let again = ask_again(ended, async || read_again(&ask).await).await;
                let log;
                (stream, lines, log) = again.map_err(explain)?;
                for line in left_off.new_in(&log).to_owned() {
                    show(&line)?;
                    left_off.note(&line);
                }
            }
        }
    }
}

/// Opens a stream of all old and new lines, and reads the lines that were there at the time of the request. A pause in the stream does not
/// mark their end, so their number is taken from a reading that ends.
async fn read_again(
    ask: impl AsyncFn(Part) -> Result<Streaming<Data>, Status>,
) -> Result<(Streaming<Data>, Lines, Vec<String>), Status> {
    let mut up_to_now = ask(Part::UpToNow).await?;
    let there = read(&mut up_to_now, &mut Lines::default(), usize::MAX).await?;
    let mut stream = ask(Part::Whole).await?;
    let mut lines = Lines::default();
    let log = read(&mut stream, &mut lines, there.len()).await?;
    Ok((stream, lines, log))
}

/// Reads at least this many lines of a stream, if they come within the timeout.
async fn read(
    stream: &mut Streaming<Data>,
    lines: &mut Lines,
    at_least: usize,
) -> Result<Vec<String>, Status> {
    let mut log = Vec::new();
    let reading = async {
        while log.len() < at_least
            && let Some(data) = stream.message().await?
        {
            log.extend(lines.push(&data.bytes));
        }
        Ok::<_, Status>(())
    };
    // A log that was rotated meanwhile has fewer lines than before.
    timeout(READ_AGAIN, reading).await.unwrap_or(Ok(()))?;
    Ok(log)
}
