//! Logs on disk: copies the lines of every log from memory to /var/log, where the next machined finds them.
//!
//! The disk is one more reader of each ring: while it is slow, full or unmounted, lines wait in the ring like for any slow reader, and the
//! services go on. If a service prints faster than a disk should be written to, its lines wait as for a slow disk. Lines that the ring
//! drops meanwhile are missing on the disk, and a line there says how many bytes. Threads of their own do the writing; each line is
//! written at once, and no service waits for it.
//!
//! ```text
//!   away ──open──► writing ──close: the rest is written──► away
//!                  │    ▲
//!            fails ▼    │ every 10 s
//!                  waiting
//! ```
//!
//! A log that is forgotten, with its service, ends from each of these states: what is still in memory is written first, if the disk is there.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::log_files::{LogFiles, OldLines, make_directory};
use super::log_ring::{LogRing, Older, Reader, Tail};
use crate::base::blocking_io::{self, ANSWER};
use crate::base::lock::Lock as _;

/// Bytes that one write has at most.
const BATCH: usize = 64 * 1024;
/// Rate limit of one log's writes to the disk, in bytes per second. Flash memory wears out by being written to: at this rate, all day, one
/// log writes 84 GiB.
const RATE: u64 = 1 << 20;
/// Pause after a failed write: it takes a while until there is space again.
const RETRY: Duration = Duration::from_secs(10);
/// Time limit for the last lines when the machine goes down, or a log is forgotten.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time limit for a reader to wait until the disk is mounted: some 200 ms after an upgrade, for ever if it is broken.
const MOUNTING: Duration = Duration::from_secs(5);
/// Pause between two looks whether a log's copier has seen that the disk is there.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// Time limit for reading from a disk that does not answer.
const READ: Duration = Duration::from_secs(5);

/// The disk for all logs; clones share it.
#[derive(Clone)]
pub struct LogDisk {
    /// None while the disk is not available: not mounted yet, or about to be unmounted.
    directory: watch::Sender<Option<PathBuf>>,
    /// Number of logs between `open` and the end of their `close`.
    writing: watch::Sender<usize>,
    /// Whether this machined knows if there is a disk for logs.
    settled: watch::Sender<bool>,
    logs: Arc<Mutex<BTreeMap<String, Followed>>>,
    retry: Duration,
    rate: u64,
}

/// A log's files while the disk is available. The lock's holder may be on a thread that waits for the disk, so the lock is awaited.
type SharedFiles = Arc<tokio::sync::Mutex<Option<LogFiles>>>;

/// Position in the ring of the first line that the disk refuses; None while it takes all lines.
type Refused = Arc<Mutex<Option<u64>>>;

/// A log that is copied to the disk.
pub(super) struct Followed {
    name: String,
    files: SharedFiles,
    refused: Refused,
    /// Becomes true when the copy is to end; without its sender it ends, too.
    over: watch::Sender<bool>,
    copier: JoinHandle<()>,
}

/// Counts a log as one that is written, for as long as anybody has this.
struct Writing(watch::Sender<usize>);

impl Writing {
    fn begin(writing: &watch::Sender<usize>) -> Arc<Self> {
        writing.send_modify(|count| *count += 1);
        Arc::new(Writing(writing.clone()))
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

impl Default for LogDisk {
    fn default() -> Self {
        LogDisk {
            directory: watch::channel(None).0,
            writing: watch::channel(0).0,
            settled: watch::channel(false).0,
            logs: Arc::default(),
            retry: RETRY,
            rate: RATE,
        }
    }
}

impl LogDisk {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Followed>> {
        self.logs.locked()
    }

    /// Copies this log from now on, whenever the disk is available, until it is forgotten. `name`: the service's.
    pub fn follow(&self, name: &str, ring: &LogRing) {
        let (over, told_over) = watch::channel(false);
        let (files, refused) = (SharedFiles::default(), Refused::default());
        let copier = Copier {
            name: name.to_owned(),
            files: files.clone(),
            refused: refused.clone(),
            parked: None,
            reader: ring.read(Tail::All),
            directory: self.directory.subscribe(),
            over: told_over,
            retry: self.retry,
            bucket: Bucket::new(self.rate, Instant::now()),
            writing: self.writing.clone(),
        };
        let followed = Followed {
            name: name.to_owned(),
            files,
            refused,
            over,
            copier: crate::base::task::spawn(copier.live()),
        };
        self.lock().insert(name.to_owned(), followed);
    }

    /// Forgets a log, so that another one of this name can be followed. It is copied until it is [closed](Followed::close).
    pub(super) fn forget(&self, name: &str) -> Option<Followed> {
        self.lock().remove(name)
    }

    /// Starts writing to the disk: the lines that are in memory, and all later ones.
    pub async fn open(&self, directory: &Path) -> io::Result<()> {
        let made = directory.to_owned();
        blocking_io::within(ANSWER, move || make_directory(&made))
            .await
            .map_err(io::Error::other)??;
        self.directory.send_replace(Some(directory.to_owned()));
        Ok(())
    }

    /// Notes that this machined knows whether there is a disk for logs. From here on no reader waits for it.
    pub fn settle(&self) {
        self.settled.send_replace(true);
    }

    /// Waits until it is known whether there is a disk for logs: the API answers before it is mounted. Returns whether it is known.
    pub async fn is_settled(&self) -> bool {
        let mut settled = self.settled.subscribe();
        let told = settled.wait_for(|settled| *settled);
        tokio::time::timeout(MOUNTING, told).await.is_ok()
    }

    /// Writes the remaining lines and stops using the disk. If the disk is too slow, it is released after a time limit all the same. Readers wait
    /// for a disk from here on: the lines in memory are not the whole log, and the next generation has all of them.
    pub async fn close(&self) {
        if self.directory.send_replace(None).is_some() {
            self.settled.send_replace(false);
        }
        let mut writing = self.writing.subscribe();
        let done = writing.wait_for(|count| *count == 0);
        if tokio::time::timeout(PATIENCE, done).await.is_err() {
            tracing::warn!("the last lines of the logs are not on disk: it is too slow");
        }
    }

    /// Whether logs are written to the disk.
    pub(super) fn is_there(&self) -> bool {
        self.directory.borrow().is_some()
    }

    /// Returns the position in its ring of the first line of a log that the disk refuses, as a full one does.
    pub(super) fn refused_from(&self, name: &str) -> Option<u64> {
        self.lock().get(name).and_then(|log| *log.refused.locked())
    }

    /// Returns the lines of a log on the disk that are older than those in memory; None if there are none.
    pub async fn older(&self, name: &str, older: Older) -> io::Result<Option<OldLines>> {
        let files = self.lock().get(name).map(|log| log.files.clone());
        let Some(files) = files else {
            return Ok(None);
        };
        let read = async {
            let files = loop {
                let files = files.clone().lock_owned().await;
                if files.is_some() || !self.is_there() {
                    break files;
                }
                // The disk is there, and the copier is about to begin.
                drop(files);
                tokio::time::sleep(LOOK_AGAIN).await;
            };
            let read = move || files.as_ref().map(|files| files.older(older)).transpose();
            let read = blocking_io::to_its_end(read).await;
            read.map_err(io::Error::other)?
        };
        match tokio::time::timeout(READ, read).await {
            Ok(read) => read,
            Err(_) => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the disk does not answer",
            )),
        }
    }
}

impl Followed {
    /// Writes the remaining lines and ends the copy. If the disk is too slow, it ends after a time limit all the same.
    pub(super) async fn close(mut self) {
        self.over.send_replace(true);
        let ended = tokio::time::timeout(PATIENCE, &mut self.copier).await;
        if ended.is_err() {
            // Lines that are on their way to the disk still get there, if it ever answers.
            self.copier.abort();
            tracing::warn!(
                "the last lines of the log of {} are not on disk: it is too slow",
                self.name
            );
        }
    }
}

/// Copies one log to the disk.
struct Copier {
    name: String,
    /// Set while the disk is available.
    files: SharedFiles,
    refused: Refused,
    /// Set while the disk is no longer available.
    parked: Option<LogFiles>,
    reader: Reader,
    directory: watch::Receiver<Option<PathBuf>>,
    /// See [`Followed::over`].
    over: watch::Receiver<bool>,
    retry: Duration,
    bucket: Bucket,
    writing: watch::Sender<usize>,
}

/// A token bucket that holds the tokens of one second at most.
struct Bucket {
    /// Tokens per second; also the limit.
    rate: u64,
    /// Negative if it is in debt.
    tokens: i64,
    filled: Instant,
}

impl Bucket {
    fn new(rate: u64, now: Instant) -> Self {
        Bucket {
            rate,
            tokens: rate.cast_signed(),
            filled: now,
        }
    }

    /// Takes `count` tokens; returns the time until they are available.
    fn take(&mut self, count: usize, now: Instant) -> Duration {
        let nanoseconds = now.saturating_duration_since(self.filled).as_nanos();
        let fresh = nanoseconds.saturating_mul(u128::from(self.rate)) / 1_000_000_000;
        let fresh = i64::try_from(fresh).unwrap_or(i64::MAX);
        self.tokens = self
            .tokens
            .saturating_add(fresh)
            .min(self.rate.cast_signed());
        self.filled = now;
        self.tokens = self.tokens.saturating_sub_unsigned(count as u64);
        let debt = self.tokens.min(0).unsigned_abs();
        Duration::from_nanos(debt.saturating_mul(1_000_000_000) / self.rate.max(1))
    }
}

impl Copier {
    async fn live(mut self) {
        loop {
            let directory = tokio::select! {
                // A log that is over is still written to a disk that is there.
                biased;
                there = self.directory.wait_for(Option::is_some) => {
                    there.ok().and_then(|there| there.clone())
                }
                _ = self.over.wait_for(|over| *over) => None,
            };
            let Some(directory) = directory else {
                return;
            };
            let writing = Writing::begin(&self.writing);
            let files = self.parked.take();
            *self.files.lock().await =
                Some(files.unwrap_or_else(|| LogFiles::new(&directory, &self.name)));
            let is_over = self.write(&writing).await;
            self.parked = self.files.lock().await.take();
            if is_over {
                return;
            }
        }
    }

    /// Writes until the disk is about to be unmounted, or the log is over; returns whether it is over.
    async fn write(&mut self, writing: &Arc<Writing>) -> bool {
        loop {
            let begins = self.reader.position();
            let first = match self.reader.next_kept() {
                Some(line) => line,
                None => tokio::select! {
                    // Lines that are there are written first.
                    biased;
                    line = self.reader.next() => line,
                    _ = self.over.wait_for(|over| *over) => return true,
                    _ = self.directory.wait_for(Option::is_none) => return false,
                },
            };
            let mut batch = first.to_vec();
            while batch.len() < BATCH
                && let Some(line) = self.reader.next_kept()
            {
                batch.extend_from_slice(&line);
            }
            let pause = self.bucket.take(batch.len(), Instant::now());
            if !pause.is_zero() {
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    // The end of the pause is not awaited then.
                    _ = self.over.wait_for(|over| *over) => {}
                    _ = self.directory.wait_for(Option::is_none) => {}
                }
            }
            let batch = Arc::new(batch);
            while let Err(error) = self.append(batch.clone(), writing.clone()).await {
                // Logged once: this line has to go to the disk as well.
                let known = self.refused.locked().replace(begins);
                if known.is_none() {
                    tracing::warn!(
                        "the log of {} is kept in memory alone for now: {error}",
                        self.name
                    );
                }
                let is_over = tokio::select! {
                    () = tokio::time::sleep(self.retry) => continue,
                    _ = self.over.wait_for(|over| *over) => true,
                    _ = self.directory.wait_for(Option::is_none) => false,
                };
                self.note_gap().await;
                return is_over;
            }
            if self.refused.locked().take().is_some() {
                tracing::info!("the log of {} is on disk again", self.name);
            }
        }
    }

    async fn note_gap(&self) {
        if let Some(files) = self.files.lock().await.as_mut() {
            files.note_gap();
        }
    }

    /// `writing` counts for as long as the disk needs, even if nobody waits for it any more.
    async fn append(&self, batch: Arc<Vec<u8>>, writing: Arc<Writing>) -> io::Result<()> {
        let mut files = self.files.clone().lock_owned().await;
        let has_lost = self.reader.has_lost();
        let appended = blocking_io::to_its_end(move || {
            let _writing = writing;
            let Some(files) = files.as_mut() else {
                return Ok(());
            };
            if has_lost {
                files.note_gap();
            }
            files.append(&batch).map_err(|error| {
                io::Error::new(error.kind(), format!("{}: {error}", files.path().display()))
            })
        });
        appended.await.map_err(io::Error::other)?
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    async fn until_written(file: &Path, text: &str) {
        let written = async {
            while std::fs::read_to_string(file).unwrap_or_default() != text {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), written)
            .await
            .unwrap_or_else(|_| panic!("{:?}", std::fs::read_to_string(file)));
    }

    async fn older(disk: &LogDisk, ring: &LogRing, tail: Tail) -> String {
        let older = ring.read(tail).older().unwrap();
        let mut lines = disk.older("web", older).await.unwrap().unwrap();
        let mut text = Vec::new();
        while let Some(chunk) = lines.next_chunk().unwrap() {
            text.extend(chunk);
        }
        String::from_utf8(text).unwrap()
    }

    /// As after an upgrade: the API answers before the disk is mounted, and a reader must not take what is in memory for the whole log.
    #[tokio::test]
    async fn a_reader_waits_for_the_disk_of_before() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("web.log"), "before\n").unwrap();
        let (disk, ring) = (LogDisk::default(), LogRing::default());
        disk.follow("web", &ring);
        let reading = async {
            assert!(disk.is_settled().await);
            older(&disk, &ring, Tail::All).await
        };
        let mounting = async {
            tokio::task::yield_now().await;
            disk.open(directory.path()).await.unwrap();
            disk.settle();
        };
        let (read, ()) = tokio::join!(reading, mounting);
        assert_eq!(read, "before\n");
    }

    #[tokio::test(start_paused = true)]
    async fn no_reader_waits_for_ever_for_a_disk_that_does_not_come() {
        assert!(!LogDisk::default().is_settled().await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_disk_that_goes_away_leaves_no_reader_with_half_a_log() {
        let directory = tempfile::tempdir().unwrap();
        let disk = LogDisk::default();
        disk.open(directory.path()).await.unwrap();
        disk.settle();
        disk.close().await;
        assert!(!disk.is_settled().await);
        // Where there was none, the lines in memory are all.
        let none = LogDisk::default();
        none.settle();
        none.close().await;
        assert!(none.is_settled().await);
    }

    #[tokio::test]
    async fn lines_of_before_and_after_the_disk_came_are_on_it() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path().join("log");
        let (disk, ring) = (LogDisk::default(), LogRing::default());
        disk.follow("web", &ring);
        ring.write(b"early\n");
        disk.open(&directory).await.unwrap();
        let file = directory.join("web.log");
        until_written(&file, "early\n").await;
        ring.write(b"late\nhalf");
        until_written(&file, "early\nlate\n").await;
        assert_eq!(older(&disk, &ring, Tail::All).await, "");

        ring.write(b" a line\n");
        disk.close().await;
        let text = std::fs::read_to_string(&file).unwrap();
        assert_eq!(
            text, "early\nlate\nhalf a line\n",
            "closing waits for the rest"
        );
        ring.write(b"away\n");
        assert!(
            disk.older("web", ring.read(Tail::All).older().unwrap())
                .await
                .unwrap()
                .is_none()
        );

        // The next machined.
        let (disk, ring) = (LogDisk::default(), LogRing::default());
        disk.follow("web", &ring);
        disk.open(&directory).await.unwrap();
        ring.write(b"new\n");
        until_written(&file, "early\nlate\nhalf a line\nnew\n").await;
        assert_eq!(
            older(&disk, &ring, Tail::All).await,
            "early\nlate\nhalf a line\n"
        );
        assert_eq!(older(&disk, &ring, Tail::Lines(2)).await, "half a line\n");
    }

    #[test]
    fn a_bucket_gives_a_burst_and_then_its_rate() {
        let start = Instant::now();
        let mut bucket = Bucket::new(1000, start);
        assert_eq!(bucket.take(1000, start), Duration::ZERO);
        assert_eq!(bucket.take(500, start), Duration::from_millis(500));
        let later = start + Duration::from_secs(1);
        assert_eq!(bucket.take(500, later), Duration::ZERO);
        // The bucket never holds more, however long no token was taken.
        let much_later = start + Duration::from_secs(3600);
        assert_eq!(bucket.take(1000, much_later), Duration::ZERO);
        assert_eq!(bucket.take(1, much_later), Duration::from_millis(1));
    }

    #[tokio::test]
    async fn a_service_that_prints_too_much_does_not_wear_the_disk_out() {
        let directory = tempfile::tempdir().unwrap();
        let ring = LogRing::default();
        let disk = LogDisk {
            rate: 64 << 10,
            ..LogDisk::default()
        };
        disk.follow("web", &ring);
        disk.open(directory.path()).await.unwrap();
        let line = [b"x".repeat(1023), b"\n".to_vec()].concat();
        let (mut printed, begun) = (0, Instant::now());
        loop {
            for _ in 0..64 {
                ring.write(&line);
                printed += line.len();
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
            let written = ["web.log", "web.log.1"]
                .map(|name| std::fs::read(directory.path().join(name)).unwrap_or_default());
            let written = String::from_utf8(written.concat()).unwrap();
            // A burst, the tokens of the elapsed time, however fast this host is, and a batch that is being written.
            let worth = begun.elapsed().as_secs_f64() * f64::from(64 << 10);
            let allowed = 2 * (64 << 10) + worth as usize + BATCH;
            assert!(written.len() <= allowed, "{} of {allowed}", written.len());
            let is_said = written.contains("older lines were dropped]");
            if is_said && printed > 4 * written.len() {
                return;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "{printed}");
        }
    }

    #[tokio::test]
    async fn a_disk_that_refuses_costs_nothing_but_waiting() {
        let directory = tempfile::tempdir().unwrap();
        let ring = LogRing::default();
        let disk = LogDisk {
            retry: Duration::from_millis(20),
            ..LogDisk::default()
        };
        disk.follow("web", &ring);
        // A directory in place of the log; a full disk fails at the same point.
        let file = directory.path().join("web.log");
        std::fs::create_dir(&file).unwrap();
        disk.open(directory.path()).await.unwrap();
        ring.write(b"one\n");
        tokio::time::sleep(3 * disk.retry).await;
        ring.write(b"two\n");
        let refused = disk.refused_from("web").unwrap();
        assert_eq!(ring.contents_from(refused), b"one\ntwo\n");
        std::fs::remove_dir(&file).unwrap();
        until_written(&file, "one\ntwo\n").await;
        let taken = async {
            while disk.refused_from("web").is_some() {
                tokio::task::yield_now().await;
            }
        };
        let taken = tokio::time::timeout(Duration::from_secs(10), taken).await;
        assert_eq!(taken, Ok(()));
    }

    /// A disk that answers no more, and one that refuses.
    #[tokio::test(start_paused = true)]
    async fn a_forgotten_log_ends_whatever_the_disk_does() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("refused.log")).unwrap();
        for (name, takes) in [("silent", PATIENCE), ("refused", Duration::ZERO)] {
            let (disk, ring) = (LogDisk::default(), LogRing::default());
            disk.follow(name, &ring);
            disk.open(directory.path()).await.unwrap();
            let files = disk.lock()[name].files.clone();
            while files.lock().await.is_none() {
                tokio::task::yield_now().await;
            }
            // As a thread has it that waits for the disk.
            let busy = (name == "silent").then_some(files.lock_owned().await);
            ring.write(b"one\n");
            let is_held = ring.is_held();
            drop(ring);
            let begun = tokio::time::Instant::now();
            disk.forget(name).unwrap().close().await;
            assert_eq!(begun.elapsed(), takes, "{name}");
            // Nothing of it is left to wait for.
            disk.close().await;
            assert_eq!(begun.elapsed(), takes, "{name}");
            assert!(!is_held(), "{name}");
            drop(busy);
        }
    }
}
