//! Processes (proc_pid_stat(5)).

use std::fs;
use std::path::Path;

use anyhow::Context as _;
use instar_api::machine::ProcessInfo;

use super::number;

/// Limit on the bytes of a command line.
const LONGEST_ARGUMENTS: usize = 4096;

/// The kernel's units of time and memory.
struct Units {
    ticks_per_second: f64,
    page_bytes: u64,
}

/// Lists all processes, by PID.
pub fn processes() -> anyhow::Result<Vec<ProcessInfo>> {
    let units = Units {
        ticks_per_second: rustix::param::clock_ticks_per_second() as f64,
        page_bytes: rustix::param::page_size() as u64,
    };
    let mut processes: Vec<ProcessInfo> = pids()?
        // A process that has ended meanwhile is left out.
        .filter_map(|pid| process(&units, pid))
        .collect();
    processes.sort_by_key(|process| process.pid);
    Ok(processes)
}

/// Lists the PIDs of all processes.
pub(super) fn pids() -> anyhow::Result<impl Iterator<Item = u32>> {
    let entries = fs::read_dir("/proc").context("list /proc")?;
    Ok(entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok()))
}

fn process(units: &Units, pid: u32) -> Option<ProcessInfo> {
    let directory = Path::new("/proc").join(pid.to_string());
    let mut process = parse(&fs::read_to_string(directory.join("stat")).ok()?, units)?;
    process.args = arguments(&fs::read(directory.join("cmdline")).unwrap_or_default());
    // Threads of the kernel have no executable.
    process.executable = fs::read_link(directory.join("exe"))
        .map(|path| path.to_string_lossy().into_owned())
        .unwrap_or_default();
    let label = fs::read_to_string(directory.join("attr/current")).unwrap_or_default();
    label
        .trim_end_matches(['\0', '\n'])
        .clone_into(&mut process.label);
    Some(process)
}

/// Parses `PID (COMMAND) STATE PPID …`. The command may hold any character, blanks and parentheses too.
fn parse(stat: &str, units: &Units) -> Option<ProcessInfo> {
    let (pid, rest) = stat.split_once(" (")?;
    let (command, rest) = rest.rsplit_once(") ")?;
    // The third field of the manual page is the first one here.
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let field = |number_in_manual: usize| fields.get(number_in_manual - 3).copied();
    let ticks: u64 = number::<u64>(field(14)) + number::<u64>(field(15));
    Some(ProcessInfo {
        pid: pid.parse().ok()?,
        ppid: number(field(4)),
        state: field(3)?.to_owned(),
        threads: number(field(20)),
        cpu_time: ticks as f64 / units.ticks_per_second,
        virtual_memory: number(field(23)),
        resident_memory: number::<u64>(field(24)) * units.page_bytes,
        command: command.to_owned(),
        ..ProcessInfo::default()
    })
}

/// Joins the arguments, each of which ends with a zero byte.
fn arguments(cmdline: &[u8]) -> String {
    let shown = &cmdline[..cmdline.len().min(LONGEST_ARGUMENTS)];
    let words = shown.split(|byte| *byte == 0);
    let words: Vec<_> = words.map(String::from_utf8_lossy).collect();
    words.join(" ").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_command_may_look_like_anything() {
        let units = Units {
            ticks_per_second: 100.0,
            page_bytes: 4096,
        };
        let line = "42 (a) S (b) R 1 42 42 0 -1 4194560 1 2 3 4 150 50 0 0 20 0 3 0 100 8192000 250 18446744073709551615";
        let process = parse(line, &units).unwrap();
        assert_eq!((process.pid, process.ppid, process.threads), (42, 1, 3));
        assert_eq!(
            (process.command.as_str(), process.state.as_str()),
            ("a) S (b", "R")
        );
        assert_eq!(process.cpu_time, 2.0);
        assert_eq!(
            (process.virtual_memory, process.resident_memory),
            (8_192_000, 1_024_000)
        );
    }

    #[test]
    fn arguments_are_words() {
        assert_eq!(
            arguments(b"/sbin/machined\0--flag\0"),
            "/sbin/machined --flag"
        );
        assert_eq!(arguments(b""), "");
        assert_eq!(arguments(&vec![b'x'; 100_000]).len(), LONGEST_ARGUMENTS);
    }

    #[test]
    fn this_process_is_among_them() {
        let own = processes()
            .unwrap()
            .into_iter()
            .find(|process| process.pid == i32::try_from(std::process::id()).unwrap())
            .unwrap();
        assert!(own.resident_memory > 0 && own.threads > 0);
        assert!(own.executable.contains("machined"), "{own:?}");
    }
}
