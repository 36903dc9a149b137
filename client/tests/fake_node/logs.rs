//! Logs whose first stream does not end well, and which have one more line from then on.

use std::time::Duration;

use instar_api::common::Data;
use instar_api::machine::LogsRequest;
use tokio_stream::StreamExt;
use tonic::Status;
use tonic::codegen::BoxStream;

use super::{Api, pieces};

/// The end of a stream whose node changes to another version.
pub(super) fn changes_version() -> BoxStream<Data> {
    let ended = Status::unavailable(instar_api::CHANGES_VERSION);
    Box::pin(tokio_stream::once(Err(ended)))
}

impl Api {
    /// A log of two lines that ends as the node changes to another version; then it pauses between lines.
    pub(super) fn halting_log(&self, follow: bool) -> BoxStream<Data> {
        if !follow {
            return pieces(&[b"one\n", b"two\n"]);
        }
        let mut state = self.0.state();
        state.followed += 1;
        if state.followed == 1 {
            return Box::pin(pieces(&[b"one\ntwo\n"]).chain(changes_version()));
        }
        let lines = pieces(&[b"one\n", b"two\n", b"three\n"]);
        Box::pin(lines.then(async |line| {
            tokio::time::sleep(Duration::from_millis(700)).await;
            line
        }))
    }

    /// A log that ends as the node changes to another version. The first reader of that one gives up waiting for the disk of the older lines, and has
    /// those in memory alone; the second waits for it as long as a slow disk takes.
    pub(super) fn mounting_log(&self, follow: bool) -> BoxStream<Data> {
        let lines: [&[u8]; 2] = [b"one\n", b"two\nthree\n"];
        let mut state = self.0.state();
        if follow {
            state.followed += 1;
            return match state.followed {
                1 => Box::pin(pieces(&[b"one\ntwo\n"]).chain(changes_version())),
                _ => pieces(&lines),
            };
        }
        state.readings += 1;
        match state.readings {
            1 => pieces(&lines[1..]),
            _ => Box::pin(pieces(&lines).then(async |line| {
                tokio::time::sleep(Duration::from_secs(3)).await;
                line
            })),
        }
    }

    /// A log of three lines; the first stream that follows it goes on like this after them.
    pub(super) fn log(&self, request: &LogsRequest, first: BoxStream<Data>) -> BoxStream<Data> {
        let mut state = self.0.state();
        let mut lines: Vec<&[u8]> = vec![b"one\n", b"two\n", b"three\n"];
        if state.followed > 0 {
            lines.push(b"four\n");
        }
        let tail = usize::try_from(request.tail_lines).unwrap_or(usize::MAX);
        let sent = pieces(&lines[lines.len().saturating_sub(tail)..]);
        if !request.follow {
            return sent;
        }
        state.followed += 1;
        match state.followed {
            1 => Box::pin(sent.chain(first)),
            _ => sent,
        }
    }
}
