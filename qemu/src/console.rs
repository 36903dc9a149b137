//! The machine's serial port: a log file that QEMU appends to.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A place in the console log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct ConsoleMark(u64);

/// A line of the console.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsoleLine {
    /// The line's text, without its end.
    pub text: String,
    /// The place after the line.
    pub end: ConsoleMark,
}

impl ConsoleLine {
    /// Returns the kernel's time stamp (`[ 1.234567] `), if the line has one: guest time since the kernel started its
    /// clock. Lines that a program writes to `/dev/kmsg` have one as well.
    pub fn kernel_time(&self) -> Option<Duration> {
        let (stamp, _) = self.text.strip_prefix('[')?.split_once(']')?;
        let (seconds, micros) = stamp.trim_start().split_once('.')?;
        if micros.len() != 6 {
            return None;
        }
        Some(
            Duration::from_secs(seconds.parse().ok()?)
                + Duration::from_micros(micros.parse().ok()?),
        )
    }
}

/// The beginning of the line of a panic.
const PANIC: &str = "Kernel panic - not syncing";

pub(crate) fn is_panic(line: &ConsoleLine) -> bool {
    line.text.contains(PANIC)
}

#[derive(Debug)]
pub(crate) struct Console {
    path: PathBuf,
}

impl Console {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Returns the complete lines after the mark. A line that is still being written is left for the next call.
    pub(crate) fn lines_after(&self, mark: ConsoleMark) -> io::Result<Vec<ConsoleLine>> {
        let mut at = mark.0;
        let bytes = read_from(&self.path, at)?;
        let mut lines = Vec::new();
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            let Some(text) = line.strip_suffix(b"\n") else {
                break;
            };
            at += line.len() as u64;
            let text = String::from_utf8_lossy(text)
                .trim_end_matches('\r')
                .to_owned();
            lines.push(ConsoleLine {
                text,
                end: ConsoleMark(at),
            });
        }
        Ok(lines)
    }

    /// Returns the place after the last complete line.
    pub(crate) fn mark(&self) -> io::Result<ConsoleMark> {
        let bytes = read_from(&self.path, 0)?;
        let end = bytes
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |at| at + 1);
        Ok(ConsoleMark(end as u64))
    }

    /// Returns the whole log.
    pub(crate) fn text(&self) -> io::Result<String> {
        Ok(String::from_utf8_lossy(&read_from(&self.path, 0)?).replace('\r', ""))
    }
}

/// Reads the log from an offset. Before the first byte of output there may be no file.
fn read_from(path: &Path, offset: u64) -> io::Result<Vec<u8>> {
    let mut file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        opened => opened?,
    };
    file.seek(SeekFrom::Start(offset))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns the last lines of a text, without control characters that would change the reader's terminal.
pub(crate) fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    let last = all[all.len().saturating_sub(lines)..].join("\n");
    last.chars()
        .filter(|c| !c.is_control() || matches!(c, '\n' | '\t'))
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn console(text: &[u8]) -> (tempfile::TempDir, Console) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("console.log");
        std::fs::write(&path, text).unwrap();
        (directory, Console::new(path))
    }

    #[test]
    fn a_line_counts_when_it_is_complete() {
        let (_directory, console) = console(b"one\r\ntwo\nthr");
        let lines = console.lines_after(ConsoleMark::default()).unwrap();
        assert_eq!(
            lines
                .iter()
                .map(|line| line.text.as_str())
                .collect::<Vec<_>>(),
            ["one", "two"]
        );
        assert_eq!(lines[1].end, console.mark().unwrap());
        assert_eq!(console.lines_after(lines[0].end).unwrap()[0].text, "two");
    }

    #[test]
    fn no_file_is_no_lines_and_bad_utf8_is_no_trouble() {
        assert!(
            Console::new("/nowhere".into())
                .lines_after(ConsoleMark::default())
                .unwrap()
                .is_empty()
        );
        let (_directory, console) = console(b"\xff\xfe\n");
        assert_eq!(
            console.lines_after(ConsoleMark::default()).unwrap().len(),
            1
        );
    }

    #[test]
    fn reads_the_kernels_time() {
        let time = |text: &str| {
            ConsoleLine {
                text: text.into(),
                end: ConsoleMark(0),
            }
            .kernel_time()
        };
        assert_eq!(
            time("[    1.425003] Run /init as init process"),
            Some(Duration::from_micros(1_425_003))
        );
        assert_eq!(
            time("[12345.000001] x"),
            Some(Duration::from_micros(12_345_000_001))
        );
        assert_eq!(time("[ OK ] Started"), None);
        assert_eq!(time("[1.5] short"), None);
        assert_eq!(time("plain"), None);
    }

    #[test]
    fn the_tail_is_safe_to_print() {
        assert_eq!(tail("a\nb\u{1b}[2J\nc\n", 2), "b[2J\nc");
        assert_eq!(tail("", 5), "");
    }
}
