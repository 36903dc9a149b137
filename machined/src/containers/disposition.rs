//! Whether a container's first process reacts to a signal.

use rustix::process::{Pid, Signal};

/// Returns whether the kernel drops this signal: the first process of a PID namespace gets only signals that it handles or has
/// blocked to fetch them itself (pid_namespaces(7)). SIGKILL from outside always arrives. For a process that is gone, the signal
/// counts as dropped.
pub(super) fn ignores_signal(pid: Pid, signal: Signal) -> bool {
    std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero()))
        .is_ok_and(|status| !hears(&status, signal))
}

/// Returns whether the masks of proc_pid_status(5) let the signal through: bit N-1 is signal N.
fn hears(status: &str, signal: Signal) -> bool {
    let has = |field: &str| {
        let mask = status.lines().find_map(|line| line.strip_prefix(field));
        let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        // An unreadable mask counts as "handled": then the process has the usual time to end.
        mask.is_none_or(|mask| mask >> (signal.as_raw() - 1) & 1 == 1)
    };
    has("SigCgt:") || has("SigBlk:")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handled_and_blocked_signals_are_heard() {
        let status = |blocked: &str, caught: &str| {
            format!(
                "Name:\tweb\nSigBlk:\t{blocked}\nSigIgn:\t0000000000001000\nSigCgt:\t{caught}\n"
            )
        };
        let none = "0000000000000000";
        // 0x4000 is bit 14: signal 15, SIGTERM.
        let term = "0000000000004000";
        assert!(!hears(&status(none, none), Signal::TERM));
        assert!(hears(&status(none, term), Signal::TERM));
        assert!(hears(&status(term, none), Signal::TERM));
        assert!(!hears(&status(none, term), Signal::INT));
        assert!(hears("", Signal::TERM));
    }
}
