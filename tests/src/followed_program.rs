//! A program that goes on and on, followed line by line. It ends with its value.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// The running program and what it has said.
#[derive(Debug)]
pub struct FollowedProgram {
    child: Child,
    lines: Receiver<String>,
    heard: Vec<String>,
}

impl FollowedProgram {
    /// Starts it. Its standard error is the test's.
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

    /// Waits for the next line that is meant; lines before it are passed over.
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
    /// What it has told up to the line that was waited for last.
    pub fn heard(&self) -> &[String] {
        &self.heard
    }

    /// Waits until it has nothing more to say, because it ended; lines are passed over.
    pub fn wait_for_end(mut self, within: Duration) -> Result<()> {
        let until = Instant::now() + within;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => self.heard.push(line),
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
                Err(RecvTimeoutError::Timeout) => {
                    bail!("it goes on after {within:?}; told was {:#?}", self.heard)
                }
            }
        }
    }
}

impl Drop for FollowedProgram {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
