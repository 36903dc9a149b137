//! The phases of a boot, an upgrade without a reboot, and a reboot: from the console's text to times of the guest.
//!
//! Each phase runs from one line to another, by the kernel's time stamps. init and machined write to the kernel's log,
//! so all lines are on one time line. Some phases overlap: they do not add up. The kernel's clock starts after the
//! firmware.
//!
//! init prints nothing between the API's last answers and the start of the next generation: both and the teardown are
//! one phase.

use std::time::Duration;

use instar_qemu::ConsoleLine;

/// A phase: its name, the text of its first line (none: the kernel's zero), and of the next line that ends it.
pub(crate) type Phase = (&'static str, Option<&'static str>, &'static str);

const MACHINED: &str = "machined: v";
const FIRST_ANSWER: &str = "machined: the API answers on port";
const GENERATION: &str = "init: generation ";
const LAST_ANSWERS: &str = "machined: the API gives its last answers";

/// Phases of a boot.
pub(crate) const BOOT: [Phase; 10] = [
    ("kernel", None, "Run /init as init process"),
    ("init", Some("Run /init as init process"), GENERATION),
    ("machined", Some(GENERATION), MACHINED),
    (
        "config",
        Some(MACHINED),
        "machined: initialize: loadConfig: done",
    ),
    ("apid", Some(MACHINED), "machined: service apid: started"),
    (
        "first_answer",
        Some("machined: service apid: started"),
        FIRST_ANSWER,
    ),
    ("network", Some(MACHINED), "machined: DHCP lease"),
    (
        "disk",
        Some("machined: boot: start"),
        "machined: boot: machine: done",
    ),
    (
        "services",
        Some("machined: boot: machine: done"),
        "machined: boot: startServices: done",
    ),
    (
        "first_container",
        Some("machined: boot: machine: done"),
        "machined: service kept: started",
    ),
];

/// Phases of an upgrade without a reboot, in the order of their ends; the answer is followed by a pause of half a
/// second.
pub(crate) const SOFT: [Phase; 14] = [
    ("answer", Some(" asked for by "), ": without a reboot"),
    (
        "installer",
        Some("machined: upgrade: start"),
        "machined: upgrade: upgrade: done",
    ),
    (
        "stop",
        Some("machined: upgrade: upgrade: done"),
        "machined: upgrade: stopServices: done",
    ),
    (
        "unmount",
        Some("machined: upgrade: stopServices: done"),
        "machined: upgrade: undoSettings: done",
    ),
    (
        "check",
        Some("machined: upgrade: undoSettings: done"),
        ": detected capacity change from 0 to",
    ),
    (
        "mount_and_read_ahead",
        Some(": detected capacity change from 0 to"),
        LAST_ANSWERS,
    ),
    ("last_answers_and_teardown", Some(LAST_ANSWERS), GENERATION),
    ("machined", Some(GENERATION), MACHINED),
    ("first_answer", Some(MACHINED), FIRST_ANSWER),
    (
        "disk",
        Some("machined: boot: start"),
        "machined: boot: machine: done",
    ),
    (
        "services",
        Some("machined: boot: machine: done"),
        "machined: boot: startServices: done",
    ),
    (
        "take_over",
        Some("machined: boot: machine: done"),
        "machined: service kept: taken over",
    ),
    ("network", Some(MACHINED), "machined: DHCP lease"),
    (
        "gate",
        Some("machined: boot: done"),
        " is healthy and committed",
    ),
];

/// Phases of a reboot, down to the kernel's last line.
pub(crate) const DOWN: [Phase; 5] = [
    ("answer", Some(" asked for by "), "machined: reboot: start"),
    (
        "stop",
        Some("machined: reboot: start"),
        "machined: reboot: stopServices: done",
    ),
    (
        "unmount",
        Some("machined: reboot: stopServices: done"),
        "machined: reboot: done",
    ),
    (
        "leave",
        Some("machined: reboot: done"),
        "init: machined asks for reboot",
    ),
    (
        "teardown",
        Some("init: machined asks for reboot"),
        "reboot: Restarting system",
    ),
];

/// Returns the milliseconds of each phase; none for a phase without both of its lines.
pub(crate) fn milliseconds(console: &str, phases: &[Phase]) -> Vec<(&'static str, Option<f64>)> {
    let phases = phases.iter();
    phases
        .map(|(name, from, to)| {
            let time = between(console, *from, to);
            (*name, time.map(|time| time.as_secs_f64() * 1000.0))
        })
        .collect()
}

/// Returns the time from the first line with one text to the next line with another.
pub(crate) fn between(console: &str, from: Option<&str>, to: &str) -> Option<Duration> {
    let mut lines = console.lines();
    let begin = match from {
        Some(text) => stamp(lines.find(|line| line.contains(text))?)?,
        None => Duration::ZERO,
    };
    let end = stamp(lines.find(|line| line.contains(to))?)?;
    end.checked_sub(begin)
}

/// Returns the console from the first line with a text on; empty if there is none.
pub(crate) fn from_line<'a>(console: &'a str, text: &str) -> &'a str {
    let at = console
        .find(text)
        .map(|at| console[..at].rfind('\n').map_or(0, |end| end + 1));
    at.map_or("", |at| &console[at..])
}

fn stamp(line: &str) -> Option<Duration> {
    let line = ConsoleLine {
        text: line.to_owned(),
        end: Default::default(),
    };
    line.kernel_time()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const CONSOLE: &str = "\
SeaBIOS (version 1.16)
[    0.000000] Linux version 6.12\r
[    0.970901] Run /init as init process\r
[    1.118395] loop0: detected capacity change from 0 to 14872\r
[    1.129134] init: generation 1 starts, boot id 17a1cd04\r
[    1.199680] machined: v0.1.0 as generation 1 (boot)\r
[    1.446082] machined: the API answers on port 50000\r
[    1.562144] init: generation 1 is healthy and committed\r
[    2.977769] machined: upgrade to 10.0.2.2/installer:v0.2.0 asked for by [::1]:1\r
[    5.396893] machined: upgrade to v0.2.0: without a reboot\r
[    5.398205] machined: upgrade: start\r
[    5.598205] machined: upgrade: upgrade: done\r
[    5.752147] loop1: detected capacity change from 0 to 14872\r
[    5.761649] machined: the API gives its last answers to this generation\r
[    5.775649] init: generation 2 starts, boot id 28aa75e0\r
[    5.842858] machined: v0.2.0 as generation 2 (next)\r
[    5.989813] machined: the API answers on port 50000\r
";

    fn of<'a>(phases: &'a [(&str, Option<f64>)], name: &str) -> &'a Option<f64> {
        &phases.iter().find(|(phase, _)| *phase == name).unwrap().1
    }

    fn is_about(time: &Option<f64>, milliseconds: f64) -> bool {
        time.is_some_and(|time| (time - milliseconds).abs() < 0.001)
    }

    #[test]
    fn a_boot_begins_with_the_kernels_clock() {
        let phases = milliseconds(CONSOLE, &BOOT);
        assert!(is_about(of(&phases, "kernel"), 970.901));
        assert!(is_about(of(&phases, "init"), 158.233));
        assert!(is_about(of(&phases, "machined"), 70.546));
    }

    #[test]
    fn an_upgrade_is_looked_for_behind_its_call() {
        let console = from_line(CONSOLE, "upgrade to ");
        let phases = milliseconds(console, &SOFT);
        for (name, expected) in [
            ("answer", 2419.124),
            ("installer", 200.0),
            ("mount_and_read_ahead", 9.502),
            ("last_answers_and_teardown", 14.0),
            ("machined", 67.209),
            ("first_answer", 146.955),
        ] {
            let time = of(&phases, name);
            assert!(is_about(time, expected), "{name}: {time:?}");
        }
    }

    #[test]
    fn a_phase_without_its_lines_has_no_time() {
        let console = from_line(CONSOLE, "upgrade to ");
        let phases = milliseconds(console, &SOFT);
        for name in ["stop", "check", "take_over", "gate"] {
            assert_eq!(*of(&phases, name), None, "{name}");
        }
        assert_eq!(from_line(CONSOLE, "reboot asked for"), "");
        assert!(
            milliseconds("", &DOWN)
                .iter()
                .all(|(_, time)| time.is_none())
        );
        // A clock that started anew between the lines gives no time.
        let reset = "[    9.0] odd\n[    9.000000] one\n[    0.500000] two\n";
        assert_eq!(between(reset, Some("one"), "two"), None);
        assert_eq!(between(reset, Some("odd"), "one"), None);
    }
}
