//! A machine that hangs: its programs are there and none of them runs, PID 1 included.

use crate::report::report;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

const CGROUPS: &str = "/sys/fs/cgroup";
/// The watchdog's state: `active` once it is fed.
const WATCHDOG: &str = "/sys/class/watchdog/watchdog0/state";
/// Timeout: longer than a driver takes to be loaded, and init to find its device.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until the watchdog is fed, and stops every process, the feeding one included.
pub(crate) fn everything() -> Result<ExitCode> {
    let until = Instant::now() + PATIENCE;
    while !fs::read_to_string(WATCHDOG).is_ok_and(|state| state.trim() == "active") {
        ensure!(Instant::now() < until, "nobody feeds a watchdog");
        sleep(Duration::from_millis(100));
    }
    report!("everything stops now");
    // The root of cgroups cannot be frozen, and PID 1 is in it.
    let frozen = format!("{CGROUPS}/frozen");
    fs::create_dir_all(&frozen).context("make a cgroup")?;
    fs::write(format!("{frozen}/cgroup.procs"), "1").context("move init")?;
    fs::write(format!("{frozen}/cgroup.freeze"), "1").context("freeze init")?;
    for entry in fs::read_dir(CGROUPS)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with("generation.") {
            // This process is in the cgroup itself.
            fs::write(path.join("cgroup.freeze"), "1").context("freeze a generation")?;
        }
    }
    report!("and goes on");
    Ok(ExitCode::FAILURE)
}
