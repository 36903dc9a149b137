//! A directory and everything below it, one entry at a time: a directory before its contents, names in order.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::view::{FileError, Found, Kind};

/// Depth limit of a walk: real trees are not deeper, and every level keeps a directory open.
const DEEPEST: usize = 64;

/// The depth that a walk goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// Levels below the root of the walk: 0 is the root alone.
    Levels(usize),
    /// To the bottom.
    All,
}

impl Depth {
    fn reaches(self, level: usize) -> bool {
        match self {
            Depth::Levels(levels) => level <= levels.min(DEEPEST),
            Depth::All => level <= DEEPEST,
        }
    }
}

/// A file that the walk came to.
#[derive(Debug)]
pub struct Entry {
    /// The file itself.
    pub found: Found,
    /// The path in the caller's words: the root as requested, and the path below it.
    pub name: PathBuf,
    /// The path from the root; `.` for the root itself.
    pub relative: PathBuf,
    /// Levels below the root.
    pub level: usize,
}

/// One step of a walk.
#[derive(Debug)]
pub enum Step {
    /// A file. If it is a directory, its contents come next.
    Entry(Box<Entry>),
    /// A file that could not be looked at.
    Trouble {
        /// The path in the caller's words.
        name: PathBuf,
        /// The path from the root.
        relative: PathBuf,
        /// The reason.
        error: FileError,
    },
    /// The end of a directory.
    Left {
        /// The path in the caller's words.
        name: PathBuf,
        /// The path from the root.
        relative: PathBuf,
        /// Levels below the root.
        level: usize,
    },
}

struct Level {
    directory: Found,
    name: PathBuf,
    relative: PathBuf,
    names: std::vec::IntoIter<OsString>,
    /// An error of reading the directory, reported after the names that could be read.
    trouble: Option<FileError>,
}

/// A walk over a directory. It holds one directory open per level.
pub struct Walk {
    root: Option<Found>,
    name: PathBuf,
    depth: Depth,
    levels: Vec<Level>,
    /// The directory that was reported last; its contents come next.
    next: Option<(Found, PathBuf, PathBuf)>,
}

impl Walk {
    /// Starts at a file that was found under this name.
    pub fn new(root: Found, name: &str, depth: Depth) -> Self {
        Walk {
            root: Some(root),
            name: PathBuf::from(name),
            depth,
            levels: Vec::new(),
            next: None,
        }
    }

    /// Returns whether the last entry is a directory whose contents come next.
    pub(super) fn goes_into(&self) -> bool {
        self.next.is_some()
    }

    fn enter(&mut self, directory: Found, name: PathBuf, relative: PathBuf) -> Option<Step> {
        match directory.names() {
            Ok((names, trouble)) => {
                self.levels.push(Level {
                    directory,
                    name,
                    relative,
                    names: names.into_iter(),
                    trouble,
                });
                None
            }
            Err(error) => Some(Step::Trouble {
                name,
                relative,
                error,
            }),
        }
    }

    /// Returns the entry of a file, and remembers a directory whose contents are to follow.
    fn tell(&mut self, found: Found, name: PathBuf, relative: PathBuf) -> Step {
        let level = self.levels.len();
        let below =
            found.kind() == Kind::Directory && found.is_open() && self.depth.reaches(level + 1);
        if below && let Ok(again) = found.try_clone() {
            self.next = Some((again, name.clone(), relative.clone()));
        }
        Step::Entry(Box::new(Entry {
            found,
            name,
            relative,
            level,
        }))
    }
}

impl Iterator for Walk {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        if let Some(root) = self.root.take() {
            return Some(self.tell(root, self.name.clone(), PathBuf::from(".")));
        }
        if let Some((directory, name, relative)) = self.next.take()
            && let Some(trouble) = self.enter(directory, name, relative)
        {
            return Some(trouble);
        }
        loop {
            let level = self.levels.last_mut()?;
            let Some(entry) = level.names.next() else {
                if let Some(error) = level.trouble.take() {
                    return Some(Step::Trouble {
                        name: level.name.clone(),
                        relative: level.relative.clone(),
                        error,
                    });
                }
                let done = self.levels.pop()?;
                return Some(Step::Left {
                    name: done.name,
                    relative: done.relative,
                    level: self.levels.len(),
                });
            };
            let name = level.name.join(&entry);
            let relative = if level.relative == Path::new(".") {
                PathBuf::from(&entry)
            } else {
                level.relative.join(&entry)
            };
            match level.directory.entry(&entry) {
                Ok(found) => return Some(self.tell(found, name, relative)),
                // The file is gone since the directory was read, as happens with processes.
                Err(FileError::Io { source, .. })
                    if source.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => {
                    return Some(Step::Trouble {
                        name,
                        relative,
                        error,
                    });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::files::View;

    fn told(root: &Path, depth: Depth) -> Vec<String> {
        let root = root.to_str().unwrap();
        let found = View::of_this_machine().find(root).unwrap();
        Walk::new(found, root, depth)
            .map(|step| match step {
                Step::Entry(entry) => format!("{} {}", entry.level, entry.relative.display()),
                Step::Left {
                    relative, level, ..
                } => format!("{level} {} done", relative.display()),
                Step::Trouble { error, .. } => error.to_string(),
            })
            .collect()
    }

    #[test]
    fn directories_come_before_what_is_in_them() {
        let scratch = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(scratch.path().join("b/c")).unwrap();
        std::fs::write(scratch.path().join("b/c/file"), "x").unwrap();
        std::fs::write(scratch.path().join("a"), "x").unwrap();
        std::os::unix::fs::symlink(scratch.path(), scratch.path().join("z")).unwrap();
        assert_eq!(
            told(scratch.path(), Depth::All),
            [
                "0 .",
                "1 a",
                "1 b",
                "2 b/c",
                "3 b/c/file",
                "2 b/c done",
                "1 b done",
                "1 z",
                "0 . done"
            ]
        );
        assert_eq!(
            told(scratch.path(), Depth::Levels(1)),
            ["0 .", "1 a", "1 b", "1 z", "0 . done"]
        );
        assert_eq!(told(scratch.path(), Depth::Levels(0)), ["0 ."]);
        assert_eq!(told(&scratch.path().join("a"), Depth::All), ["0 ."]);
    }

    #[test]
    fn what_is_hidden_is_named_and_not_entered() {
        let own = format!("/proc/{}", std::process::id());
        let told = told(Path::new(&own), Depth::All);
        assert!(told.contains(&"1 environ".to_owned()), "{told:?}");
        assert!(told.contains(&"1 fd".to_owned()), "{told:?}");
        assert!(!told.iter().any(|step| step.contains("fd/")), "{told:?}");
    }

    #[test]
    fn a_pit_ends() {
        let scratch = tempfile::tempdir().unwrap();
        let deep: PathBuf = std::iter::repeat_n("d", 200).collect();
        std::fs::create_dir_all(scratch.path().join(deep)).unwrap();
        let entries = told(scratch.path(), Depth::All)
            .iter()
            .filter(|step| !step.ends_with("done"))
            .count();
        assert_eq!(entries, DEEPEST + 1);
    }
}
