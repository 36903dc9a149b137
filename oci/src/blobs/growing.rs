//! A blob that is read while it is being received: the reader waits for the writer, and nobody asks again and again.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt as _;
use std::sync::{Arc, Condvar, Mutex};

use super::partial::PartialBlob;
use instar_base::lock::{Changes as _, Lock as _};

/// How much of a blob is there. Its writer and its readers share it.
#[derive(Debug)]
pub(super) struct Growth {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    length: u64,
    end: End,
}

/// The end of the writing.
#[derive(Debug)]
enum End {
    /// There is more to come.
    Open,
    /// The writer is gone; what is there is all.
    Over,
    /// The writer failed; the first reader to get there takes the error.
    Failed(io::Error),
}

impl Growth {
    pub(super) fn from(length: u64) -> Self {
        Growth {
            state: Mutex::new(State {
                length,
                end: End::Open,
            }),
            changed: Condvar::new(),
        }
    }

    pub(super) fn grow(&self, length: u64) {
        self.state.locked().length = length;
        self.changed.notify_all();
    }

    /// Ends the writing, unless it has ended.
    pub(super) fn end(&self, error: Option<io::Error>) {
        let mut state = self.state.locked();
        if matches!(state.end, End::Open) {
            state.end = error.map_or(End::Over, End::Failed);
        }
        self.changed.notify_all();
    }

    /// Waits until there is more than this. `None` at the end. The writer always ends: its drop is an end, too.
    fn more_than(&self, length: u64) -> io::Result<Option<u64>> {
        let waiting = |state: &mut State| state.length <= length && matches!(state.end, End::Open);
        let state = self.state.locked();
        let mut state = self.changed.wait_locked(state, None, waiting);
        if state.length > length {
            return Ok(Some(state.length));
        }
        match std::mem::replace(&mut state.end, End::Over) {
            End::Failed(error) => Err(error),
            End::Over | End::Open => Ok(None),
        }
    }
}

/// A reader of a blob that is being received. It ends early if the writer is given up, and whoever reads compares size and digest.
#[derive(Debug)]
pub(crate) struct GrowingBlob {
    file: Arc<File>,
    growth: Arc<Growth>,
    blob: PartialBlob,
    at: u64,
}

impl GrowingBlob {
    pub(super) fn new(blob: PartialBlob, growth: Arc<Growth>) -> Self {
        GrowingBlob {
            file: blob.file(),
            growth,
            blob,
            at: 0,
        }
    }

    /// The blob itself, whose content its reader has compared with the digest.
    pub(crate) fn into_partial(self) -> PartialBlob {
        self.blob
    }
}

impl Read for GrowingBlob {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(length) = self.growth.more_than(self.at)? else {
            return Ok(0);
        };
        let most = usize::try_from(length - self.at).unwrap_or(usize::MAX);
        let most = most.min(buffer.len());
        let count = self.file.read_at(&mut buffer[..most], self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}
