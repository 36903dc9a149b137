//! A container that writes to the machine's disk all the time: the greeter, on a thread's requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::greeter::Greeter;

/// Pause between two writes.
const PAUSE: Duration = Duration::from_millis(20);
/// The requests for its files, by their paths in the container.
const FILES: [&str; 2] = ["/sync/data/one", "/sync/data/two"];

/// Has the greeter write to files below /var, each write flushed, until one fails or the writer is ended.
#[derive(Debug)]
pub struct ContainerWriter {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<u64>>,
}

impl ContainerWriter {
    /// Starts the writer.
    pub fn start(greeter: Greeter) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            let mut writes = 0;
            while !stopped.load(Ordering::Relaxed) {
                for file in FILES {
                    let written = greeter.get(&format!("{file}?{writes}"));
                    written.context("a write of the container")?;
                    writes += 1;
                }
                thread::sleep(PAUSE);
            }
            Ok(writes)
        });
        Self { stop, thread }
    }

    /// Whether a write has failed.
    pub fn has_failed(&self) -> bool {
        self.thread.is_finished()
    }

    /// Ends the writer; returns the number of writes, or an error if one of them failed.
    pub fn end(self) -> Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.join();
        ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}
