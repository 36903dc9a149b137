//! apid's sandbox, tested from inside and from beside it. Needs root.
#![allow(clippy::unwrap_used, clippy::panic)]

mod namespace;

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;
use std::sync::mpsc::channel;

use machined::apid::{ROOT, SOCKET, USER, enter_sandbox};
use namespace::{isolated, run};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use rustix::net::{AddressFamily, SocketType, socket};
use rustix::process::{Pid, Signal, kill_process, pivot_root};
use rustix::thread::{Uid, gettid, set_thread_uid};

/// An action that is attempted, and its result.
type Attempt = (&'static str, Result<(), io::Error>);

/// Attempts everything that an attacker could want to do in a program that was taken over.
fn attempts() -> Vec<Attempt> {
    let dropped = |result: Result<(), Errno>| result.map_err(io::Error::from);
    vec![
        ("read the root", fs::read_dir("/").map(drop)),
        ("look at the socket's file", fs::metadata(SOCKET).map(drop)),
        ("read itself", fs::read("/proc/self/status").map(drop)),
        ("write a file", fs::write("/file", "x")),
        ("make a directory", DirBuilder::new().create("/directory")),
        ("remove the socket", fs::remove_file(SOCKET)),
        ("leave the root", File::open("..").map(drop)),
        (
            "run a program",
            Command::new("/bin/true").status().map(drop),
        ),
        ("become root", dropped(set_thread_uid(Uid::ROOT))),
        ("end init", dropped(kill_process(Pid::INIT, Signal::TERM))),
        ("mount", dropped(rustix::mount::mount_bind("/", "/"))),
        ("change the root", dropped(pivot_root(".", "."))),
        (
            "configure the network",
            dropped(socket(AddressFamily::NETLINK, SocketType::RAW, None).map(drop)),
        ),
        (
            "see packets",
            dropped(socket(AddressFamily::PACKET, SocketType::RAW, None).map(drop)),
        ),
        ("run what it wrote", dropped(executable_memory())),
    ]
}

#[expect(unsafe_code, reason = "memory is asked for, and refused")]
fn executable_memory() -> Result<(), Errno> {
    let all = ProtFlags::READ | ProtFlags::WRITE | ProtFlags::EXEC;
    // SAFETY: a new mapping wherever the kernel likes overlaps nothing, and nobody uses it.
    unsafe { mmap_anonymous(std::ptr::null_mut(), 4096, all, MapFlags::PRIVATE) }.map(drop)
}

#[test]
fn leaves_a_socket_and_nothing_else() {
    isolated("leaves_a_socket_and_nothing_else", &["--mount"], || {
        run("mount", &["-t", "tmpfs", "none", "/run"]);
        fs::create_dir(ROOT).unwrap();
        fs::write("/run/beside", "not for apid").unwrap();
        let path = format!("{ROOT}/{SOCKET}");
        let _listener = UnixListener::bind(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o660)).unwrap();
        chown(&path, Some(0), Some(USER)).unwrap();

        let (tell, told) = channel();
        let (go_on, stay) = channel::<()>();
        // User, capabilities, mounts and filter belong to a thread, so the sandbox is entered in a thread of its own.
        let inside = std::thread::spawn(move || {
            enter_sandbox().unwrap();
            let reached = UnixStream::connect(SOCKET).map(drop);
            tell.send((gettid(), attempts(), reached)).unwrap();
            // The thread waits here until the sender is dropped.
            let _ = stay.recv();
        });
        let (thread, attempts, reached) = told.recv().expect("it did not get inside");

        reached.expect("machined cannot be reached");
        for (what, outcome) in attempts {
            let refused = outcome.err().unwrap_or_else(|| panic!("it could {what}"));
            assert_eq!(refused.raw_os_error(), Some(1), "{what}: {refused}");
        }
        let seen = format!("/proc/self/task/{}", thread.as_raw_nonzero());
        is_nobody(&fs::read_to_string(format!("{seen}/status")).unwrap());
        sees_one_directory(&seen);
        drop(go_on);
        inside.join().unwrap();
        // The thread outside the sandbox is unchanged.
        assert_eq!(fs::read_to_string("/run/beside").unwrap(), "not for apid");
    });
}

/// Checks the user and capabilities in the format of proc_pid_status(5).
fn is_nobody(status: &str) {
    let user = [USER; 4].map(|id| id.to_string()).join("\t");
    for (field, expected) in [
        ("Uid:", user.as_str()),
        ("Gid:", &user),
        ("Groups:", ""),
        ("CapInh:", "0000000000000000"),
        ("CapPrm:", "0000000000000000"),
        ("CapEff:", "0000000000000000"),
        ("CapBnd:", "0000000000000000"),
        ("CapAmb:", "0000000000000000"),
        ("NoNewPrivs:", "1"),
        ("Seccomp:", "2"),
    ] {
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        assert_eq!(line.map(str::trim), Some(expected), "{field}");
    }
}

/// Checks that the root is the directory with the socket, that nothing else is mounted, and that not even root could write there.
fn sees_one_directory(seen: &str) {
    let mounts = fs::read_to_string(format!("{seen}/mountinfo")).unwrap();
    let mounts: Vec<Vec<&str>> = mounts
        .lines()
        .map(|line| line.split(' ').collect())
        .collect();
    assert_eq!(mounts.len(), 1, "{mounts:?}");
    // The fields of proc_pid_mountinfo(5): path within the filesystem, mount point, mount options.
    assert_eq!(mounts[0][3..5], ["/apid", "/"], "{mounts:?}");
    let how: Vec<&str> = mounts[0][5].split(',').collect();
    for option in ["ro", "nosuid", "nodev", "noexec"] {
        assert!(how.contains(&option), "{mounts:?}");
    }
    let root = format!("{seen}/root");
    let names = fs::read_dir(format!("{root}/")).unwrap();
    let names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, [SOCKET]);
    let refused = fs::write(format!("{root}/file"), "x").unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ReadOnlyFilesystem);
}
