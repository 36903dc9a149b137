//! The first part of a service's process: this program again, which prepares itself and becomes the service's program.
//!
//! ```text
//!   kubernetes-init ──starts──► kubernetes-init start CGROUP LIMITS PROGRAM ARGUMENT… ──becomes──► PROGRAM ARGUMENT…
//! ```
//!
//! The decision: a program of its own joins the cgroup, sets limits and begins a session by safe calls. Code between fork and exec was the
//! other choice: it is unsafe, and may not even allocate.

use std::ffi::OsString;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use instar_extension::Limit;
use nix::sys::signal::{SigSet, SigmaskHow, sigprocmask};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit, setsid};

/// The first argument that makes this program a starter.
pub(crate) const WORD: &str = "start";
/// The exit code of a program that could not be started, as systemd has it.
pub(crate) const NOT_STARTED: i32 = 203;
/// Stands for no cgroup.
const NONE: &str = "-";

/// Returns the command that starts a program in this cgroup with these limits.
pub(crate) fn command<'a>(
    cgroup: Option<&Path>,
    limits: impl Iterator<Item = (&'a String, &'a Limit)>,
    program: &str,
    arguments: &[String],
) -> Command {
    let limits = limits.map(|(name, limit)| {
        let limit = limit.map_or("infinity".to_owned(), |limit| limit.to_string());
        format!("{name}={limit}")
    });
    let limits: Vec<String> = limits.collect();
    // Its own file, also when another /usr is over the one that it was started from.
    let mut command = Command::new("/proc/self/exe");
    command.arg(WORD);
    command.arg(cgroup.unwrap_or(Path::new(NONE)));
    command.arg(limits.join(","));
    command.arg(program).args(arguments);
    command
}

/// Becomes the program that the arguments name.
pub(crate) fn run(arguments: &[OsString]) -> ExitCode {
    let Err(error) = become_program(arguments);
    eprintln!("{error:#}");
    ExitCode::from(NOT_STARTED as u8)
}

fn become_program(arguments: &[OsString]) -> Result<std::convert::Infallible> {
    let [cgroup, limits, program, arguments @ ..] = arguments else {
        bail!("expected a cgroup, limits and a program");
    };
    if cgroup != NONE {
        fs::write(cgroup, "0")
            .with_context(|| format!("cannot join the cgroup {}", Path::new(cgroup).display()))?;
    }
    for limit in limits
        .to_string_lossy()
        .split(',')
        .filter(|limit| !limit.is_empty())
    {
        set(limit).with_context(|| format!("cannot set the limit {limit}"))?;
    }
    setsid().context("cannot begin a session")?;
    // PID 1 blocks signals, and its children would too.
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)
        .context("cannot unblock signals")?;
    let error = Command::new(program).args(arguments).exec();
    Err(error).with_context(|| format!("cannot start {}", Path::new(program).display()))
}

fn set(limit: &str) -> Result<()> {
    let (name, value) = limit.split_once('=').context("it is no NAME=VALUE")?;
    let resource = match name {
        "AS" => Resource::As,
        "CORE" => Resource::Core,
        "CPU" => Resource::Cpu,
        "DATA" => Resource::Data,
        "FSIZE" => Resource::Fsize,
        "LOCKS" => Resource::Locks,
        "MEMLOCK" => Resource::Memlock,
        "MSGQUEUE" => Resource::Msgqueue,
        "NICE" => Resource::Nice,
        "NOFILE" => Resource::Nofile,
        "NPROC" => Resource::Nproc,
        "RSS" => Resource::Rss,
        "RTPRIO" => Resource::Rtprio,
        "RTTIME" => Resource::Rttime,
        "SIGPENDING" => Resource::Sigpending,
        "STACK" => Resource::Stack,
        _ => bail!("there is no such limit"),
    };
    let value = match value {
        "infinity" => None,
        number => Some(number.parse().context("it is no number")?),
    };
    let limit = Rlimit {
        current: value,
        maximum: value,
    };
    match setrlimit(resource, limit) {
        // Only a privileged process may raise its limits. Another one gets the highest that it may have, as with systemd.
        Err(rustix::io::Errno::PERM) => {
            let maximum = getrlimit(resource).maximum;
            Ok(setrlimit(
                resource,
                Rlimit {
                    current: maximum,
                    maximum,
                },
            )?)
        }
        set => Ok(set?),
    }
}
