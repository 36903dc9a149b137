//! Changes the content of a directory as a whole.
//!
//! ```text
//!   new entries are made beside it ──► everything is moved into its place, and what goes out of it ──► what went is removed
//!               │ fails                               │ fails
//!               ▼                                     ▼
//!        nothing has changed              the moves are made backwards: as before
//! ```
//!
//! Only the first step needs room. A file that is replaced is there at every moment, as a whole.

use std::fs;
use std::io;
use std::mem::discriminant;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::entries::{Entries, Entry};
use crate::base::removal;

/// A move between the directory and the one beside it, by the path below the directory.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Move {
    /// An entry comes to a path where nothing is.
    Come(PathBuf),
    /// An entry goes.
    Go(PathBuf),
    /// An entry takes the place of another one.
    Replace(PathBuf),
}

impl Move {
    fn path(&self) -> &Path {
        match self {
            Move::Come(path) | Move::Go(path) | Move::Replace(path) => path,
        }
    }

    /// Returns the move that takes this one back.
    fn back(&self) -> Self {
        match self {
            Move::Come(path) => Move::Go(path.clone()),
            Move::Go(path) => Move::Come(path.clone()),
            Move::Replace(path) => Move::Replace(path.clone()),
        }
    }
}

/// The step that has failed, and why.
#[derive(Debug)]
pub(super) enum Failed {
    /// The directory beside cannot be made.
    Beside(io::Error),
    /// An entry, by its path.
    Entry(PathBuf, io::Error),
}

/// Makes a directory, which has the entries `there`, have the wanted ones. `beside`: a directory of the same filesystem, used for nothing
/// else.
///
/// # Errors
/// The first failure; the directory has the previous entries.
pub(super) fn exchange(
    root: &Path,
    there: &Entries,
    wanted: &Entries,
    beside: &Path,
) -> Result<(), Failed> {
    let moves = moves(there, wanted);
    if moves.is_empty() {
        return Ok(());
    }
    let beside = Beside::empty(beside).map_err(Failed::Beside)?;
    for (number, it) in moves.iter().enumerate() {
        if let (Move::Come(path) | Move::Replace(path), Some(entry)) = (it, wanted.get(it.path())) {
            let made = entry.make(&beside.place(number));
            made.map_err(|error| Failed::Entry(path.clone(), error))?;
        }
    }
    all_or_none(&moves, |number, it| beside.carry_out(root, number, it))
}

/// Returns the moves that make the entries the wanted ones.
fn moves(there: &Entries, wanted: &Entries) -> Vec<Move> {
    let is_of_same_kind = |path: &Path, entry: &Entry| {
        wanted.get(path).map(discriminant) == Some(discriminant(entry))
    };
    // Backwards, because a directory comes before its content.
    let go = there.iter().rev();
    let go = go.filter(|(path, entry)| !is_of_same_kind(path, entry));
    let go = go.map(|(path, _)| Move::Go(path.clone()));
    let others = wanted.iter().filter_map(|(path, entry)| {
        let path = path.clone();
        match there.get(&path) {
            Some(there) if there == entry => None,
            Some(there) if discriminant(there) == discriminant(entry) => Some(Move::Replace(path)),
            _ => Some(Move::Come(path)),
        }
    });
    go.chain(others).collect()
}

/// Carries out the moves; if one fails, those before it are taken back, the last one first.
fn all_or_none(
    moves: &[Move],
    mut carry_out: impl FnMut(usize, &Move) -> io::Result<()>,
) -> Result<(), Failed> {
    for (number, it) in moves.iter().enumerate() {
        let Err(failed) = carry_out(number, it) else {
            continue;
        };
        for (number, done) in moves.iter().enumerate().take(number).rev() {
            if let Err(error) = carry_out(number, &done.back()) {
                let path = done.path().display();
                tracing::error!(
                    "/etc/{path} is not as it was before a change that failed: {error}"
                );
            }
        }
        return Err(Failed::Entry(it.path().to_owned(), failed));
    }
    Ok(())
}

/// The directory beside the one that changes: a place for each move. It is removed at the end, with all that went.
struct Beside(PathBuf);

impl Beside {
    fn empty(path: &Path) -> io::Result<Self> {
        // A machined that died left the last one.
        removal::tree(path)?;
        // An entry of it may be for some users only.
        fs::DirBuilder::new().mode(0o700).create(path)?;
        Ok(Beside(path.to_owned()))
    }

    fn place(&self, number: usize) -> PathBuf {
        self.0.join(number.to_string())
    }

    fn carry_out(&self, root: &Path, number: usize, it: &Move) -> io::Result<()> {
        let (place, path) = (self.place(number), root.join(it.path()));
        match it {
            Move::Come(_) => fs::rename(place, path),
            Move::Go(_) => fs::rename(path, place),
            Move::Replace(_) => Ok(renameat_with(CWD, place, CWD, path, RenameFlags::EXCHANGE)?),
        }
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        if let Err(error) = removal::tree(&self.0) {
            tracing::warn!("{} stays: {error}", self.0.display());
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::entries::read;
    use super::*;

    fn file(content: &str) -> Entry {
        Entry::File(0o640, content.as_bytes().to_vec())
    }

    fn entries(all: &[(&str, Entry)]) -> Entries {
        all.iter()
            .map(|(path, entry)| (PathBuf::from(path), entry.clone()))
            .collect()
    }

    /// Every kind of change: of content, of a link, of a file to a directory and back; entries that come, go and stay.
    fn change() -> (Entries, Entries) {
        let link = |target: &str| Entry::Link(target.into());
        let there = entries(&[
            ("a", file("old")),
            ("b", file("a file")),
            ("c", Entry::Directory),
            ("c/d", file("below")),
            ("e", link("old")),
            ("f", file("stays")),
        ]);
        let wanted = entries(&[
            ("a", file("new")),
            ("b", Entry::Directory),
            ("b/g", file("below")),
            ("c", file("a file")),
            ("e", link("new")),
            ("f", file("stays")),
            ("h", file("comes")),
        ]);
        (there, wanted)
    }

    struct Place {
        _above: tempfile::TempDir,
        root: PathBuf,
        beside: PathBuf,
    }

    impl Place {
        fn with(there: &Entries) -> Self {
            let above = tempfile::tempdir().unwrap();
            let (root, beside) = (above.path().join("etc"), above.path().join("beside"));
            fs::create_dir(&root).unwrap();
            for (path, entry) in there {
                entry.make(&root.join(path)).unwrap();
            }
            Place {
                _above: above,
                root,
                beside,
            }
        }
    }

    #[test]
    fn everything_changes_and_nothing_is_left_beside_it() {
        let (there, wanted) = change();
        let place = Place::with(&there);
        // The leftover of a machined that died.
        fs::create_dir(&place.beside).unwrap();
        fs::write(place.beside.join("0"), "left").unwrap();
        exchange(&place.root, &there, &wanted, &place.beside).unwrap();
        assert_eq!(read(&place.root).unwrap(), wanted);
        assert!(!place.beside.exists());
    }

    #[test]
    fn a_move_that_fails_takes_those_before_it_back() {
        let (there, wanted) = change();
        let moves = moves(&there, &wanted);
        assert_eq!(moves.len(), 9);
        for fails in 0..moves.len() {
            let place = Place::with(&there);
            let beside = Beside::empty(&place.beside).unwrap();
            for (number, it) in moves.iter().enumerate() {
                if !matches!(it, Move::Go(_)) {
                    wanted[it.path()].make(&beside.place(number)).unwrap();
                }
            }
            let mut is_broken = true;
            let carried_out = all_or_none(&moves, |number, it| {
                if number == fails && std::mem::take(&mut is_broken) {
                    return Err(io::ErrorKind::StorageFull.into());
                }
                beside.carry_out(&place.root, number, it)
            });
            let failed = carried_out.unwrap_err();
            assert!(matches!(failed, Failed::Entry(path, _) if path == moves[fails].path()));
            assert_eq!(read(&place.root).unwrap(), there, "{fails}");
        }
    }

    #[test]
    fn an_entry_that_cannot_be_made_changes_nothing() {
        let there = entries(&[("a", file("old"))]);
        let place = Place::with(&there);
        // The kernel takes no link to a longer path.
        let long = Entry::Link("x".repeat(5000).into());
        let wanted = entries(&[("a", file("new")), ("b", long)]);
        let failed = exchange(&place.root, &there, &wanted, &place.beside).unwrap_err();
        assert!(matches!(failed, Failed::Entry(path, _) if path == Path::new("b")));
        assert_eq!(read(&place.root).unwrap(), there);
        assert!(!place.beside.exists());
    }
}
