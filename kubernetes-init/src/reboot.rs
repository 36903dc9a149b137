//! Reboots as pods know them: a file says that one waits, and a signal or `systemctl reboot` asks for one. kured works by these.

use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use instar_sys::signals::{REBOOT, send};

/// The file that says that a reboot waits; pods see it below the host path /var/run.
const REQUIRED: &str = "/run/reboot-required";

/// The program that agents call on a machine with systemd.
pub(crate) const SYSTEMCTL: &str = "systemctl";

/// Writes the file that says why a reboot waits, or removes it.
pub(crate) fn show_required(why: Option<&str>) -> io::Result<()> {
    let file = Path::new(REQUIRED);
    match why {
        Some(why) => fs::write(file, format!("{why}\n")),
        None => match fs::remove_file(file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        },
    }
}

/// Does what `systemctl` is asked for, as far as this machine knows it: a reboot.
pub(crate) fn systemctl(arguments: &[String]) -> ExitCode {
    if !matches!(arguments, [word] if word == "reboot") {
        eprintln!("this machine has no systemd; of its commands, only `systemctl reboot` is known");
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
