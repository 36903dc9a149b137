//! Passes descriptors to a child while another thread closes descriptors with the same numbers. It is the only test of its
//! process, so that no other test opens or closes any.
#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::{AsRawFd as _, OwnedFd};

use machined::sys::container::pass_descriptors;
use rustix::io::fcntl_dupfd_cloexec;
use tokio::process::Command;

/// Above all numbers that the child's descriptors get.
const ABOVE: i32 = 100;
const COUNT: usize = 32;

#[tokio::test]
async fn what_a_spawn_needs_is_not_overwritten() {
    let null = File::open("/dev/null").unwrap();
    let descriptors: Vec<OwnedFd> = (0..COUNT)
        .map(|_| fcntl_dupfd_cloexec(&null, ABOVE).unwrap())
        .collect();
    // A spawn opens the two ends of a pipe, so two numbers are freed.
    let mut closed = [(); 2].map(|()| Some(File::open("/dev/null").unwrap()));
    for file in closed.iter().flatten() {
        assert!(file.as_raw_fd() < 3 + COUNT as i32);
    }

    for expected in [ErrorKind::WouldBlock, ErrorKind::NotFound] {
        let mut command = Command::new("/nonexistent/program");
        let passing = pass_descriptors(&mut command, &descriptors).unwrap();
        // The spawn opens its pipe, by which it learns that a program is missing, with these numbers.
        closed.iter_mut().for_each(|file| drop(file.take()));
        let refused = command.spawn().unwrap_err();
        drop(passing);
        assert_eq!(refused.kind(), expected, "{refused}");
    }
}
