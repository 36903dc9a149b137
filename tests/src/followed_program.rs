//! A program that does not end, followed line by line. Dropping it ends the program.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// The running program and its lines.
#[derive(Debug)]
pub struct FollowedProgram {
    child: Child,
    lines: Receiver<String>,
    heard: Vec<String>,
}

impl FollowedProgram {
    /// Starts the program. Its standard error is the test's.
    pub(crate) fn by(command: &mut Command) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot run {:?}", command.get_program()))?;
        let output = child.stdout.take().context("it has no standard output")?;
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Self {
            child,
            lines,
            heard: Vec::new(),
        })
    }

    /// Waits for the next line for which `is_meant` is true; passes over the lines before it.
    pub fn wait_for(
        &mut self,
        what: &str,
        within: Duration,
        is_meant: impl Fn(&str) -> bool,
    ) -> Result<String> {
        let until = Instant::now() + within;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => {
                    self.heard.push(line.clone());
                    if is_meant(&line) {
                        return Ok(line);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    bail!(
                        "not told within {within:?}: {what}; told was {:#?}",
                        self.heard
                    )
                }
                Err(RecvTimeoutError::Disconnected) => {
                    bail!("it ended before it told {what}; told was {:#?}", self.heard)
                }
            }
        }
    }
}

impl FollowedProgram {
    /// The lines up to the last one that was waited for.
    pub fn heard(&self) -> &[String] {
        &self.heard
    }

    /// Waits for the end of the program's output; returns all its lines.
    pub fn wait_for_end(mut self, within: Duration) -> Result<Vec<String>> {
        let until = Instant::now() + within;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => self.heard.push(line),
                Err(RecvTimeoutError::Disconnected) => return Ok(std::mem::take(&mut self.heard)),
                Err(RecvTimeoutError::Timeout) => {
                    bail!("it goes on after {within:?}; told was {:#?}", self.heard)
                }
            }
        }
    }
}

impl Drop for FollowedProgram {
    fn drop(&mut self) {
        // The program may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
