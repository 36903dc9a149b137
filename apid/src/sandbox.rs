//! The rights that apid gives up before it reads the first byte from the network.

use anyhow::Context as _;
use rustix::process::{Resource, Rlimit, setrlimit};

use super::peers::CALLS;
use super::{CONNECTIONS, ROOT, USER};
use instar_sys::confinement::{Confinement, SeccompCmpOp};

/// Descriptors for everything but connections: the listening socket, the orders, the runtime.
const OTHER_DESCRIPTORS: usize = 64;

/// Enters the sandbox. Must run before the process has a second thread: user and capabilities belong to the thread.
pub fn enter() -> anyhow::Result<()> {
    // The kernel's default limit is 1,024.
    let descriptors = Some((2 * CONNECTIONS + CALLS + OTHER_DESCRIPTORS) as u64);
    let limit = Rlimit {
        current: descriptors,
        maximum: descriptors,
    };
    setrlimit(Resource::Nofile, limit).context("set the limit of descriptors")?;
    SANDBOX.enter()
}

const SANDBOX: Confinement = Confinement {
    root: ROOT,
    user: USER,
    allowed: ALLOWED,
    only: ONLY,
};

/// The allowed system calls; every other one fails with EPERM.
const ALLOWED: &[(i64, &str)] = &[
    (libc::SYS_read, "sockets"),
    (libc::SYS_readv, "sockets"),
    (libc::SYS_write, "sockets and standard error"),
    (libc::SYS_writev, "sockets"),
    (libc::SYS_close, "connections that ended"),
    (libc::SYS_accept4, "new connections"),
    (libc::SYS_socket, "the ways to machined and other nodes"),
    (libc::SYS_connect, "the ways to machined and other nodes"),
    (libc::SYS_socketpair, "the runtime's signal pipe"),
    (libc::SYS_sendto, "sockets"),
    (libc::SYS_recvfrom, "sockets"),
    (libc::SYS_sendmsg, "sockets"),
    (libc::SYS_recvmsg, "sockets"),
    (libc::SYS_shutdown, "connections that end"),
    (libc::SYS_getsockname, "addresses"),
    (libc::SYS_getpeername, "addresses"),
    (libc::SYS_setsockopt, "TCP_NODELAY"),
    (libc::SYS_getsockopt, "the outcome of connect"),
    (libc::SYS_epoll_create1, "the runtime"),
    (libc::SYS_epoll_ctl, "the runtime"),
    (libc::SYS_epoll_wait, "the runtime"),
    (libc::SYS_epoll_pwait, "the runtime"),
    (libc::SYS_eventfd2, "the runtime's wake-ups"),
    (libc::SYS_fcntl, "O_NONBLOCK"),
    (libc::SYS_ioctl, "FIONBIO"),
    (libc::SYS_futex, "locks"),
    (libc::SYS_mmap, "memory"),
    (libc::SYS_munmap, "memory"),
    (libc::SYS_mremap, "memory"),
    (libc::SYS_mprotect, "memory"),
    (libc::SYS_madvise, "memory"),
    (libc::SYS_brk, "memory"),
    (
        libc::SYS_clock_gettime,
        "certificates and timers, where the vDSO cannot",
    ),
    (libc::SYS_getrandom, "TLS"),
    (libc::SYS_rt_sigaction, "the end of the process"),
    (libc::SYS_rt_sigprocmask, "the end of the process"),
    (libc::SYS_rt_sigreturn, "the end of the process"),
    (libc::SYS_sigaltstack, "the end of the process"),
    (libc::SYS_getpid, "a crash"),
    (libc::SYS_gettid, "a crash"),
    (libc::SYS_tkill, "a crash"),
    (libc::SYS_exit, "the end of the process"),
    (libc::SYS_exit_group, "the end of the process"),
];

/// asm-generic/ioctls.h; the libc crate has it in another type for each C library.
const FIONBIO: u64 = 0x5421;

/// Calls that are allowed only with these arguments; each line is one way to make the call.
const ONLY: &[(i64, u8, SeccompCmpOp, u64)] = &[
    // No netlink, no raw packets.
    (libc::SYS_socket, 0, SeccompCmpOp::Eq, libc::AF_UNIX as u64),
    (libc::SYS_socket, 0, SeccompCmpOp::Eq, libc::AF_INET as u64),
    (libc::SYS_socket, 0, SeccompCmpOp::Eq, libc::AF_INET6 as u64),
    (libc::SYS_ioctl, 1, SeccompCmpOp::Eq, FIONBIO),
];

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use rustix::io::Errno;
    use rustix::net::{AddressFamily, SocketType, socket};

    /// The result of a closure that runs in a thread with apid's filter; the rest of this process has no filter.
    fn inside<T: Send + 'static>(tried: impl FnOnce() -> T + Send + 'static) -> T {
        let thread = std::thread::spawn(move || {
            SANDBOX.allow_few_calls().unwrap();
            tried()
        });
        thread.join().unwrap()
    }

    #[test]
    fn each_call_has_its_reason() {
        assert!(ALLOWED.iter().all(|(_, reason)| !reason.is_empty()));
    }

    #[test]
    fn files_and_programs_are_out_of_reach() {
        let (read, listed, run) = inside(|| {
            (
                std::fs::read("/proc/self/status").err(),
                std::fs::read_dir("/").err(),
                std::process::Command::new("/bin/true").spawn().err(),
            )
        });
        for refused in [read, listed, run] {
            let error = refused.unwrap();
            assert_eq!(
                error.kind(),
                std::io::ErrorKind::PermissionDenied,
                "{error}"
            );
        }
    }

    #[test]
    fn only_some_sockets_can_be_made() {
        let open = |family| inside(move || socket(family, SocketType::STREAM, None).err());
        for allowed in [
            AddressFamily::UNIX,
            AddressFamily::INET,
            AddressFamily::INET6,
        ] {
            // A host without IPv6 fails with another error.
            assert_ne!(open(allowed), Some(Errno::PERM), "{allowed:?}");
        }
        for refused in [
            AddressFamily::NETLINK,
            AddressFamily::PACKET,
            AddressFamily::VSOCK,
        ] {
            assert_eq!(open(refused), Some(Errno::PERM), "{refused:?}");
        }
    }
}
