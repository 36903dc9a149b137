//! The word of a service that it is ready: `READY=1` to a socket of its own (sd_notify(3)).

use std::fs;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The directory of sockets.
const DIRECTORY: &str = "/run/notify";

/// The socket of one service.
#[derive(Debug)]
pub(crate) struct Socket {
    socket: UnixDatagram,
    path: PathBuf,
}

impl Socket {
    /// Makes the socket of a service, instead of an old one.
    pub(crate) fn make(service: &str) -> Result<Self> {
        let path = Path::new(DIRECTORY).join(service);
        let failed = || format!("cannot make the socket {}", path.display());
        fs::create_dir_all(DIRECTORY).with_context(failed)?;
        // If one is left after this, the next step says so.
        let _ = fs::remove_file(&path);
        let socket = UnixDatagram::bind(&path).with_context(failed)?;
        socket.set_nonblocking(true).with_context(failed)?;
        Ok(Socket { socket, path })
    }

    /// Its address, for the variable NOTIFY_SOCKET.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the service has said since the last call that it is ready.
    pub(crate) fn says_ready(&self) -> bool {
        let mut is_ready = false;
        let mut message = [0; 4096];
        // A service that says more than that has its turn again.
        for _ in 0..16 {
            let Ok(length) = self.socket.recv(&mut message) else {
                break;
            };
            is_ready |= message[..length]
                .split(|byte| *byte == b'\n')
                .any(|line| line == b"READY=1");
        }
        is_ready
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
