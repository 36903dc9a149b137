//! The capabilities of a container's processes.

use crate::values::{Capabilities, SecurityProfile};

/// All capabilities of Linux 6.12, in the kernel's order (include/uapi/linux/capability.h).
const ALL: [&str; 41] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_DAC_READ_SEARCH",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETPCAP",
    "CAP_LINUX_IMMUTABLE",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_BROADCAST",
    "CAP_NET_ADMIN",
    "CAP_NET_RAW",
    "CAP_IPC_LOCK",
    "CAP_IPC_OWNER",
    "CAP_SYS_MODULE",
    "CAP_SYS_RAWIO",
    "CAP_SYS_CHROOT",
    "CAP_SYS_PTRACE",
    "CAP_SYS_PACCT",
    "CAP_SYS_ADMIN",
    "CAP_SYS_BOOT",
    "CAP_SYS_NICE",
    "CAP_SYS_RESOURCE",
    "CAP_SYS_TIME",
    "CAP_SYS_TTY_CONFIG",
    "CAP_MKNOD",
    "CAP_LEASE",
    "CAP_AUDIT_WRITE",
    "CAP_AUDIT_CONTROL",
    "CAP_SETFCAP",
    "CAP_MAC_OVERRIDE",
    "CAP_MAC_ADMIN",
    "CAP_SYSLOG",
    "CAP_WAKE_ALARM",
    "CAP_BLOCK_SUSPEND",
    "CAP_AUDIT_READ",
    "CAP_PERFMON",
    "CAP_BPF",
    "CAP_CHECKPOINT_RESTORE",
];

/// Capabilities for programs that start as root, prepare their files and ports and then change to another user. Docker's set
/// minus raw sockets, device nodes, chroot, audit records and changes of capabilities. In the kernel's order, as `ALL`.
const DEFAULT: [&str; 8] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_NET_BIND_SERVICE",
];

/// The capabilities that a profile starts with.
fn of_profile(profile: SecurityProfile) -> &'static [&'static str] {
    match profile {
        SecurityProfile::Usual => &DEFAULT,
        SecurityProfile::Restricted => &[],
        SecurityProfile::Privileged | SecurityProfile::Node => &ALL,
    }
}

/// The name of a capability that Linux does not have.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("there is no capability {0:?}")]
pub struct UnknownCapability(String);

/// The capability sets of a process, in the kernel's order.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Granted {
    /// The bounding, permitted and effective sets.
    pub(super) all: Vec<&'static str>,
    /// The capabilities that the config adds by name: a user other than root keeps them over the change of user.
    pub(super) asked_for: Vec<&'static str>,
}

/// Applies the config's changes to the profile's set.
pub(super) fn granted(
    changes: &Capabilities,
    profile: SecurityProfile,
) -> Result<Granted, UnknownCapability> {
    let add = named(&changes.add)?;
    let drop = named(&changes.drop)?;
    let drops_all = changes.drop.iter().any(|name| is_all(name));
    // "drop: ALL, add: X" means X alone, in either order.
    let granted = |name: &&&str| {
        let by_default = of_profile(profile).contains(name) || add.contains(name);
        if drops_all {
            add.contains(name)
        } else {
            by_default && !drop.contains(name)
        }
    };
    let all: Vec<_> = ALL.iter().filter(granted).copied().collect();
    let asked_for = all
        .iter()
        .filter(|name| add.contains(name))
        .copied()
        .collect();
    Ok(Granted { all, asked_for })
}

fn is_all(name: &str) -> bool {
    name.eq_ignore_ascii_case("ALL")
}

fn named(names: &[String]) -> Result<Vec<&'static str>, UnknownCapability> {
    let mut found = Vec::new();
    for name in names {
        if is_all(name) {
            found.extend(ALL);
            continue;
        }
        let upper = name.to_ascii_uppercase();
        let known = ALL
            .iter()
            .find(|known| **known == upper || known.strip_prefix("CAP_") == Some(&upper));
        found.push(*known.ok_or_else(|| UnknownCapability(name.chars().take(40).collect()))?);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn resolve(add: &[&str], drop: &[&str]) -> Granted {
        let own = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let changes = Capabilities {
            add: own(add),
            drop: own(drop),
        };
        granted(&changes, SecurityProfile::Usual).unwrap()
    }

    #[test]
    fn a_profile_is_where_changes_begin() {
        let all = |profile, add: &[&str], drop: &[&str]| {
            let own = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
            let changes = Capabilities {
                add: own(add),
                drop: own(drop),
            };
            granted(&changes, profile).unwrap().all
        };
        assert!(all(SecurityProfile::Restricted, &[], &[]).is_empty());
        assert_eq!(
            all(SecurityProfile::Restricted, &["NET_ADMIN"], &["ALL"]),
            ["CAP_NET_ADMIN"]
        );
        assert_eq!(all(SecurityProfile::Privileged, &[], &[]), ALL);
        assert_eq!(
            all(SecurityProfile::Privileged, &[], &["SYS_MODULE"]).len(),
            40
        );
    }

    #[test]
    fn little_by_default_and_changes_by_name() {
        assert_eq!(resolve(&[], &[]).all, DEFAULT);
        assert_eq!(resolve(&[], &["ALL"]).all, [""; 0]);
        assert_eq!(resolve(&["net_raw"], &["all"]).all, ["CAP_NET_RAW"]);
        assert_eq!(resolve(&["ALL"], &[]).all, ALL);
        assert_eq!(resolve(&["ALL"], &["SYS_MODULE"]).all.len(), 40);
        let changed = resolve(&["CAP_SYS_TIME"], &["KILL"]);
        assert_eq!(changed.asked_for, ["CAP_SYS_TIME"]);
        assert!(changed.all.contains(&"CAP_CHOWN") && !changed.all.contains(&"CAP_KILL"));
        let unknown = Capabilities {
            add: vec!["CAP_EVERYTHING".into()],
            drop: vec![],
        };
        let unknown = granted(&unknown, SecurityProfile::Usual);
        assert_eq!(unknown, Err(UnknownCapability("CAP_EVERYTHING".into())));
    }
}
