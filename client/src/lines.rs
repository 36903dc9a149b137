//! Showing the lines of a byte stream.

use std::time::Duration;

use instar_api::common::Data;
use instar_client::{Failure, Lines, Node, ask_again};
use serde_json::json;
use tokio::time::timeout;
use tonic::{Status, Streaming};

use crate::left_off::LeftOff;
use crate::output::Output;

/// A log that is read again has told by then what there was.
const READ_AGAIN: Duration = Duration::from_secs(5);

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// What the user asked for.
    Requested,
    /// All that there is, and its end: it says how much of the next one is not new.
    UpToNow,
    /// All of it and what comes, to go on where the stream left off.
    Whole,
}

/// What the user asked for, and how it is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked<Tail> {
    /// Whether it goes on with what comes.
    pub(crate) follow: bool,
    /// How much of what there is.
    pub(crate) tail: Tail,
}

impl Part {
    /// What to ask a node for, where all that there is has this name.
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

/// A stream of all there is and of what comes, and the lines of it that were there when it was asked for. A pause says nothing of that, so
/// their number is what a reading up to now has.
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

/// So many lines of a stream at least, where it has them within its time.
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
    // A log that turned over meanwhile has fewer lines than before.
    timeout(READ_AGAIN, reading).await.unwrap_or(Ok(()))?;
    Ok(log)
}
