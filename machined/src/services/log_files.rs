//! One log on disk: `NAME.log`, which grows, and `NAME.log.1`, the one before it.
//!
//! A container that mounts /var may put links and pipes in place of logs. Links are not followed and only regular files are opened, so it
//! can only damage its own log.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, openat, renameat};

use super::log_ring::Older;

/// Size at which a file is rotated, in bytes. At a line of 100 bytes per second that takes three hours; the lines of interest after a
/// failure are newer, and twenty services on the smallest sensible disk take 40 MiB.
const LARGEST: u64 = 1 << 20;
/// Bytes of one read.
const CHUNK: usize = 16 * 1024;

/// The files of one log. No file is kept open: /var can be unmounted at any time.
#[derive(Debug)]
pub(super) struct LogFiles {
    directory: PathBuf,
    /// The growing file, then the rotated one.
    names: [String; 2],
    /// Bytes that this process has written.
    written: u64,
    /// Some lines were not written, so it is unknown where in the files the lines that are in memory begin.
    gap: bool,
    /// The last line may have been cut by a loss of power.
    checked: bool,
}

impl LogFiles {
    /// Names the files of the log `name`, which must not be a path, in this directory.
    pub(super) fn new(directory: &Path, name: &str) -> Self {
        LogFiles {
            directory: directory.to_owned(),
            names: [format!("{name}.log"), format!("{name}.log.1")],
            written: 0,
            gap: false,
            checked: false,
        }
    }

    /// Notes that lines in memory will not be written.
    pub(super) fn note_gap(&mut self) {
        self.gap = true;
    }

    /// Returns the path of the growing file, for messages.
    pub(super) fn path(&self) -> PathBuf {
        self.directory.join(&self.names[0])
    }

    /// Appends whole lines. After an error none of them is in the file, if the disk still allows to remove them.
    pub(super) fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        let directory = self.open_directory()?;
        let append = OFlags::RDWR | OFlags::APPEND | OFlags::CREATE;
        let mut file = open(&directory, &self.names[0], append)?;
        let mut length = file.metadata()?.len();
        if length > 0 && length.saturating_add(lines.len() as u64) > LARGEST {
            renameat(&directory, &self.names[0], &directory, &self.names[1])?;
            file = open(&directory, &self.names[0], append)?;
            length = 0;
            self.checked = true;
        }
        let begun = length;
        let written = self.write(&mut file, &mut length, lines);
        if written.is_err() {
            // Half a line would be mistaken for a whole one.
            let _ = file.set_len(begun);
        }
        written
    }

    fn write(&mut self, file: &mut File, length: &mut u64, lines: &[u8]) -> io::Result<()> {
        if !self.checked && *length > 0 {
            let mut last = [0];
            file.seek(SeekFrom::End(-1))?;
            file.read_exact(&mut last)?;
            if last != *b"\n" {
                file.write_all(b"\n")?;
                *length += 1;
            }
        }
        self.checked = true;
        file.write_all(lines)?;
        self.written += lines.len() as u64;
        Ok(())
    }

    /// Returns the lines on disk that are older than those in memory.
    pub(super) fn older(&self, older: Older) -> io::Result<OldLines> {
        let directory = match self.open_directory() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(OldLines::default());
            }
            opened => opened?,
        };
        let mut pieces = Vec::new();
        // The lines that are also in memory are at the end.
        let dropped = if self.gap { 0 } else { older.dropped };
        let mut also_in_memory = self.written.saturating_sub(dropped);
        for name in &self.names {
            let file = match open(&directory, name, OFlags::RDONLY) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                opened => opened?,
            };
            let length = file.metadata()?.len();
            let end = length.saturating_sub(also_in_memory);
            also_in_memory = also_in_memory.saturating_sub(length);
            pieces.push(Piece { file, next: 0, end });
        }
        let mut lines = OldLines { pieces };
        if let Some(count) = older.lines {
            lines.keep_last(count)?;
        }
        Ok(lines)
    }

    fn open_directory(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(CWD, &self.directory, flags, Mode::empty())?)
    }
}

/// Makes the directory of logs.
pub(super) fn make_directory(directory: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(directory)
}

/// Opens a regular file. Non-blocking, because opening a pipe would wait for its other end.
fn open(directory: &OwnedFd, name: &str, flags: OFlags) -> io::Result<File> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(openat(directory, name, flags, Mode::from_raw_mode(0o640))?);
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::other("it is not a regular file"))
    }
}

/// The part of a file that has not been read yet.
#[derive(Debug)]
struct Piece {
    file: File,
    next: u64,
    end: u64,
}

/// Lines on disk, oldest first, in chunks of any length.
#[derive(Debug, Default)]
pub struct OldLines {
    /// Newest file first.
    pieces: Vec<Piece>,
}

impl OldLines {
    /// Returns the next chunk; None at the end.
    pub fn next_chunk(&mut self) -> io::Result<Option<Vec<u8>>> {
        while let Some(piece) = self.pieces.last_mut() {
            let length = usize::try_from(piece.end.saturating_sub(piece.next))
                .unwrap_or(CHUNK)
                .min(CHUNK);
            let mut chunk = vec![0; length];
            piece.file.seek(SeekFrom::Start(piece.next))?;
            let read = match length {
                0 => 0,
                _ => piece.file.read(&mut chunk)?,
            };
            if read > 0 {
                chunk.truncate(read);
                piece.next += read as u64;
                return Ok(Some(chunk));
            }
            self.pieces.pop();
        }
        Ok(None)
    }

    /// Drops all lines but the last `count`.
    fn keep_last(&mut self, mut count: usize) -> io::Result<()> {
        for index in 0..self.pieces.len() {
            let piece = &mut self.pieces[index];
            let found = start_of_last(&piece.file, piece.end, &mut count)?;
            piece.next = found.unwrap_or(0);
            if found.is_some() {
                // Older files are not needed.
                self.pieces.truncate(index + 1);
                break;
            }
        }
        Ok(())
    }
}

/// Returns where the last `count` lines before `end` begin; None if there are fewer lines, whose number is subtracted from `count`.
///
/// # Errors
/// The file cannot be read.
pub fn start_of_last(mut file: &File, end: u64, count: &mut usize) -> io::Result<Option<u64>> {
    if *count == 0 {
        return Ok(Some(end));
    }
    let mut chunk = [0; CHUNK];
    let mut after = end;
    while after > 0 {
        let before = after.saturating_sub(CHUNK as u64);
        let chunk = &mut chunk[..usize::try_from(after - before).unwrap_or(CHUNK)];
        file.seek(SeekFrom::Start(before))?;
        file.read_exact(chunk)?;
        for (position, _) in chunk
            .iter()
            .enumerate()
            .rev()
            .filter(|(_, byte)| **byte == b'\n')
        {
            let next = before + position as u64 + 1;
            // The newline of the last line begins no line.
            if next == end {
                continue;
            }
            *count -= 1;
            if *count == 0 {
                return Ok(Some(next));
            }
        }
        after = before;
    }
    // The first line of a file has no newline before it.
    if end > 0 {
        *count -= 1;
    }
    Ok((*count == 0).then_some(0))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::fs;

    fn all(mut lines: OldLines) -> String {
        let mut text = Vec::new();
        while let Some(chunk) = lines.next_chunk().unwrap() {
            text.extend(chunk);
        }
        String::from_utf8(text).unwrap()
    }

    fn older(dropped: u64, lines: Option<usize>) -> Older {
        Older { dropped, lines }
    }

    #[test]
    fn two_files_are_kept_and_no_line_is_torn() {
        let directory = tempfile::tempdir().unwrap();
        let mut files = LogFiles::new(directory.path(), "web");
        let batch: String = (0..1000).map(|n| format!("{n:099}\n")).collect();
        for _ in 0..25 {
            files.append(batch.as_bytes()).unwrap();
        }
        let sizes: Vec<u64> = ["web.log", "web.log.1"]
            .map(|name| fs::metadata(directory.path().join(name)).unwrap().len())
            .into();
        assert_eq!(sizes, [500_000, 1_000_000]);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2);
        let text = all(files.older(older(u64::MAX, None)).unwrap());
        assert_eq!(text.len(), 1_500_000);
        assert!(text.lines().all(|line| line.len() == 99));
    }

    #[test]
    fn what_is_in_memory_is_not_read_from_disk() {
        let directory = tempfile::tempdir().unwrap();
        LogFiles::new(directory.path(), "web")
            .append(b"old 1\nold 2\n")
            .unwrap();
        let mut files = LogFiles::new(directory.path(), "web");
        let read =
            |files: &LogFiles, dropped, lines| all(files.older(older(dropped, lines)).unwrap());
        assert_eq!(read(&files, 0, None), "old 1\nold 2\n");
        files.append(b"new 1\nnew 2\n").unwrap();
        assert_eq!(read(&files, 0, None), "old 1\nold 2\n");
        assert_eq!(read(&files, 6, None), "old 1\nold 2\nnew 1\n");
        for (count, expected) in [
            (0, ""),
            (1, "old 2\n"),
            (2, "old 1\nold 2\n"),
            (9, "old 1\nold 2\n"),
        ] {
            assert_eq!(read(&files, 0, Some(count)), expected, "{count}");
        }
        let mut gap = LogFiles::new(directory.path(), "gap");
        gap.append(b"a\n").unwrap();
        gap.note_gap();
        gap.append(b"[1 lost]\nc\n").unwrap();
        assert_eq!(
            read(&gap, 4, None),
            "",
            "a part of it is in memory, and nobody knows which"
        );
        fs::rename(
            directory.path().join("web.log"),
            directory.path().join("web.log.1"),
        )
        .unwrap();
        files.append(b"new 3\nnew 4\n").unwrap();
        for (count, expected) in [
            (1, "new 3\n"),
            (2, "new 2\nnew 3\n"),
            (4, "old 2\nnew 1\nnew 2\nnew 3\n"),
        ] {
            assert_eq!(read(&files, 18, Some(count)), expected, "{count}");
        }
    }

    #[test]
    fn a_line_that_lost_its_end_is_ended() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("web.log"), "cut o").unwrap();
        let mut files = LogFiles::new(directory.path(), "web");
        files.append(b"next\n").unwrap();
        files.append(b"one\n").unwrap();
        let text = fs::read_to_string(directory.path().join("web.log")).unwrap();
        assert_eq!(text, "cut o\nnext\none\n");
    }

    #[test]
    fn symlinks_and_pipes_in_the_log_directory_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let victim = directory.path().join("victim");
        fs::write(&victim, "").unwrap();
        std::os::unix::fs::symlink(&victim, directory.path().join("link.log")).unwrap();
        rustix::fs::mkfifoat(CWD, directory.path().join("pipe.log"), Mode::RWXU).unwrap();
        for name in ["link", "pipe"] {
            assert!(
                LogFiles::new(directory.path(), name)
                    .append(b"x\n")
                    .is_err()
            );
        }
        assert_eq!(fs::read_to_string(victim).unwrap(), "");
    }

    #[test]
    fn a_missing_log_is_empty() {
        let directory = tempfile::tempdir().unwrap();
        for directory in [directory.path(), &directory.path().join("gone")] {
            let files = LogFiles::new(directory, "web");
            assert_eq!(all(files.older(older(0, Some(5))).unwrap()), "");
        }
    }
}
