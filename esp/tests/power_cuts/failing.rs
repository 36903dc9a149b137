//! A disk on which one call fails, or one call and all after it.

use std::{
    cell::Cell,
    io::{self, Cursor, ErrorKind, Read},
};

use instar_esp::Volume;

use crate::disk::Disk;

/// The part of the failed call that was done nevertheless.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Done {
    Nothing,
    /// The first half of a file's content; for other calls nothing.
    Half,
    All,
}

/// The way in which a disk fails.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failure {
    pub(crate) kind: ErrorKind,
    pub(crate) done: Done,
    /// Whether every later call fails as well.
    pub(crate) lasts: bool,
}

/// Every way in which one call can fail.
pub(crate) fn failures() -> Vec<Failure> {
    let mut failures = Vec::new();
    for kind in [ErrorKind::Other, ErrorKind::StorageFull] {
        for done in [Done::Nothing, Done::Half, Done::All] {
            for lasts in [false, true] {
                failures.push(Failure { kind, done, lasts });
            }
        }
    }
    failures
}

/// The disk, and the number of calls until it fails.
pub(crate) struct Failing {
    disk: Disk,
    failure: Failure,
    serves: usize,
    calls: Cell<usize>,
}

impl Failing {
    pub(crate) fn new(disk: Disk, serves: usize, failure: Failure) -> Self {
        Self {
            disk,
            failure,
            serves,
            calls: Cell::new(0),
        }
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.calls.get() > self.serves
    }

    /// The disk, which works again.
    pub(crate) fn into_disk(self) -> Disk {
        self.disk
    }

    fn fails(&self) -> bool {
        let before = self.calls.replace(self.calls.get() + 1);
        before == self.serves || (before > self.serves && self.failure.lasts)
    }

    fn error<T>(&self) -> io::Result<T> {
        Err(self.failure.kind.into())
    }

    fn change(&mut self, change: impl FnOnce(&mut Disk) -> io::Result<()>) -> io::Result<()> {
        if !self.fails() {
            return change(&mut self.disk);
        }
        if self.failure.done == Done::All {
            change(&mut self.disk)?;
        }
        self.error()
    }
}

impl Volume for Failing {
    fn list(&self, folder: &str) -> io::Result<Vec<(String, u64)>> {
        if self.fails() {
            return self.error();
        }
        self.disk.list(folder)
    }

    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        if self.fails() {
            return self.error();
        }
        self.disk.read(path)
    }

    fn read_back(&self, path: &str) -> io::Result<Box<dyn Read + '_>> {
        if self.fails() {
            return self.error();
        }
        self.disk.read_back(path)
    }

    fn free_bytes(&self) -> io::Result<u64> {
        if self.fails() {
            return self.error();
        }
        self.disk.free_bytes()
    }

    fn make_folder(&mut self, path: &str) -> io::Result<()> {
        self.change(|disk| disk.make_folder(path))
    }

    fn create(&mut self, path: &str, content: &mut dyn Read) -> io::Result<()> {
        if !self.fails() {
            return self.disk.create(path, content);
        }
        let mut bytes = Vec::new();
        content.read_to_end(&mut bytes)?;
        match self.failure.done {
            Done::Nothing => return self.error(),
            Done::Half => bytes.truncate(bytes.len() / 2),
            Done::All => {}
        }
        self.disk.create(path, &mut Cursor::new(bytes))?;
        self.error()
    }

    fn sync_file(&mut self, path: &str) -> io::Result<()> {
        self.change(|disk| disk.sync_file(path))
    }

    fn sync_folder(&mut self, folder: &str) -> io::Result<()> {
        self.change(|disk| disk.sync_folder(folder))
    }

    fn remove(&mut self, path: &str) -> io::Result<()> {
        self.change(|disk| disk.remove(path))
    }

    fn replace(&mut self, from: &str, to: &str) -> io::Result<()> {
        self.change(|disk| disk.replace(from, to))
    }
}
