//! The output of a container: a task reads it from its pipe into the service's log.

use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::Context as _;
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe::Receiver;

use crate::services::LogRing;

/// Time limit for the rest of the output of a container that has ended: a process that hangs in the kernel may keep the pipe open.
const REST: Duration = Duration::from_secs(5);

/// The task that reads a container's output.
pub(super) struct Output {
    reading: tokio::task::JoinHandle<()>,
    stop: tokio::sync::oneshot::Sender<()>,
}

impl Output {
    /// Starts to read a container's output to its end.
    pub(super) fn follow(output: OwnedFd, log: LogRing) -> anyhow::Result<Self> {
        let mut output = Receiver::from_owned_fd(output).context("watch the output's pipe")?;
        let (stop, mut stopped) = tokio::sync::oneshot::channel::<()>();
        let reading = crate::base::task::spawn(async move {
            let mut chunk = [0; 4096];
            loop {
                let read = tokio::select! {
                    read = async { output.read(&mut chunk).await } => read,
                    _ = &mut stopped => return,
                };
                match read {
                    Ok(length @ 1..) => log.write(&chunk[..length]),
                    _ => return,
                }
            }
        });
        Ok(Output { reading, stop })
    }

    /// Ends the reading between two reads: all that was read is in the log.
    pub(super) async fn leave(self) {
        drop(self.stop);
        // A task that panicked has ended as well.
        let _ = self.reading.await;
    }

    /// Reads the rest of the output of a container that has ended, within a time limit.
    pub(super) async fn finish(mut self) {
        let rest = tokio::time::timeout(REST, &mut self.reading).await;
        if rest.is_err() {
            self.leave().await;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::fs::File;
    use std::io::Write as _;

    #[tokio::test]
    async fn the_rest_is_read_to_its_end_and_for_no_longer_than_its_limit() {
        let (read, write) = rustix::pipe::pipe().unwrap();
        let log = LogRing::default();
        File::from(write)
            .write_all(&b"a line\n".repeat(1000))
            .unwrap();
        let output = Output::follow(read, log.clone()).unwrap();
        output.finish().await;
        assert_eq!(log.contents().len(), 7000);

        // The clock jumps to the limit: nothing else happens.
        tokio::time::pause();
        let (read, _kept_open) = rustix::pipe::pipe().unwrap();
        let output = Output::follow(read, log).unwrap();
        let begun = tokio::time::Instant::now();
        output.finish().await;
        assert!(begun.elapsed() >= REST);
    }
}
