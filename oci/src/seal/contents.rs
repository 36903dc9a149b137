//! Hashes the contents of files on as many threads as there are cores, and gives the results back in the order of the questions.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, Read as _};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};

use super::entry::ContentHash;
use instar_base::lock::Lock as _;

/// Limit on files that are open for hashing.
const MOST_OPEN: usize = 32;
/// Limit on threads: with more, a disk is the slower part.
const MOST_THREADS: usize = 8;
/// Buffer size of a thread, in bytes: hashing is fastest by pieces of 16 KiB and more.
const BUFFER: usize = 64 << 10;

/// Limit on files whose hash is kept for their other names: it takes memory. The limits on an unpacked image leave room for as many files of
/// 64 KiB.
const MOST_KNOWN: usize = 64 << 10;

/// Device and number of a file: the same for all its names.
pub(super) type Inode = (u64, u64);

/// The hashes of files that have several names. A layer of few KiB can give a large file 100,000s of them, and hashing it for each would take
/// days.
type Known = Mutex<BTreeMap<Inode, ContentHash>>;

struct Job<Q, T> {
    question: Q,
    file: File,
    named_again: Option<Inode>,
    answer: SyncSender<io::Result<T>>,
}

/// A question whose turn has not come: its answer is known, or a thread works on it.
enum Pending<T> {
    Known(T),
    Asked(Receiver<io::Result<T>>),
}

/// The questions in their order, and the threads that answer them.
pub(super) struct Contents<E, Q, T> {
    jobs: SyncSender<Job<Q, T>>,
    pending: VecDeque<(E, Pending<T>)>,
}

impl<E, Q, T> Contents<E, Q, T> {
    /// Adds an entry whose answer is known.
    pub(super) fn add_known(&mut self, entry: E, answer: T) {
        self.pending.push_back((entry, Pending::Known(answer)));
    }

    /// Adds an entry whose file is to be read. `named_again`: its inode, if it is worth keeping the hash for another name of it.
    pub(super) fn add(&mut self, entry: E, question: Q, file: File, named_again: Option<Inode>) {
        let (sender, answer) = sync_channel(1);
        let job = Job {
            question,
            file,
            named_again,
            answer: sender,
        };
        // Threads live as long as this; if they did not, the answer would say so.
        let _ = self.jobs.send(job);
        self.pending.push_back((entry, Pending::Asked(answer)));
    }

    /// Whether an answer has to be taken before the next entry is added.
    pub(super) fn is_full(&self) -> bool {
        self.pending.len() >= MOST_OPEN
    }

    /// The oldest entry and its answer; waits for the thread that works on it. `None` if there is none.
    pub(super) fn take(&mut self) -> io::Result<Option<(E, T)>> {
        let Some((entry, pending)) = self.pending.pop_front() else {
            return Ok(None);
        };
        let answer = match pending {
            Pending::Known(answer) => answer,
            Pending::Asked(answer) => answer
                .recv()
                .unwrap_or_else(|_| Err(io::Error::other("hashing was interrupted")))?,
        };
        Ok(Some((entry, answer)))
    }
}

/// Runs work with threads that hash files. `answer` gets a file's question and the hash of its content, in one of the threads.
pub(super) fn with_threads<E, Q: Send, T: Send, R>(
    answer: &(impl Fn(Q, ContentHash) -> io::Result<T> + Sync),
    work: impl FnOnce(&mut Contents<E, Q, T>) -> R,
) -> R {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let (jobs, queue) = sync_channel::<Job<Q, T>>(MOST_OPEN);
    let queue = Arc::new(Mutex::new(queue));
    let known = Known::default();
    std::thread::scope(|scope| {
        for _ in 0..threads.min(MOST_THREADS) {
            let (queue, known) = (queue.clone(), &known);
            scope.spawn(move || {
                let mut buffer = vec![0; BUFFER];
                while let Some(job) = next(&queue) {
                    let hash = hash_once(known, job.named_again, job.file, &mut buffer);
                    let answered = hash.and_then(|hash| answer(job.question, hash));
                    // The walk may have failed, and want no answer.
                    let _ = job.answer.send(answered);
                }
            });
        }
        let mut contents = Contents {
            jobs,
            pending: VecDeque::new(),
        };
        // Its end drops the sender, and the threads end.
        work(&mut contents)
    })
}

fn next<J>(queue: &Mutex<Receiver<J>>) -> Option<J> {
    queue.locked().recv().ok()
}

/// The hash of a file's content, from another of its names if that is known.
fn hash_once(
    known: &Known,
    named_again: Option<Inode>,
    file: File,
    buffer: &mut [u8],
) -> io::Result<ContentHash> {
    let Some(inode) = named_again else {
        return hash(file, buffer);
    };
    let before = known.locked().get(&inode).copied();
    if let Some(before) = before {
        return Ok(before);
    }
    let hash = hash(file, buffer)?;
    let mut known = known.locked();
    if known.len() < MOST_KNOWN {
        known.insert(inode, hash);
    }
    Ok(hash)
}

/// The hash of a file's content.
pub(super) fn hash(mut file: File, buffer: &mut [u8]) -> io::Result<ContentHash> {
    let mut hasher = blake3::Hasher::new();
    loop {
        match file.read(buffer) {
            Ok(0) => return Ok(hasher.finalize()),
            Ok(count) => {
                hasher.update(&buffer[..count]);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
