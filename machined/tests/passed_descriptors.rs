//! Descriptors for a child, where another thread closes one that had a number of theirs: alone in a process, in which nobody else does.
#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::{AsRawFd as _, OwnedFd};

use machined::sys::container::pass_descriptors;
use rustix::io::fcntl_dupfd_cloexec;
use tokio::process::Command;

/// Above all numbers that the child finds its own under.
const ABOVE: i32 = 100;
const COUNT: usize = 32;

#[tokio::test]
async fn what_a_spawn_needs_is_not_overwritten() {
    let null = File::open("/dev/null").unwrap();
    let descriptors: Vec<OwnedFd> = (0..COUNT)
        .map(|_| fcntl_dupfd_cloexec(&null, ABOVE).unwrap())
        .collect();
    // The two ends of a pipe.
    let mut closed = [(); 2].map(|()| Some(File::open("/dev/null").unwrap()));
    for file in closed.iter().flatten() {
        assert!(file.as_raw_fd() < 3 + COUNT as i32);
    }

    for expected in [ErrorKind::WouldBlock, ErrorKind::NotFound] {
        let mut command = Command::new("/nonexistent/program");
        let passing = pass_descriptors(&mut command, &descriptors).unwrap();
        // What the spawn opens next, to hear of a program that is not there, has their numbers.
        closed.iter_mut().for_each(|file| drop(file.take()));
        let refused = command.spawn().unwrap_err();
        drop(passing);
        assert_eq!(refused.kind(), expected, "{refused}");
    }
}
