//! Processes of containers: passes descriptors to a child under the numbers that it expects.

// The only way to choose a child's descriptor numbers is to run code between fork and exec.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use rustix::io::fcntl_dupfd_cloexec;
use tokio::process::Command;

/// The number of the first descriptor in the child.
const FIRST: RawFd = 3;

/// Passes these descriptors to the child as 3, 4, … Keep the result until the child is spawned.
///
/// A spawn fails with [`io::ErrorKind::WouldBlock`] if another thread has closed the holder of one of these numbers, and a new file has it:
/// nothing was run. The window is microseconds, so it rarely happens, and the callers that start services and upgrades can retry.
pub fn pass_descriptors(command: &mut Command, descriptors: &[OwnedFd]) -> io::Result<Passing> {
    let end = FIRST + RawFd::try_from(descriptors.len()).map_err(io::Error::other)?;
    // Every target number is taken in this process, so that nothing that std opens for the spawn (the pipe on which
    // the child reports a failed exec) gets one and is overwritten.
    let mut blockers = Vec::new();
    if let Some(first) = descriptors.first() {
        loop {
            let blocker = fcntl_dupfd_cloexec(first, FIRST)?;
            if blocker.as_raw_fd() >= end {
                break;
            }
            blockers.push(blocker);
        }
    }
    // Sources lie above all targets: none is overwritten before it is copied.
    let sources: Vec<OwnedFd> = descriptors
        .iter()
        .map(|descriptor| fcntl_dupfd_cloexec(descriptor, end))
        .collect::<Result<_, _>>()?;
    let sources_and_targets = sources.iter().map(AsRawFd::as_raw_fd).zip(FIRST..end);
    let plan: Vec<(RawFd, RawFd, Option<Holder>)> = sources_and_targets
        .map(|(source, target)| (source, target, holder(target)))
        .collect();
    let place = move || {
        // A number that is not held by a blocker may have been closed by another thread.
        for (_, target, before) in &plan {
            let now = holder(*target);
            if now.is_some() && now != *before {
                return Err(io::Error::from_raw_os_error(libc::EAGAIN));
            }
        }
        for (source, target, _) in &plan {
            // SAFETY: dup2 takes two numbers and touches no memory. It may be called between fork and exec. The
            // source is open until the spawn is over (`Passing`), the target is above the standard streams and, as
            // shown above, nothing of std's. The copy has no close-on-exec flag, which is the point.
            if unsafe { libc::dup2(*source, *target) } < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: the closure runs in the child between fork and exec. It allocates nothing, takes no lock and calls
    // fstat and dup2 only, which are async-signal-safe; its plan was allocated before the fork.
    unsafe { command.pre_exec(place) };
    Ok(Passing {
        _sources: sources,
        _blockers: blockers,
    })
}

/// The file at a descriptor number, by device and inode.
type Holder = (u64, u64);

fn holder(number: RawFd) -> Option<Holder> {
    // SAFETY: all zeroes are a stat.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: fstat takes a number, open or not, and writes to `stat` alone.
    (unsafe { libc::fstat(number, &raw mut stat) } == 0).then_some((stat.st_dev, stat.st_ino))
}

/// Descriptors that must stay open until the child is spawned.
pub struct Passing {
    _sources: Vec<OwnedFd>,
    _blockers: Vec<OwnedFd>,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::{Seek, Write};

    fn file_with(content: &str) -> OwnedFd {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(content.as_bytes()).unwrap();
        file.rewind().unwrap();
        file.into()
    }

    #[tokio::test]
    async fn the_child_finds_them_from_3_on_and_nothing_else() {
        let descriptors = [file_with("three"), file_with("four")];
        let mut command = Command::new("/bin/sh");
        command.args([
            "-c",
            "cat <&3; cat <&4; { true <&5; } 2>/dev/null || echo none",
        ]);
        let passing = pass_descriptors(&mut command, &descriptors).unwrap();
        let output = command.output().await.unwrap();
        drop(passing);
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "threefournone\n");
    }

    fn missing() -> io::ErrorKind {
        let mut command = Command::new("/nonexistent/program");
        let passing = pass_descriptors(&mut command, &[file_with("x"), file_with("y")]).unwrap();
        let error = command.spawn().unwrap_err();
        drop(passing);
        error.kind()
    }

    #[tokio::test]
    async fn a_missing_program_is_still_reported() {
        // Other tests close their descriptors at the same time.
        let said = std::iter::repeat_with(missing);
        let said = { said }.find(|kind| *kind != io::ErrorKind::WouldBlock);
        assert_eq!(said, Some(io::ErrorKind::NotFound));
    }
}
