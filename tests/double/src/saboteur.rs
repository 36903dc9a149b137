//! Disturbs the node on order, for tests that ask over TCP: it sees all processes, which no container does.
//!
//! A connection is one order, which is a line, and its answer, which begins with `ok` or `failed`:
//!
//! | order | does |
//! | --- | --- |
//! | `signal NAME NUMBER MILLISECONDS` | sends a signal to each process of a program; waits this long for the first one to appear |
//! | `layers` | prints `DEVICE UPPER-DIRECTORY` of each process whose root is an overlay |
//! | `workloads` | prints `NAME PID STARTED` of each process of a container that may outlive its generation; STARTED is in ticks since the boot |
//! | `clock SECONDS` | sets the clock to this many seconds since 1970 |
//!
//! One at a time: a second one on the same port ends at once.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use instar_base::mount_table::mounts;
use rustix::process::{Pid, Signal, kill_process};
use rustix::time::{ClockId, clock_gettime, clock_settime};

/// Starts a saboteur, which outlives machined's end, but not its generation's.
pub(crate) fn start(port: &str) -> Result<()> {
    let own = fs::read_to_string("/proc/self/cgroup")?;
    let own = own.trim().strip_prefix("0::").context("no cgroup2")?;
    let generation = own
        .strip_suffix("/machined")
        .with_context(|| format!("in the cgroup {own}"))?;
    let cgroup = format!("/sys/fs/cgroup{generation}/saboteur");
    fs::create_dir_all(&cgroup)?;
    let child = Command::new("/sbin/machined")
        .args(["saboteur", port])
        .stdin(Stdio::null())
        .spawn()?;
    fs::write(format!("{cgroup}/cgroup.procs"), child.id().to_string())?;
    Ok(())
}

/// Takes orders for ever.
pub(crate) fn serve(port: &str) -> Result<ExitCode> {
    let listener = match TcpListener::bind(format!("0.0.0.0:{port}")) {
        Ok(listener) => listener,
        Err(error) if error.kind() == ErrorKind::AddrInUse => return Ok(ExitCode::SUCCESS),
        Err(error) => return Err(error).context("listen"),
    };
    for stream in listener.incoming() {
        // A client that has gone needs no answer.
        let _ = stream.map_err(Into::into).and_then(answer);
    }
    Ok(ExitCode::SUCCESS)
}

fn answer(mut stream: TcpStream) -> Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut order = String::new();
    BufReader::new(stream.try_clone()?).read_line(&mut order)?;
    let words: Vec<&str> = order.split_whitespace().collect();
    let done = match words[..] {
        ["signal", name, number, milliseconds] => signal(name, number, milliseconds),
        ["layers"] => Ok(layers()),
        ["workloads"] => Ok(workloads()),
        ["clock", seconds] => set_clock(seconds),
        _ => bail!("no such order: {order}"),
    };
    match done {
        Ok(text) => write!(stream, "ok\n{text}")?,
        Err(error) => writeln!(stream, "failed: {error:#}")?,
    }
    Ok(())
}

fn signal(name: &str, number: &str, milliseconds: &str) -> Result<String> {
    let signal = Signal::from_named_raw(number.parse()?).context("no such signal")?;
    let until = Instant::now() + Duration::from_millis(milliseconds.parse()?);
    loop {
        let mut sent = String::new();
        for pid in processes() {
            if program_of(pid).is_some_and(|program| program == name) {
                let target = Pid::from_raw(pid).context("no process")?;
                // The process may have ended by itself.
                if kill_process(target, signal).is_ok() {
                    sent.push_str(&format!("{pid}\n"));
                }
            }
        }
        if !sent.is_empty() {
            return Ok(sent);
        }
        if Instant::now() > until {
            bail!("no process of the program {name}");
        }
        std::thread::sleep(Duration::from_micros(500));
    }
}

/// Returns all processes but this one.
fn processes() -> impl Iterator<Item = i32> {
    let itself = rustix::process::getpid().as_raw_nonzero().get();
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(move |pid| *pid != itself)
}

/// Returns the name by which a program was called.
fn program_of(pid: i32) -> Option<String> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let called = String::from_utf8_lossy(line.split(|byte| *byte == 0).next()?).into_owned();
    Some(called.rsplit('/').next()?.to_owned())
}

fn layers() -> String {
    let mut found = BTreeSet::new();
    for pid in processes() {
        let table = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
        for mount in mounts(&table).filter(|mount| mount.kind == "overlay") {
            let upper = mount.values("upperdir");
            found.extend(upper.map(|upper| format!("{} {upper}\n", mount.device)));
        }
    }
    found.into_iter().collect()
}

fn workloads() -> String {
    let mut found = String::new();
    for pid in processes() {
        // The process may end meanwhile.
        if let (Some(name), Some(started)) = (workload_of(pid), start_of(pid)) {
            found.push_str(&format!("{name} {pid} {started}\n"));
        }
    }
    found
}

/// Returns the name of the container that a process belongs to.
fn workload_of(pid: i32) -> Option<String> {
    let cgroups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let below = cgroups.trim().strip_prefix("0::/workloads/")?;
    Some(below.split('/').next()?.to_owned())
}

/// Returns the start of a process, in ticks since the boot: the field `starttime` of proc_pid_stat(5).
fn start_of(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program's name ends with the last parenthesis, and is the second field.
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.split(' ').nth(19)?.parse().ok()
}

fn set_clock(seconds: &str) -> Result<String> {
    let mut time = clock_gettime(ClockId::Realtime);
    time.tv_sec = seconds.parse()?;
    clock_settime(ClockId::Realtime, time)?;
    Ok(format!("{}\n", time.tv_sec))
}
