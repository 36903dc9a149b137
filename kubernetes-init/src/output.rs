//! The output of services: line by line to the container's own output with the service's name before it, and to a file of its newest lines.
//!
//! A reader of the container's output that is slow holds nobody up: lines that do not fit are in the service's file alone.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};

/// Limit on a line, in bytes; a longer one is split.
const LINE: usize = 3900;
/// Limit on a file; after that it becomes NAME.log.1, and a new one begins.
const FILE: u64 = 2 << 20;

/// The output of one service: a pipe that all of its processes write to, whenever they were started.
#[derive(Debug)]
pub(crate) struct Output {
    name: String,
    reader: OwnedFd,
    writer: OwnedFd,
    begun: Vec<u8>,
    log: Option<Log>,
}

impl Output {
    /// Makes the pipe, and opens the file in the directory of logs. A file that cannot be written is done without.
    pub(crate) fn new(name: &str, logs: &Path) -> Result<Self> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)
            .with_context(|| format!("cannot make a pipe for the output of {name}"))?;
        rustix::io::ioctl_fionbio(&reader, true)
            .with_context(|| format!("cannot prepare the pipe of {name}"))?;
        let log = Log::open(logs.join(format!("{name}.log")));
        if let Err(error) = &log {
            say(&format!("cannot keep the log of {name}: {error}"));
        }
        Ok(Output {
            name: name.to_owned(),
            reader,
            writer,
            begun: Vec::new(),
            log: log.ok(),
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
            let kept = self.log.as_mut().map(|log| log.add(&text));
            if let Some(Err(error)) = kept {
                say(&format!("the log of {} ends here: {error}", self.name));
                self.log = None;
            }
        }
    }
}

impl AsFd for Output {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }
}

/// The file of a service's newest lines.
#[derive(Debug)]
struct Log {
    path: PathBuf,
    file: File,
    length: u64,
}

impl Log {
    fn open(path: PathBuf) -> io::Result<Self> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let file = OpenOptions::new().append(true).create(true).open(&path)?;
        let length = file.metadata()?.len();
        Ok(Log { path, file, length })
    }

    fn add(&mut self, line: &str) -> io::Result<()> {
        if self.length > FILE {
            fs::rename(&self.path, self.path.with_extension("log.1"))?;
            *self = Log::open(self.path.clone())?;
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
        let mut log = Log::open(path.clone()).unwrap();
        let line = "x".repeat(1023);
        for _ in 0..5000 {
            log.add(&line).unwrap();
        }
        let old = fs::metadata(path.with_extension("log.1")).unwrap().len();
        let new = fs::metadata(&path).unwrap().len();
        assert!(old <= FILE + 1024 && new <= FILE + 1024, "{old} {new}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }
}
