//! A disk that forgets unflushed writes: the names and contents that a power cut can leave.

use std::{
    collections::BTreeMap,
    io::{self, Cursor, ErrorKind, Read},
};

use instar_esp::Volume;

/// The contents by name, so that a file keeps its content when it is renamed.
type Names = BTreeMap<String, usize>;
/// The contents on the disk.
type Contents = Vec<Vec<u8>>;

/// A write that is not flushed yet: it may be on the disk, or not.
#[derive(Clone, Debug)]
enum Change {
    Named {
        path: String,
        content: usize,
    },
    Removed {
        path: String,
        content: usize,
    },
    Replaced {
        from: String,
        to: String,
    },
    /// `reused` are the contents of files whose removal was not yet flushed at the time of this write: it takes their clusters.
    Written {
        content: usize,
        bytes: Vec<u8>,
        reused: Vec<usize>,
    },
}

/// The disk, as programs see it and as it is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Disk {
    seen: Names,
    seen_contents: Contents,
    stored: Names,
    stored_contents: Contents,
    pending: Vec<Change>,
    /// The content of deleted files in the clusters that the next file takes.
    stale: Vec<u8>,
    pub(crate) capacity: u64,
}

impl Disk {
    pub(crate) fn new() -> Self {
        Self {
            capacity: 1 << 30,
            ..Self::default()
        }
    }

    /// A disk with these files, all flushed.
    fn settled(names: Names, contents: Contents, stale: Vec<u8>, capacity: u64) -> Self {
        Self {
            seen: names.clone(),
            seen_contents: contents.clone(),
            stored: names,
            stored_contents: contents,
            pending: Vec::new(),
            stale,
            capacity,
        }
    }

    /// Every disk that a power cut at this moment can leave: each write since the last flush made or lost, and of each lost content
    /// nothing, half, or the earlier content of its clusters.
    pub(crate) fn after_power_cuts(&self) -> Vec<Self> {
        let mut disks = Vec::new();
        for made in 0..1_u32 << self.pending.len() {
            for lost_content in [LostContent::Empty, LostContent::Half, LostContent::Stale] {
                disks.push(self.with(made, lost_content));
            }
        }
        disks
    }

    fn with(&self, made: u32, lost: LostContent) -> Self {
        let mut names = self.stored.clone();
        let mut contents = self.stored_contents.clone();
        for (number, change) in self.pending.iter().enumerate() {
            let is_made = made & (1 << number) != 0;
            match (is_made, change) {
                (true, change) => apply(change, &mut names, &mut contents),
                (false, Change::Written { content, bytes, .. }) => {
                    let left = match lost {
                        LostContent::Empty => Vec::new(),
                        LostContent::Half => bytes[..bytes.len() / 2].to_vec(),
                        LostContent::Stale => self.stale.clone(),
                    };
                    set(&mut contents, *content, left);
                }
                (false, _) => {}
            }
        }
        Self::settled(names, contents, self.stale.clone(), self.capacity)
    }

    fn change(&mut self, change: Change) {
        apply(&change, &mut self.seen, &mut self.seen_contents);
        self.pending.push(change);
    }

    fn flush(&mut self, is_meant: impl Fn(&Change) -> bool) {
        let (flushed, pending) = std::mem::take(&mut self.pending)
            .into_iter()
            .partition(is_meant);
        let flushed: Vec<Change> = flushed;
        for change in &flushed {
            apply(change, &mut self.stored, &mut self.stored_contents);
        }
        self.pending = pending;
    }

    fn content(&self, path: &str) -> io::Result<&Vec<u8>> {
        let number = self.seen.get(path).ok_or(ErrorKind::NotFound)?;
        Ok(&self.seen_contents[*number])
    }
}

#[derive(Clone, Copy)]
enum LostContent {
    Empty,
    Half,
    Stale,
}

fn set(contents: &mut Contents, number: usize, bytes: Vec<u8>) {
    if contents.len() <= number {
        contents.resize(number + 1, Vec::new());
    }
    contents[number] = bytes;
}

fn apply(change: &Change, names: &mut Names, contents: &mut Contents) {
    match change {
        Change::Named { path, content } => {
            names.insert(path.clone(), *content);
            if contents.len() <= *content {
                contents.resize(content + 1, Vec::new());
            }
        }
        Change::Removed { path, .. } => {
            names.remove(path);
        }
        Change::Replaced { from, to } => {
            if let Some(content) = names.remove(from) {
                names.insert(to.clone(), content);
            }
        }
        Change::Written {
            content,
            bytes,
            reused,
        } => {
            for number in reused.iter().chain([content]) {
                set(contents, *number, bytes.clone());
            }
        }
    }
}

fn folder_of(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

impl Volume for Disk {
    fn list(&self, folder: &str) -> io::Result<Vec<(String, u64)>> {
        let files = self.seen.iter().filter_map(|(path, content)| {
            let name = path.strip_prefix(folder)?.strip_prefix('/')?;
            let size = self.seen_contents[*content].len() as u64;
            (!name.contains('/')).then(|| (name.to_owned(), size))
        });
        Ok(files.collect())
    }

    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        self.content(path).cloned()
    }

    fn read_back(&self, path: &str) -> io::Result<Box<dyn Read + '_>> {
        let number = self.stored.get(path).ok_or(ErrorKind::NotFound)?;
        Ok(Box::new(Cursor::new(&self.stored_contents[*number])))
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let used: usize = self
            .seen
            .values()
            .map(|content| self.seen_contents[*content].len())
            .sum();
        Ok(self.capacity.saturating_sub(used as u64))
    }

    fn make_folder(&mut self, _path: &str) -> io::Result<()> {
        // Folders are made once, at the installation; nothing depends on them before the loader is there.
        Ok(())
    }

    fn create(&mut self, path: &str, content: &mut dyn Read) -> io::Result<()> {
        if self.seen.contains_key(path) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        let number = self.seen_contents.len();
        self.change(Change::Named {
            path: path.to_owned(),
            content: number,
        });
        let mut bytes = Vec::new();
        content.read_to_end(&mut bytes)?;
        let full = bytes.len() as u64 > self.free_bytes()?;
        let removed = self.pending.iter().filter_map(|change| match change {
            Change::Removed { content, .. } => Some(*content),
            _ => None,
        });
        self.change(Change::Written {
            content: number,
            reused: removed.collect(),
            bytes,
        });
        if full {
            return Err(ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    fn sync_file(&mut self, path: &str) -> io::Result<()> {
        let number = *self.seen.get(path).ok_or(ErrorKind::NotFound)?;
        self.flush(
            |change| matches!(change, Change::Written { content, .. } if *content == number),
        );
        Ok(())
    }

    fn sync_folder(&mut self, folder: &str) -> io::Result<()> {
        self.flush(|change| match change {
            Change::Named { path, .. } | Change::Removed { path, .. } => folder_of(path) == folder,
            Change::Replaced { to, .. } => folder_of(to) == folder,
            Change::Written { .. } => false,
        });
        Ok(())
    }

    fn remove(&mut self, path: &str) -> io::Result<()> {
        if let Some(content) = self.seen.get(path).copied() {
            self.stale = self.seen_contents[content].clone();
            self.change(Change::Removed {
                path: path.to_owned(),
                content,
            });
        }
        Ok(())
    }

    fn replace(&mut self, from: &str, to: &str) -> io::Result<()> {
        self.content(from)?;
        self.content(to)?;
        self.change(Change::Replaced {
            from: from.to_owned(),
            to: to.to_owned(),
        });
        Ok(())
    }
}
