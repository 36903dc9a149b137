//! The room that a directory and the files below it take on their disks.

use std::path::PathBuf;

use super::view::FileError;
use super::walk::{Depth, Step, Walk};

/// Files that are counted before the iterator returns to its caller.
const AT_A_TIME: usize = 256;

/// The room of one file or directory.
#[derive(Debug)]
pub struct Usage {
    /// The path in the caller's words.
    pub name: PathBuf,
    /// The path from the root; `.` for the root itself.
    pub relative: PathBuf,
    /// Bytes on disk, including those of everything below it.
    pub bytes: Result<u64, FileError>,
}

/// An iterator that counts every file and reports the requested ones: a directory after its contents.
pub struct DiskUsage {
    walk: Walk,
    shown: Depth,
    files: bool,
    /// The sums so far, in bytes, of the directories that the walk is in.
    sums: Vec<u64>,
}

impl DiskUsage {
    /// Counts over a walk to the bottom. `shown` limits the depth of the reported entries; `files` says whether files are reported too.
    pub fn new(walk: Walk, shown: Depth, files: bool) -> Self {
        DiskUsage {
            walk,
            shown,
            files,
            sums: Vec::new(),
        }
    }

    fn is_shown(&self, level: usize) -> bool {
        match self.shown {
            Depth::All => true,
            Depth::Levels(levels) => level <= levels,
        }
    }
}

/// `Some(None)` means that it is still counting; it comes after every few files.
impl Iterator for DiskUsage {
    type Item = Option<Usage>;

    fn next(&mut self) -> Option<Option<Usage>> {
        for _ in 0..AT_A_TIME {
            match self.walk.next()? {
                Step::Entry(entry) => {
                    // stat(2) counts in units of 512 bytes, whatever the filesystem's block size.
                    let bytes = u64::try_from(entry.found.stat().st_blocks).unwrap_or(0) * 512;
                    if self.walk.goes_into() {
                        self.sums.push(bytes);
                        continue;
                    }
                    if let Some(sum) = self.sums.last_mut() {
                        *sum += bytes;
                    }
                    if entry.level == 0 || self.files && self.is_shown(entry.level) {
                        return Some(Some(Usage {
                            name: entry.name,
                            relative: entry.relative,
                            bytes: Ok(bytes),
                        }));
                    }
                }
                Step::Left {
                    name,
                    relative,
                    level,
                } => {
                    let bytes = self.sums.pop().unwrap_or(0);
                    if let Some(sum) = self.sums.last_mut() {
                        *sum += bytes;
                    }
                    if self.is_shown(level) {
                        return Some(Some(Usage {
                            name,
                            relative,
                            bytes: Ok(bytes),
                        }));
                    }
                }
                Step::Trouble {
                    name,
                    relative,
                    error,
                } => {
                    return Some(Some(Usage {
                        name,
                        relative,
                        bytes: Err(error),
                    }));
                }
            }
        }
        Some(None)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::files::View;

    #[test]
    fn directories_hold_what_is_in_them() {
        let scratch = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(scratch.path().join("a/b")).unwrap();
        std::fs::write(scratch.path().join("a/b/file"), vec![1; 100_000]).unwrap();
        let root = scratch.path().to_str().unwrap();
        let told = |shown, files| -> Vec<(String, u64)> {
            let found = View::of_this_machine().find(root).unwrap();
            DiskUsage::new(Walk::new(found, root, Depth::All), shown, files)
                .flatten()
                .map(|usage| (usage.relative.display().to_string(), usage.bytes.unwrap()))
                .collect()
        };
        let all = told(Depth::All, true);
        let names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["a/b/file", "a/b", "a", "."]);
        assert!(all[0].1 >= 100_000, "{all:?}");
        assert!(all.windows(2).all(|pair| pair[0].1 <= pair[1].1), "{all:?}");
        assert_eq!(told(Depth::Levels(0), true).len(), 1);
        assert_eq!(told(Depth::Levels(1), false).len(), 2);
        assert_eq!(told(Depth::Levels(0), false)[0].1, all[3].1);
    }
}
