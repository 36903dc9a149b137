//! A directory and what is below it, one entry at a time: directories before what is in them, names in order.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::view::{FileError, Found, Kind};

/// Deeper than this nobody has files, and every level keeps a directory open.
const DEEPEST: usize = 64;

/// How far down a walk goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// So many levels below the root of the walk: 0 is the root alone.
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

/// A file on the way.
#[derive(Debug)]
pub struct Entry {
    /// The file itself.
    pub found: Found,
    /// As the caller would name it: the root as asked for, and what is below.
    pub name: PathBuf,
    /// From the root; `.` for the root itself.
    pub relative: PathBuf,
    /// How far below the root.
    pub level: usize,
}

/// What a walk comes by.
#[derive(Debug)]
pub enum Step {
    /// A file; what is in it, if it is a directory, comes next.
    Entry(Box<Entry>),
    /// Something that could not be looked at.
    Trouble {
        /// As the caller would name it.
        name: PathBuf,
        /// From the root.
        relative: PathBuf,
        /// Why.
        error: FileError,
    },
    /// A directory is done.
    Left {
        /// As the caller would name it.
        name: PathBuf,
        /// From the root.
        relative: PathBuf,
        /// How far below the root.
        level: usize,
    },
}

struct Level {
    directory: Found,
    name: PathBuf,
    relative: PathBuf,
    names: std::vec::IntoIter<OsString>,
    /// Told after the names that are there.
    trouble: Option<FileError>,
}

/// The walk. It holds one directory open per level.
pub struct Walk {
    root: Option<Found>,
    name: PathBuf,
    depth: Depth,
    levels: Vec<Level>,
    /// The directory whose entry was told last, to go into next.
    next: Option<(Found, PathBuf, PathBuf)>,
}

impl Walk {
    /// From a file that was found under this name.
    pub fn new(root: Found, name: &str, depth: Depth) -> Self {
        Walk {
            root: Some(root),
            name: PathBuf::from(name),
            depth,
            levels: Vec::new(),
            next: None,
        }
    }

    /// Whether the entry that was told last is a directory whose entries come next.
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

    /// Tells of a file, and remembers to go into it where that is wanted.
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
                // Gone since the directory was read, as processes are.
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
