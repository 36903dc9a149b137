//! The sandbox of a program of machined's that talks to unknown clients: it sees one directory, which it cannot write, has its own user, no
//! capabilities and few system calls, and cannot leave.

use std::collections::BTreeMap;

use anyhow::Context as _;
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount_bind, mount_change, mount_remount,
    unmount,
};
use rustix::process::{Gid, Uid, chdir, pivot_root};
use rustix::thread::{set_no_new_privs, set_thread_gid, set_thread_groups, set_thread_uid};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch,
};

use crate::own_mounts::leave_shared_mounts;

pub use seccompiler::SeccompCmpOp;

/// The rights that a program keeps.
pub struct Confinement {
    /// The directory that becomes its root, and the only one that it sees.
    pub root: &'static str,
    /// Its user and group.
    pub user: u32,
    /// The allowed system calls, each with its reason; every other one fails with EPERM.
    pub allowed: &'static [(i64, &'static str)],
    /// Further limits on some of them: the call, the number of an argument, and the comparison with a value. Each line is one allowed form
    /// of the call.
    pub only: &'static [(i64, u8, SeccompCmpOp, u64)],
}

impl Confinement {
    /// Enters the sandbox.
    ///
    /// Must run before the process has a second thread: user and capabilities belong to the thread.
    pub fn enter(&self) -> anyhow::Result<()> {
        let user = self.user;
        see_only(self.root)?;
        caps::clear(None, caps::CapSet::Bounding).context("empty the bounding set")?;
        set_thread_groups(&[]).context("leave all groups")?;
        set_thread_gid(Gid::from_raw(user)).context("change the group")?;
        set_thread_uid(Uid::from_raw(user)).context("change the user")?;
        for set in [
            caps::CapSet::Ambient,
            caps::CapSet::Inheritable,
            caps::CapSet::Effective,
            caps::CapSet::Permitted,
        ] {
            caps::clear(None, set).with_context(|| format!("empty the set {set:?}"))?;
        }
        self.allow_few_calls()
    }

    /// Installs the system call filter only, for this thread and those that it starts.
    pub fn allow_few_calls(&self) -> anyhow::Result<()> {
        set_no_new_privs(true).context("set no_new_privs")?;
        seccompiler::apply_filter(&self.filter()?).context("install the seccomp filter")
    }

    fn filter(&self) -> anyhow::Result<BpfProgram> {
        // A call without a rule is allowed with any arguments.
        let mut rules: BTreeMap<i64, Vec<SeccompRule>> = self
            .allowed
            .iter()
            .map(|(number, _)| (*number, Vec::new()))
            .collect();
        for (number, argument, operator, value) in self.only.iter().chain(NOTHING_WRITTEN_IS_RUN) {
            let length = SeccompCmpArgLen::Dword;
            let condition = SeccompCondition::new(*argument, length, operator.clone(), *value)?;
            let rule = SeccompRule::new(vec![condition])?;
            rules.entry(*number).or_default().push(rule);
        }
        let not_permitted =
            SeccompAction::Errno(rustix::io::Errno::PERM.raw_os_error().unsigned_abs());
        let filter = SeccompFilter::new(
            rules,
            not_permitted,
            SeccompAction::Allow,
            TargetArch::x86_64,
        )?;
        Ok(filter.try_into()?)
    }
}

/// Leaves only this directory of the machine's mounts, read-only. It keeps none of the other mounts busy: they can be unmounted elsewhere.
fn see_only(root: &str) -> anyhow::Result<()> {
    leave_shared_mounts().context("make a mount namespace")?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).context("keep mounts from others")?;
    mount_bind(root, root).with_context(|| format!("make {root} a mount"))?;
    let harmless = MountFlags::BIND
        | MountFlags::RDONLY
        | MountFlags::NOSUID
        | MountFlags::NODEV
        | MountFlags::NOEXEC;
    mount_remount(root, harmless, "").with_context(|| format!("make {root} read-only"))?;
    chdir(root).with_context(|| format!("chdir to {root}"))?;
    // The old root is then mounted on top of the new one, and is unmounted (pivot_root(2)).
    pivot_root(".", ".").with_context(|| format!("make {root} the root"))?;
    unmount(".", UnmountFlags::DETACH).context("leave the old root")?;
    chdir("/").context("chdir to the new root")
}

/// For every program: memory is never made executable.
const NOTHING_WRITTEN_IS_RUN: &[(i64, u8, SeccompCmpOp, u64)] = &[
    (libc::SYS_mmap, 2, NOT_EXECUTABLE, 0),
    (libc::SYS_mprotect, 2, NOT_EXECUTABLE, 0),
];
/// The argument does not have the bit PROT_EXEC.
const NOT_EXECUTABLE: SeccompCmpOp = SeccompCmpOp::MaskedEq(libc::PROT_EXEC as u64);
