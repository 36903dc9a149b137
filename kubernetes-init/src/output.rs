//! The output of services: line by line to the container's own output with the service's name before it, and to a file of its newest lines.
//!
//! A reader of the container's output that is slow holds nobody up: lines that do not fit are in the service's file alone. A file that cannot be
//! written, as on a full disk, goes on as soon as it can, and says how many lines it lacks.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};

/// Limit on a line, in bytes; a longer one is split.
const LINE: usize = 3900;
/// Limit on a file; after that it becomes NAME.log.1, and a new one begins.
const FILE: u64 = 2 << 20;
/// The shortest time from a failure of a file to the next try to write it.
const RETRY: Duration = Duration::from_secs(1);

/// The output of one service: a pipe that all of its processes write to, whenever they were started.
#[derive(Debug)]
pub(crate) struct Output {
    name: String,
    reader: OwnedFd,
    writer: OwnedFd,
    begun: Vec<u8>,
    log: Log,
}

impl Output {
    /// Makes the pipe. The first line opens the file in the directory of logs.
    pub(crate) fn new(name: &str, logs: &Path) -> Result<Self> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)
            .with_context(|| format!("cannot make a pipe for the output of {name}"))?;
        rustix::io::ioctl_fionbio(&reader, true)
            .with_context(|| format!("cannot prepare the pipe of {name}"))?;
        Ok(Output {
            name: name.to_owned(),
            reader,
            writer,
            begun: Vec::new(),
            log: Log::new(logs.join(format!("{name}.log"))),
        })
    }

    /// The end that processes write to.
    pub(crate) fn writer(&self) -> io::Result<OwnedFd> {
        self.writer.try_clone()
    }

    /// Passes on what is in the pipe, some kilobytes at most: other services have their turn.
    pub(crate) fn pass_on(&mut self) {
        let mut buffer = [0; 16 << 10];
        // Nothing to read now, or an error that a reader of a pipe cannot have.
        let Ok(length) = rustix::io::read(&self.reader, &mut buffer) else {
            return;
        };
        for piece in buffer[..length].split_inclusive(|byte| *byte == b'\n') {
            self.begun.extend_from_slice(piece);
            if self.begun.ends_with(b"\n") || self.begun.len() >= LINE {
                self.end_line();
            }
        }
    }

    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.begun);
        for part in line.trim_ascii_end().chunks(LINE) {
            let text = String::from_utf8_lossy(part);
            say(&format!("{}: {text}", self.name));
            if let Err(error) = self.log.keep(&text, Instant::now()) {
                let name = &self.name;
                say(&format!(
                    "the log of {name} lacks lines from here on, until its file can be written: {error}"
                ));
            }
        }
    }
}

impl AsFd for Output {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }
}

/// The log of a service: its file while it can be written, and the lines that it lacks.
#[derive(Debug)]
struct Log {
    path: PathBuf,
    file: Option<LogFile>,
    /// The number of lines that were lost since the last one that was kept.
    lost: u64,
    /// The time before which a file that has failed is not tried again.
    not_before: Option<Instant>,
}

impl Log {
    fn new(path: PathBuf) -> Self {
        Log {
            path,
            file: None,
            lost: 0,
            not_before: None,
        }
    }

    /// Keeps a line, or loses it while the file cannot be written.
    ///
    /// # Errors
    /// This line is the first one that is lost.
    fn keep(&mut self, line: &str, now: Instant) -> io::Result<()> {
        if self.not_before.is_some_and(|until| now < until) {
            self.lost += 1;
            return Ok(());
        }
        let Err(error) = self.add(line) else {
            self.not_before = None;
            return Ok(());
        };
        self.file = None;
        self.not_before = Some(now + RETRY);
        self.lost += 1;
        match self.lost {
            1 => Err(error),
            _ => Ok(()),
        }
    }

    fn add(&mut self, line: &str) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(LogFile::open(self.path.clone())?),
        };
        if self.lost > 0 {
            let lost = self.lost;
            file.add(&format!(
                "[{lost} lines are missing here: this file could not be written]"
            ))?;
            self.lost = 0;
        }
        file.add(line)
    }
}

/// The file of a service's newest lines.
#[derive(Debug)]
struct LogFile {
    path: PathBuf,
    file: File,
    length: u64,
}

impl LogFile {
    fn open(path: PathBuf) -> io::Result<Self> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let mut options = OpenOptions::new();
        let mut file = options.read(true).append(true).create(true).open(&path)?;
        let mut length = file.metadata()?.len();
        let mut last = [b'\n'];
        if let Some(at) = length.checked_sub(1) {
            file.read_exact_at(&mut last, at)?;
        }
        // A full disk took a part of the last line.
        if last != [b'\n'] {
            file.write_all(b"\n")?;
            length += 1;
        }
        Ok(LogFile { path, file, length })
    }

    fn add(&mut self, line: &str) -> io::Result<()> {
        if self.length > FILE {
            fs::rename(&self.path, self.path.with_extension("log.1"))?;
            *self = LogFile::open(self.path.clone())?;
        }
        self.file.write_all(format!("{line}\n").as_bytes())?;
        self.length += line.len() as u64 + 1;
        Ok(())
    }
}

/// Writes a line to the container's output, if there is room for it at once.
pub(crate) fn say(line: &str) {
    let output = io::stdout();
    let mut ready = [PollFd::new(&output, PollFlags::OUT)];
    // A pipe that can be written has room for 4096 bytes.
    if poll(&mut ready, Some(&Timespec::default())) == Ok(1) {
        let text = format!("{line}\n");
        let text = &text.as_bytes()[..text.len().min(4096)];
        // There is no other place for the message.
        let _ = rustix::io::write(&output, text);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn lines_are_kept_in_a_file_and_long_ones_are_split() {
        let folder = tempfile::tempdir().unwrap();
        let mut output = Output::new("agent", folder.path()).unwrap();
        let long = "x".repeat(LINE + 1);
        let text = "one\ntw";
        rustix::io::write(output.writer().unwrap(), text.as_bytes()).unwrap();
        output.pass_on();
        rustix::io::write(output.writer().unwrap(), format!("o\n{long}\n").as_bytes()).unwrap();
        output.pass_on();
        output.pass_on();
        let kept = fs::read_to_string(folder.path().join("agent.log")).unwrap();
        let lengths: Vec<usize> = kept.lines().map(str::len).collect();
        assert_eq!(lengths, [3, 3, LINE, 1]);
        assert!(kept.starts_with("one\ntwo\n"));
    }

    #[test]
    fn a_file_that_is_full_gives_its_place_to_a_new_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.log");
        let mut log = LogFile::open(path.clone()).unwrap();
        let line = "x".repeat(1023);
        for _ in 0..5000 {
            log.add(&line).unwrap();
        }
        let old = fs::metadata(path.with_extension("log.1")).unwrap().len();
        let new = fs::metadata(&path).unwrap().len();
        assert!(old <= FILE + 1024 && new <= FILE + 1024, "{old} {new}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_file_that_could_not_be_written_goes_on_and_says_what_it_lacks() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.log");
        let mut log = Log::new(path.clone());
        let begun = Instant::now();
        log.keep("one", begun).unwrap();
        // The disk is full: it takes a part of a line, and then nothing.
        fs::rename(&path, folder.path().join("kept")).unwrap();
        std::os::unix::fs::symlink("/dev/full", &path).unwrap();
        log.file = None;
        let error = log.keep("two", begun).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        log.keep("three", begun + RETRY).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, "one\ntw").unwrap();
        // Not before its time is it tried again.
        log.keep("four", begun + RETRY).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "one\ntw");
        log.keep("five", begun + 2 * RETRY).unwrap();
        log.keep("six", begun + 2 * RETRY).unwrap();
        let kept = fs::read_to_string(&path).unwrap();
        let gap = "[3 lines are missing here: this file could not be written]";
        assert_eq!(kept, format!("one\ntw\n{gap}\nfive\nsix\n"));
        // The next failure is told anew.
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/dev/full", &path).unwrap();
        log.file = None;
        log.keep("seven", begun + 2 * RETRY).unwrap_err();
    }
}
