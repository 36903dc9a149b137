//! What the dashboard gives up before it reads a key or a byte of anybody's log.

use std::collections::BTreeMap;

use anyhow::Context as _;
use rustix::process::{Gid, Uid};
use rustix::thread::{set_no_new_privs, set_thread_gid, set_thread_groups, set_thread_uid};
use seccompiler::{SeccompAction, SeccompFilter, TargetArch};

use super::USER;

/// A directory without files, which becomes its root.
const ROOT: &str = "/run/dashboard";

/// Enters the sandbox: an empty root directory, own user, no capabilities, few system calls, and no way back.
///
/// Must run before the process has a second thread: user and capabilities belong to the thread.
pub(super) fn enter() -> anyhow::Result<()> {
    std::fs::create_dir_all(ROOT).with_context(|| format!("make {ROOT}"))?;
    rustix::process::chroot(ROOT).with_context(|| format!("chroot to {ROOT}"))?;
    rustix::process::chdir("/").context("chdir to the new root")?;
    caps::clear(None, caps::CapSet::Bounding).context("empty the bounding set")?;
    set_thread_groups(&[]).context("leave all groups")?;
    set_thread_gid(Gid::from_raw(USER)).context("change the group")?;
    set_thread_uid(Uid::from_raw(USER)).context("change the user")?;
    for set in [
        caps::CapSet::Ambient,
        caps::CapSet::Inheritable,
        caps::CapSet::Effective,
        caps::CapSet::Permitted,
    ] {
        caps::clear(None, set).with_context(|| format!("empty the set {set:?}"))?;
    }
    set_no_new_privs(true).context("set no_new_privs")?;
    seccompiler::apply_filter(&filter()?).context("install the seccomp filter")
}

/// The system calls that remain; every other one fails with EPERM.
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
    (
        libc::SYS_epoll_create1,
        "the runtime, and the terminal's events",
    ),
    (
        libc::SYS_epoll_ctl,
        "the runtime, and the terminal's events",
    ),
    (
        libc::SYS_epoll_wait,
        "the runtime, and the terminal's events",
    ),
    (
        libc::SYS_epoll_pwait,
        "the runtime, and the terminal's events",
    ),
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

fn filter() -> anyhow::Result<seccompiler::BpfProgram> {
    let rules: BTreeMap<i64, Vec<seccompiler::SeccompRule>> = ALLOWED
        .iter()
        .map(|(number, _)| (*number, Vec::new()))
        .collect();
    let not_permitted = SeccompAction::Errno(rustix::io::Errno::PERM.raw_os_error().unsigned_abs());
    let filter = SeccompFilter::new(
        rules,
        not_permitted,
        SeccompAction::Allow,
        TargetArch::x86_64,
    )?;
    Ok(filter.try_into()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filter_compiles_and_each_call_has_its_reason() {
        assert!(filter().is_ok());
        assert!(ALLOWED.iter().all(|(_, reason)| !reason.is_empty()));
    }
}
