//! The sandbox that the dashboard enters before it reads a key or a byte of a log.

use anyhow::Context as _;

use super::USER;
use crate::sys::confinement::Confinement;

/// An empty directory, which becomes the dashboard's root.
const ROOT: &str = "/run/dashboard";

/// Enters the sandbox. Must run before the process has a second thread: user and capabilities belong to the thread.
pub(super) fn enter() -> anyhow::Result<()> {
    std::fs::create_dir_all(ROOT).with_context(|| format!("make {ROOT}"))?;
    SANDBOX.enter()
}

const SANDBOX: Confinement = Confinement {
    root: ROOT,
    user: USER,
    allowed: ALLOWED,
    only: &[],
};

/// The system calls that stay allowed; every other one fails with EPERM.
const ALLOWED: &[(i64, &str)] = &[
    (libc::SYS_read, "the terminal and the connection"),
    (libc::SYS_readv, "the connection"),
    (libc::SYS_write, "the terminal, and standard error"),
    (libc::SYS_writev, "the connection"),
    (libc::SYS_recvfrom, "the connection"),
    (libc::SYS_sendto, "the connection"),
    (libc::SYS_recvmsg, "the connection"),
    (libc::SYS_sendmsg, "the connection"),
    (libc::SYS_shutdown, "the connection's end"),
    (libc::SYS_getsockopt, "the connection's state"),
    (libc::SYS_close, "what is done with"),
    (libc::SYS_socketpair, "the signal pipes"),
    (libc::SYS_poll, "the terminal's events"),
    (libc::SYS_epoll_create1, "the runtime"),
    (libc::SYS_epoll_ctl, "the runtime"),
    (libc::SYS_epoll_wait, "the runtime"),
    (libc::SYS_epoll_pwait, "the runtime"),
    (libc::SYS_eventfd2, "the runtime's wake-ups"),
    (
        libc::SYS_fcntl,
        "O_NONBLOCK, further descriptors of the same",
    ),
    (libc::SYS_ioctl, "the terminal's settings and size"),
    (libc::SYS_futex, "locks"),
    (libc::SYS_mmap, "memory"),
    (libc::SYS_munmap, "memory"),
    (libc::SYS_mremap, "memory"),
    (libc::SYS_mprotect, "memory"),
    (libc::SYS_madvise, "memory"),
    (libc::SYS_brk, "memory"),
    (libc::SYS_clone, "the thread that waits for keys"),
    (libc::SYS_clone3, "the thread that waits for keys"),
    (libc::SYS_set_robust_list, "a thread's start"),
    (libc::SYS_sched_yield, "locks"),
    (libc::SYS_clock_gettime, "timers, where the vDSO cannot"),
    (libc::SYS_getrandom, "hash tables"),
    (libc::SYS_rt_sigaction, "signals"),
    (libc::SYS_rt_sigprocmask, "signals"),
    (libc::SYS_rt_sigreturn, "signals"),
    (libc::SYS_sigaltstack, "threads"),
    (libc::SYS_getpid, "a crash"),
    (libc::SYS_gettid, "a crash"),
    (libc::SYS_tkill, "a crash"),
    (libc::SYS_exit, "the end of a thread"),
    (libc::SYS_exit_group, "the end of the process"),
];

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn files_and_programs_are_out_of_reach() {
        let thread = std::thread::spawn(|| {
            SANDBOX.allow_few_calls().unwrap();
            (
                std::fs::read("/proc/self/status").err(),
                std::process::Command::new("/bin/true").spawn().err(),
            )
        });
        let (read, run) = thread.join().unwrap();
        for refused in [read, run] {
            let error = refused.unwrap();
            assert_eq!(
                error.kind(),
                std::io::ErrorKind::PermissionDenied,
                "{error}"
            );
        }
    }

    #[test]
    fn each_call_has_its_reason() {
        assert!(ALLOWED.iter().all(|(_, reason)| !reason.is_empty()));
    }
}
