//! The programs by which agents reboot a machine with systemd: `systemctl`, `reboot` and `shutdown` are this one here.
//!
//! There is one reboot, the machine's own, which ends pods in their order and leaves the disks whole. So options that would have something skipped
//! are taken, and skip nothing. Whatever asks for something else is refused: no agent may believe that a machine is off which runs on.

use std::process::ExitCode;

use instar_sys::signals::{REBOOT, send};

/// The names of the programs.
const PROGRAMS: [&str; 3] = ["systemctl", "reboot", "shutdown"];

/// Options that change nothing about the machine's own reboot.
const WITHOUT_EFFECT: [&str; 12] = [
    "-f",
    "-ff",
    "--force",
    "-i",
    "--ignore-inhibitors",
    "--check-inhibitors=no",
    "-q",
    "--quiet",
    "--no-ask-password",
    "--no-block",
    "--no-wall",
    "--system",
];

/// Returns the program that was called, by the name that it was called by; `None` for kubernetes-init itself.
pub(crate) fn called(name: &str) -> Option<&'static str> {
    PROGRAMS.into_iter().find(|program| *program == name)
}

/// Does what a program is asked for, as far as this machine knows it: a reboot.
pub(crate) fn run(program: &str, arguments: &[String]) -> ExitCode {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if !asks_for_a_reboot(program, &words) {
        eprintln!(
            "this machine has no systemd; of its commands, only these are known, each for a reboot at once: `systemctl reboot`, `reboot`, \
             `shutdown -r now`"
        );
        return ExitCode::FAILURE;
    }
    // Whoever may signal PID 1 may ask for a reboot, as on a machine with systemd.
    match send(1, REBOOT) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("PID 1 cannot be asked for a reboot: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether the call of a program asks for a reboot at once, and for nothing else.
fn asks_for_a_reboot(program: &str, words: &[&str]) -> bool {
    let has_effect =
        |word: &&str| !WITHOUT_EFFECT.contains(word) && !word.starts_with("--message=");
    let words: Vec<&str> = words.iter().copied().filter(has_effect).collect();
    match program {
        "systemctl" => matches!(
            words.as_slice(),
            ["reboot"] | ["start" | "isolate", "reboot.target"]
        ),
        "reboot" => matches!(words.as_slice(), [] | ["--reboot"]),
        // What follows is told to the users of the machine, who are none.
        "shutdown" => matches!(words.as_slice(), ["-r" | "--reboot", "now" | "+0", ..]),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the documentation of agents has them, and as people write them.
    #[test]
    fn what_asks_for_a_reboot_at_once_is_taken_and_nothing_else() {
        let table = [
            ("systemctl reboot", true),
            ("systemctl reboot --force", true),
            ("systemctl --force --force reboot", true),
            ("systemctl reboot -f -i", true),
            ("systemctl --no-wall --message=patched reboot", true),
            ("systemctl start --no-block reboot.target", true),
            ("systemctl", false),
            ("systemctl poweroff", false),
            ("systemctl poweroff --force", false),
            ("systemctl start kubelet", false),
            ("systemctl reboot --firmware-setup", false),
            ("systemctl reboot --when=+1h", false),
            ("systemctl reboot now", false),
            ("reboot", true),
            ("reboot -f", true),
            // It halts, or writes a record of a reboot alone.
            ("reboot --halt", false),
            ("reboot -w", false),
            ("shutdown -r now", true),
            ("shutdown -r +0 kernel update", true),
            ("shutdown --no-wall -r now", true),
            ("shutdown", false),
            ("shutdown now", false),
            ("shutdown -h now", false),
            ("shutdown -P now", false),
            ("shutdown -c", false),
            // There is no clock that would wait, and no way to call it off.
            ("shutdown -r", false),
            ("shutdown -r +5", false),
            ("shutdown -r 02:00", false),
        ];
        for (call, expected) in table {
            let mut words = call.split(' ');
            let program = words.next().and_then(called);
            let words: Vec<&str> = words.collect();
            let asks = program.is_some_and(|program| asks_for_a_reboot(program, &words));
            assert_eq!(asks, expected, "{call}");
        }
        assert_eq!(called("kubernetes-init"), None);
    }
}
