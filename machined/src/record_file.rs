//! The file of a record that lives in memory and is written after each change.
//!
//! Callers are dropped half-way: a sequence gives up its turn when the config changes. What is in memory has to reach the disk all the same,
//! and in order, so a write belongs to no caller: it is numbered when it is asked for, and a task of its own carries it out.

mod kept_record;

pub use kept_record::KeptRecord;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use serde::Serialize;
use tokio::time::{Instant, timeout};

use crate::base::blocking_io::{self, ANSWER, NoAnswer};
use crate::base::lock::Lock as _;
use crate::base::{task, whole_file};
use crate::state_partition::StateFile;

/// The order of the writes of one file.
#[derive(Debug, Default)]
pub struct RecordFile {
    /// The number of the newest record that is to be written.
    asked: Mutex<u64>,
    /// The number of the record on disk. The thread that writes holds it: two at once would share the new file beside the old one.
    on_disk: Arc<tokio::sync::Mutex<u64>>,
}

impl RecordFile {
    /// Writes what `newest` returns: the file, if there is one yet, and the record. It is called at the first poll, and what it returned is
    /// written even if this future is dropped after that. If that fails, the record holds until machined ends, and the log has `loss`.
    pub async fn write<T: Serialize + Send + 'static>(
        &self,
        kind: StateFile,
        loss: &'static str,
        newest: impl FnOnce() -> (Option<PathBuf>, T),
    ) {
        let (number, file, record) = {
            // Held meanwhile: a higher number has a newer record.
            let mut asked = self.asked.locked();
            let (Some(file), record) = newest() else {
                return;
            };
            *asked += 1;
            (*asked, file, record)
        };
        let on_disk = self.on_disk.clone();
        let in_order = async move {
            let begun = Instant::now();
            let turn = timeout(ANSWER, on_disk.lock_owned()).await;
            let mut on_disk = turn.map_err(|_| NoAnswer::Late(ANSWER))?;
            if *on_disk > number {
                // A newer one came first.
                return Ok(());
            }
            // The thread has the turn: it goes on after the time is over, and nobody else may write before it has ended.
            let write = move || {
                whole_file::replace_json(&file, kind.mode, &record)?;
                *on_disk = number;
                Ok(())
            };
            blocking_io::within(ANSWER.saturating_sub(begun.elapsed()), write).await?
        };
        let writing = task::spawn(async move {
            let written: anyhow::Result<()> = in_order.await;
            kind.note_written(&written);
            if let Err(error) = written {
                tracing::warn!("{loss}: {error:#}");
            }
        });
        // It fails if the program ends.
        let _ = writing.await;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::future::Future as _;
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::{Context, Waker};
    use std::time::Duration;

    use super::*;
    use crate::state_partition::IMAGE_PINS;

    /// Some MiB: its write takes a while.
    fn record(number: usize) -> Vec<usize> {
        vec![number; 500_000]
    }

    fn numbers(file: &Path) -> Vec<usize> {
        serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
    }

    #[tokio::test]
    async fn a_writer_that_is_dropped_and_the_next_one_do_not_meet() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("record.json");
        let file = RecordFile::default();
        let newest = |number| {
            let path = path.clone();
            move || (Some(path), record(number))
        };
        file.write(IMAGE_PINS, "lost", newest(0)).await;
        let ends = Arc::new(AtomicBool::new(false));
        let reader = {
            let (path, ends) = (path.clone(), ends.clone());
            std::thread::spawn(move || {
                while !ends.load(Ordering::Relaxed) {
                    numbers(&path);
                }
            })
        };
        for number in 1..10 {
            let mut dropped = Box::pin(file.write(IMAGE_PINS, "lost", newest(2 * number)));
            let polled = dropped
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()));
            assert!(polled.is_pending());
            // The write is under way.
            tokio::time::sleep(Duration::from_millis(5)).await;
            drop(dropped);
            file.write(IMAGE_PINS, "lost", newest(2 * number + 1)).await;
            assert!(numbers(&path) == record(2 * number + 1), "{number}");
        }
        ends.store(true, Ordering::Relaxed);
        reader.join().unwrap();
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[tokio::test]
    async fn what_a_dropped_writer_had_to_write_reaches_the_disk() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("record.json");
        let file = RecordFile::default();
        let mut context = Context::from_waker(Waker::noop());
        let mut writes = Vec::new();
        for number in 0..3 {
            let newest = (Some(path.clone()), record(number));
            writes.push(Box::pin(file.write(IMAGE_PINS, "lost", || newest)));
        }
        for write in &mut writes {
            assert!(write.as_mut().poll(&mut context).is_pending());
        }
        drop(writes);
        let reached = async {
            while !std::fs::read(&path).is_ok_and(|json| json.starts_with(b"[2")) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(Duration::from_secs(60), reached).await.unwrap();
    }
}
