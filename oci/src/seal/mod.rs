//! Seals of trees: one digest over everything in an unpacked image, so that a flipped byte is found before it runs.
//!
//! ```text
//! walk, in the order of names ─► contents, hashed on all cores ─► entries, in order ─► seal
//! ```
//!
//! An entry's hash covers its path, type, mode, owner, size, time, link target, extended attributes and content. The seal's digest is the hash
//! of these hashes. A list with the first 8 bytes of each is kept beside it, only to name the entry that has changed.
//!
//! blake3 rather than sha256: it is the machine's own record, no registry sees it, and it is several times faster.

mod contents;
mod entry;
mod walk;

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use contents::{Contents, with_threads};
pub(crate) use entry::{ContentHash, Metadata};
pub(crate) use walk::Place;
use walk::{Visited, Walk};

/// The seal of a tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct Seal {
    /// The digest over all entries, in hexadecimal digits.
    pub(crate) digest: String,
    /// Number of entries, its root among them.
    pub(crate) entries: u64,
    /// Bytes of its regular files.
    pub(crate) bytes: u64,
}

/// The smallest file whose hash is kept for its other names, in bytes: smaller ones are hashed again in no time.
const WORTH_KEEPING: u64 = 64 << 10;

/// Bytes of an entry's hash in the list of entries.
const SHORT: usize = 8;

/// A regular file of a tree that is being sealed.
pub(crate) struct SealedFile<'a, O> {
    /// Its place.
    pub(crate) place: &'a Place,
    /// Its metadata.
    pub(crate) metadata: &'a Metadata,
    /// The findings of the thread that has hashed it.
    pub(crate) found: O,
}

/// Follows the sealing of a tree, for those who do more with its files.
pub(crate) trait Follow: Sync {
    /// The findings of `look`.
    type Found: Send;

    /// Looks for something about a file, on one of several threads.
    fn look(
        &self,
        metadata: &Metadata,
        content: &ContentHash,
        links: u64,
    ) -> io::Result<Self::Found>;
}

/// Seals a tree, and writes the list of its entries. `then` is told about each regular file in its turn.
pub(crate) fn seal<F: Follow>(
    root: &Path,
    list: &mut dyn Write,
    follow: &F,
    then: &mut dyn FnMut(SealedFile<'_, F::Found>) -> io::Result<()>,
) -> io::Result<Seal> {
    each_entry(root, follow, &mut |entry, hash| {
        list.write_all(&hash.as_bytes()[..SHORT])?;
        match entry.found {
            Some(found) => then(SealedFile {
                place: &entry.place,
                metadata: &entry.metadata,
                found,
            }),
            None => Ok(()),
        }
    })
}

/// Seals a tree again, and names the first entry that is not the one of the list.
pub(crate) fn seal_again(root: &Path, list: &mut dyn Read) -> io::Result<(Seal, Option<String>)> {
    let mut first = None;
    let seal = each_entry(root, &Nothing, &mut |entry, hash| {
        let mut expected = [0; SHORT];
        let is_same =
            list.read_exact(&mut expected).is_ok() && hash.as_bytes()[..SHORT] == expected;
        if !is_same && first.is_none() {
            first = Some(format!("/{}", String::from_utf8_lossy(&entry.place.path)));
        }
        Ok(())
    })?;
    Ok((seal, first))
}

/// The hash of a file's content.
pub(crate) fn content_of(file: File) -> io::Result<ContentHash> {
    contents::hash(file, &mut vec![0; 64 << 10])
}

/// The metadata of an open file.
pub(crate) fn metadata_of(file: &File) -> io::Result<Metadata> {
    use std::os::fd::AsFd as _;
    let stat = rustix::fs::fstat(file)?;
    Metadata::of(file.as_fd(), &stat)
}

/// Does nothing more with files.
pub(crate) struct Nothing;

impl Follow for Nothing {
    type Found = ();

    fn look(&self, _: &Metadata, _: &ContentHash, _: u64) -> io::Result<()> {
        Ok(())
    }
}

/// An entry in its turn.
struct Entry<O> {
    place: Place,
    metadata: Metadata,
    /// Of a regular file.
    found: Option<O>,
}

/// An entry that waits for its turn.
type Waiting = (Place, Metadata);
/// The facts that a thread gets about a file beside its content: its metadata, and the number of names of its inode.
type Question = (Metadata, u64);
/// The hash of a file's content, and what was found about it; `None` for an entry that is no file.
type Answer<O> = Option<(ContentHash, O)>;

/// Gets each entry and its hash.
type InTurn<'a, O> = &'a mut dyn FnMut(Entry<O>, &blake3::Hash) -> io::Result<()>;

/// Calls `then` for each entry with its hash, in the order of the walk.
fn each_entry<F: Follow>(root: &Path, follow: &F, then: InTurn<'_, F::Found>) -> io::Result<Seal> {
    let answer = |(metadata, links): Question, content| {
        let found = follow.look(&metadata, &content, links)?;
        Ok(Some((content, found)))
    };
    let mut totals = Totals::default();
    let mut in_turn = |(place, metadata): Waiting, answer: Answer<F::Found>| {
        let content = answer.as_ref().map(|(content, _)| content);
        let hash = metadata.hash_at(&place.path, content);
        totals.add(&hash, metadata.size());
        let found = answer.map(|(_, found)| found);
        let entry = Entry {
            place,
            metadata,
            found,
        };
        then(entry, &hash)
    };
    with_threads(&answer, |contents: &mut Contents<_, _, _>| {
        let mut walk = Walk::new(root)?;
        while let Some(visited) = walk.next()? {
            add(contents, visited);
            if contents.is_full()
                && let Some((waiting, answer)) = contents.take()?
            {
                in_turn(waiting, answer)?;
            }
        }
        while let Some((waiting, answer)) = contents.take()? {
            in_turn(waiting, answer)?;
        }
        Ok::<_, io::Error>(())
    })?;
    Ok(totals.seal())
}

fn add<O>(contents: &mut Contents<Waiting, Question, Answer<O>>, visited: Visited) {
    let Visited {
        place,
        metadata,
        file,
        inode,
        links,
    } = visited;
    match file {
        Some(file) => {
            let named_again = (links > 1 && metadata.size() >= WORTH_KEEPING).then_some(inode);
            let question = (metadata.clone(), links);
            contents.add((place, metadata), question, file, named_again);
        }
        None => contents.add_known((place, metadata), None),
    }
}

#[derive(Default)]
struct Totals {
    hasher: blake3::Hasher,
    entries: u64,
    bytes: u64,
}

impl Totals {
    fn add(&mut self, entry: &blake3::Hash, bytes: u64) {
        self.hasher.update(entry.as_bytes());
        self.entries += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }

    fn seal(self) -> Seal {
        Seal {
            digest: self.hasher.finalize().to_hex().to_string(),
            entries: self.entries,
            bytes: self.bytes,
        }
    }
}

#[cfg(test)]
mod tests;
