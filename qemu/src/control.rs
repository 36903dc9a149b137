//! Control of another process's machine, by its directory.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::directory::{CONTROL_SOCKET, Directory, FORWARDS, short_path};
use crate::error::{Error, Evidence, Result};
use crate::guest_clock;
use crate::qmp::{Qmp, QmpError};

/// Timeout for QEMU's end after `quit`.
const QUIT_PATIENCE: Duration = Duration::from_secs(30);

/// Whether a machine runs in this directory.
pub fn is_running(directory: &Path) -> bool {
    Directory::is_in_use(directory)
}

/// Returns the port on the host's 127.0.0.1 that is forwarded to a port of the guest.
pub fn host_port(directory: &Path, guest: u16) -> Result<u16> {
    forwards(directory)?
        .into_iter()
        .find_map(|(from, to)| (from == guest).then_some(to))
        .ok_or(Error::NotForwarded(guest))
}

/// Returns all forwards: port of the guest, port of the host.
pub fn forwards(directory: &Path) -> Result<Vec<(u16, u16)>> {
    let path = directory.join(FORWARDS);
    let text = std::fs::read_to_string(&path).map_err(Error::directory("read", &path))?;
    let pair = |line: &str| {
        let (guest, host) = line.split_once(' ')?;
        Some((guest.parse().ok()?, host.parse().ok()?))
    };
    Ok(text.lines().filter_map(pair).collect())
}

/// Runs a QMP command without arguments, e.g. `system_reset` or `system_powerdown`.
pub fn command(directory: &Path, name: &str) -> Result<()> {
    match with_qmp(directory, |qmp| qmp.execute(name, json!({}))) {
        Ok(_) => Ok(()),
        Err(Error::Qmp {
            source: QmpError::Closed,
            ..
        }) if name == "quit" => Ok(()),
        Err(error) => Err(error),
    }
}

/// Returns the guest's own time since QEMU started: see [`crate::Vm::guest_clock`].
pub fn guest_clock(directory: &Path) -> Result<Duration> {
    with_qmp(directory, guest_clock::read)
}

fn with_qmp<T>(
    directory: &Path,
    work: impl FnOnce(&mut Qmp) -> std::result::Result<T, QmpError>,
) -> Result<T> {
    let handle = File::open(directory).map_err(Error::directory("open", directory))?;
    Qmp::connect(&short_path(&handle, CONTROL_SOCKET))
        .and_then(|mut qmp| work(&mut qmp))
        .map_err(|source| Error::Qmp {
            evidence: no_evidence(directory),
            source,
        })
}

/// Returns no evidence: the machine's owner shows its console.
fn no_evidence(directory: &Path) -> Evidence {
    Evidence {
        directory: directory.to_owned(),
        console: String::new(),
        qemu: String::new(),
    }
}

/// Ends the machine with disks flushed, and waits until its owner is gone too. Succeeds if none runs.
pub fn quit(directory: &Path) -> Result<()> {
    if !is_running(directory) {
        return Ok(());
    }
    command(directory, "quit")?;
    let until = Instant::now() + QUIT_PATIENCE;
    while is_running(directory) {
        if Instant::now() >= until {
            return Err(Error::TooLate {
                wanted: "end of the machine".to_owned(),
                within: QUIT_PATIENCE,
                evidence: no_evidence(directory),
            });
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
