//! System calls that containers may not use, each with the reason.
//!
//! The list denies instead of allowing, so that a new call of a new libc does not break a service. Missing capabilities deny most of
//! these calls too; the filter is the second lock, and the only one where the kernel asks for no capability.

use serde_json::{Value, json};

/// Denied calls, the capability that lifts the ban, and the reason of the ban.
struct Denied {
    calls: &'static [&'static str],
    /// A process with this capability may use these calls.
    unless: Option<&'static str>,
    #[expect(dead_code, reason = "read by people")]
    reason: &'static str,
}

const DENIED: &[Denied] = &[
    Denied {
        calls: &[
            "mount",
            "umount",
            "umount2",
            "pivot_root",
            "move_mount",
            "open_tree",
            "fsopen",
            "fsconfig",
            "fsmount",
            "fspick",
            "mount_setattr",
        ],
        unless: Some("CAP_SYS_ADMIN"),
        reason: "a container's file systems are made for it; within user namespaces mounts were the way out more than once",
    },
    Denied {
        calls: &["setns", "unshare"],
        unless: Some("CAP_SYS_ADMIN"),
        reason: "namespaces of its own give a process capabilities over much more of the kernel's code",
    },
    Denied {
        calls: &["kexec_load", "kexec_file_load", "reboot"],
        unless: Some("CAP_SYS_BOOT"),
        reason: "the machine is not the container's to stop",
    },
    Denied {
        calls: &[
            "create_module",
            "delete_module",
            "finit_module",
            "get_kernel_syms",
            "init_module",
            "query_module",
        ],
        unless: Some("CAP_SYS_MODULE"),
        reason: "code in the kernel",
    },
    Denied {
        calls: &["bpf"],
        unless: Some("CAP_BPF"),
        reason: "programs in the kernel; the verifier had its holes",
    },
    Denied {
        calls: &["perf_event_open"],
        unless: Some("CAP_PERFMON"),
        reason: "sees other processes and had its holes",
    },
    Denied {
        calls: &["add_key", "keyctl", "request_key"],
        unless: None,
        reason: "the kernel's keyrings are not separated by container",
    },
    Denied {
        calls: &["userfaultfd"],
        unless: Some("CAP_SYS_PTRACE"),
        reason: "stops the kernel in the middle of a copy: half of every exploit of a race",
    },
    Denied {
        calls: &["io_uring_enter", "io_uring_register", "io_uring_setup"],
        unless: None,
        reason: "does what other calls do past this filter, and is where the kernel's holes have been lately",
    },
    Denied {
        calls: &["open_by_handle_at"],
        unless: Some("CAP_DAC_READ_SEARCH"),
        reason: "opens files outside of the root by number",
    },
    Denied {
        calls: &["clock_adjtime", "clock_settime", "settimeofday", "stime"],
        unless: Some("CAP_SYS_TIME"),
        reason: "there is one clock for the whole machine",
    },
    Denied {
        calls: &["ioperm", "iopl"],
        unless: Some("CAP_SYS_RAWIO"),
        reason: "the hardware",
    },
    Denied {
        calls: &[
            "acct",
            "quotactl",
            "quotactl_fd",
            "swapoff",
            "swapon",
            "vhangup",
        ],
        unless: Some("CAP_SYS_ADMIN"),
        reason: "settings of the whole machine",
    },
    Denied {
        calls: &["syslog"],
        unless: Some("CAP_SYSLOG"),
        reason: "the kernel's log holds addresses and other people's messages",
    },
    Denied {
        calls: &[
            "_sysctl",
            "lookup_dcookie",
            "nfsservctl",
            "uselib",
            "ustat",
            "sysfs",
            "vm86",
            "vm86old",
            "modify_ldt",
        ],
        unless: None,
        reason: "left over from other times; nobody needs them and nobody looks after them",
    },
    Denied {
        calls: &["fanotify_init", "name_to_handle_at"],
        unless: Some("CAP_SYS_ADMIN"),
        reason: "watches or names files beyond the container's root",
    },
];

/// Socket families that are denied. A process with CAP_SYS_ADMIN needs no socket to leave its container, and agents of
/// hypervisors run with it, so these may use the families.
const DENIED_FAMILIES: &[(u64, &str)] = &[
    (
        38,
        "AF_ALG: the kernel's ciphers on data of anybody, with holes of their own",
    ),
    (
        40,
        "AF_VSOCK: leads to the hypervisor, from every network namespace",
    ),
];

const EPERM: u32 = 1;
const ENOSYS: u32 = 38;
/// The flags of clone that make namespaces: NEWTIME to NEWCGROUP (include/uapi/linux/sched.h). NEWTIME itself is left out: in
/// clone its bit is part of the exit signal.
const CLONE_NAMESPACES: u64 = 0x7e02_0000;

/// Builds the profile for a process with these capabilities.
pub(super) fn profile(capabilities: &[&str]) -> Value {
    let has = |name: &str| capabilities.contains(&name);
    let mut rules: Vec<Value> = DENIED
        .iter()
        .filter(|denied| denied.unless.is_none_or(|capability| !has(capability)))
        .map(|denied| json!({"names": denied.calls, "action": "SCMP_ACT_ERRNO", "errnoRet": EPERM}))
        .collect();
    if !has("CAP_SYS_ADMIN") {
        // One rule for each bit: the filter's rules compare values, so they cannot test several bits at once.
        for bit in (0..32)
            .map(|bit| 1_u64 << bit)
            .filter(|bit| CLONE_NAMESPACES & bit != 0)
        {
            let argument =
                json!({"index": 0, "value": bit, "valueTwo": bit, "op": "SCMP_CMP_MASKED_EQ"});
            rules.push(
                json!({"names": ["clone"], "action": "SCMP_ACT_ERRNO", "errnoRet": EPERM, "args": [argument]}),
            );
        }
        for (family, _) in DENIED_FAMILIES {
            let argument = json!({"index": 0, "value": family, "op": "SCMP_CMP_EQ"});
            rules.push(
                json!({"names": ["socket"], "action": "SCMP_ACT_ERRNO", "errnoRet": EPERM, "args": [argument]}),
            );
        }
        // 32-bit programs reach all socket calls by this one. Its arguments are in memory, where a filter cannot look; since
        // Linux 4.3 there is socket() for 32-bit programs too.
        rules
            .push(json!({"names": ["socketcall"], "action": "SCMP_ACT_ERRNO", "errnoRet": ENOSYS}));
        // The flags of clone3 are in memory, where a filter cannot look. Every libc falls back to clone.
        rules.push(json!({"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": ENOSYS}));
    }
    json!({
        "defaultAction": "SCMP_ACT_ALLOW",
        // All three system call tables of this processor's kernel: a missing one would let a program around the list.
        "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"],
        "syscalls": rules,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn denied(capabilities: &[&str]) -> Vec<String> {
        let profile = profile(capabilities);
        let rules = profile["syscalls"].as_array().unwrap();
        let names = rules
            .iter()
            .flat_map(|rule| rule["names"].as_array().unwrap().clone());
        names
            .map(|name| name.as_str().unwrap().to_owned())
            .collect()
    }

    #[test]
    fn bans_are_lifted_with_the_capability_that_needs_it() {
        let default = denied(&["CAP_CHOWN"]);
        for call in [
            "mount",
            "unshare",
            "kexec_load",
            "finit_module",
            "bpf",
            "clone3",
            "keyctl",
        ] {
            assert!(default.iter().any(|name| name == call), "{call}");
        }
        let admin = denied(&["CAP_SYS_ADMIN"]);
        assert!(
            !admin
                .iter()
                .any(|name| name == "mount" || name == "clone3" || name == "clone")
        );
        assert!(
            admin.iter().any(|name| name == "keyctl") && admin.iter().any(|name| name == "bpf")
        );
    }

    #[test]
    fn sockets_that_lead_past_the_network_are_denied() {
        let families = |capabilities: &[&str]| -> Vec<u64> {
            let profile = profile(capabilities);
            let rules = profile["syscalls"].as_array().unwrap().clone();
            let sockets = rules.iter().filter(|rule| rule["names"][0] == "socket");
            sockets
                .map(|rule| {
                    assert_eq!(rule["args"][0]["op"], "SCMP_CMP_EQ");
                    assert_eq!(rule["args"][0]["index"], 0);
                    rule["args"][0]["value"].as_u64().unwrap()
                })
                .collect()
        };
        let denied_families = [libc::AF_ALG, libc::AF_VSOCK].map(|family| family as u64);
        assert_eq!(families(&["CAP_NET_ADMIN"]), denied_families);
        assert!(denied(&[]).contains(&"socketcall".to_owned()));
        assert!(families(&["CAP_SYS_ADMIN"]).is_empty());
    }

    #[test]
    fn every_namespace_flag_of_clone_is_caught() {
        // NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
        let all = [
            0x0002_0000,
            0x0200_0000,
            0x0400_0000,
            0x0800_0000,
            0x1000_0000,
            0x2000_0000,
            0x4000_0000,
        ];
        assert_eq!(all.iter().sum::<u64>(), CLONE_NAMESPACES);
        assert_eq!(
            denied(&[]).iter().filter(|name| *name == "clone").count(),
            all.len()
        );
    }
}
