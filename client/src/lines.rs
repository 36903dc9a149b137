//! Shows the lines of a byte stream.

use std::time::Duration;

use instar_api::common::Data;
use instar_client::{Failure, Lines, Node};
use serde_json::json;
use tokio::time::timeout;
use tonic::{Status, Streaming};

use crate::ask_again::ask_again;
use crate::left_off::{Identity, LEAST, LeftOff};
use crate::output::Output;

/// Timeout for the next piece of a log's old lines. A node waits up to 5 s for their disk to be mounted, and up to 5 s for the disk to answer.
const NEXT_PIECE: Duration = Duration::from_secs(20);
/// The same for lines of a log that may have none left: it was rotated meanwhile, and has fewer lines than before.
const NEXT_PIECE_IF_ANY: Duration = Duration::from_secs(5);

/// A part of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Whether to follow the log.
    pub(crate) follow: bool,
    /// The number of old lines; `None` for all.
    pub(crate) tail: Option<u32>,
}

/// A stream whose old lines were read.
struct Opened {
    stream: Streaming<Data>,
    lines: Lines,
    /// The old lines, and new ones that came with them.
    log: Vec<String>,
    /// The number of old lines.
    old: usize,
}

/// Shows every line of a stream as it comes, until its end. A log that is followed continues after a change of versions without a reboot, and after
/// a broken connection.
pub(crate) async fn print(
    output: Output,
    node: &Node,
    doing: &str,
    requested: Part,
    identity: Identity,
    ask: impl AsyncFn(Part) -> Result<Streaming<Data>, Status>,
) -> Result<(), Failure> {
    let show = |line: &str| {
        output.show(
            || line.to_owned(),
            || json!({ "node": node.name(), "line": line }),
        )
    };
    let explain = |status| node.explain(doing, status);
    let mut left_off = LeftOff::new(identity);
    let opened = open_requested(requested, &ask, &mut left_off).await;
    let Opened {
        mut stream,
        mut lines,
        log: mut news,
        ..
    } = opened.map_err(explain)?;
    loop {
        for line in news.drain(..) {
            show(&line)?;
            left_off.note(&line);
        }
        match stream.message().await {
            Ok(Some(data)) => news = lines.push(&data.bytes),
            Ok(None) => return lines.finish().map_or(Ok(()), |line| show(&line)),
            Err(ended) if !requested.follow => return Err(explain(ended)),
            Err(ended) => {
                let again =
                    ask_again(node, ended, async || open(&ask, &left_off, None).await).await;
                let opened = again.map_err(explain)?;
                news = left_off.new_in(&opened.log).to_owned();
                (stream, lines) = (opened.stream, opened.lines);
            }
        }
    }
}

/// Opens the stream that the user asked for; its log begins with the lines to show. A tail that is followed is asked for with some lines before it:
/// they mark its place in the log, for a stream that breaks before enough new lines have come.
async fn open_requested(
    requested: Part,
    ask: impl AsyncFn(Part) -> Result<Streaming<Data>, Status>,
    left_off: &mut LeftOff,
) -> Result<Opened, Status> {
    let (true, Some(tail)) = (requested.follow, requested.tail) else {
        return Ok(Opened {
            stream: ask(requested).await?,
            lines: Lines::default(),
            log: Vec::new(),
            old: 0,
        });
    };
    left_off.begin_in_the_middle();
    let mut opened = open(ask, left_off, Some(tail.saturating_add(LEAST))).await?;
    let before = opened.old.saturating_sub(tail as usize);
    for line in opened.log.drain(..before.min(opened.log.len())) {
        left_off.note(&line);
    }
    Ok(opened)
}

/// Opens a stream of so many old lines and all new ones, and reads the lines that were there at the time of the request. A pause in the stream does
/// not mark their end, so their number is taken from a reading that ends.
async fn open(
    ask: impl AsyncFn(Part) -> Result<Streaming<Data>, Status>,
    left_off: &LeftOff,
    tail: Option<u32>,
) -> Result<Opened, Status> {
    let up_to_now = ask(Part {
        follow: false,
        tail,
    })
    .await?;
    let old = read_to_end(up_to_now).await?;
    let mut stream = ask(Part { follow: true, tail }).await?;
    let mut lines = Lines::default();
    let log = read(&mut stream, &mut lines, old.len()).await?;
    // Then the older lines were not there yet at the first reading, and these may not be all.
    let begins_before = log
        .first()
        .is_some_and(|first| !left_off.log_has(&old, first));
    if tail.is_none() && begins_before {
        return Err(Status::unavailable("the log's older lines have just come"));
    }
    Ok(Opened {
        stream,
        lines,
        log,
        old: old.len(),
    })
}

/// Reads all lines of a stream that ends. Fewer would be mistaken for a log that began anew.
async fn read_to_end(mut stream: Streaming<Data>) -> Result<Vec<String>, Status> {
    let (mut log, mut lines) = (Vec::new(), Lines::default());
    let too_slow = |_| Status::deadline_exceeded("the node does not send the log's old lines");
    while let Some(data) = timeout(NEXT_PIECE, stream.message())
        .await
        .map_err(too_slow)??
    {
        log.extend(lines.push(&data.bytes));
    }
    Ok(log)
}

/// Reads at least this many lines of a stream, if they come in time.
async fn read(
    stream: &mut Streaming<Data>,
    lines: &mut Lines,
    at_least: usize,
) -> Result<Vec<String>, Status> {
    let mut log = Vec::new();
    let mut limit = NEXT_PIECE;
    while log.len() < at_least
        && let Ok(data) = timeout(limit, stream.message()).await
        && let Some(data) = data?
    {
        log.extend(lines.push(&data.bytes));
        limit = NEXT_PIECE_IF_ANY;
    }
    Ok(log)
}
