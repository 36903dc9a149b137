//! Reboots as pods know them: a file says that one waits, and a signal or `systemctl reboot` asks for one. kured works by these.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use instar_sys::signals::{REBOOT, send};

/// The file that says that a reboot waits; pods see it below the host path /var/run.
const REQUIRED: &str = "/run/reboot-required";

/// The program that agents call on a machine with systemd.
pub(crate) const SYSTEMCTL: &str = "systemctl";

/// The file that says why a reboot waits, if one does.
#[derive(Debug)]
pub(crate) struct Required {
    file: PathBuf,
    why: Option<String>,
    is_shown: bool,
}

impl Required {
    pub(crate) fn new() -> Self {
        Required {
            file: REQUIRED.into(),
            why: None,
            // No plan has come that says anything.
            is_shown: true,
        }
    }

    /// A reboot waits for this reason from now on, or none does.
    pub(crate) fn is(&mut self, why: Option<String>) {
        self.why = why;
        self.is_shown = false;
    }

    /// Writes the file or removes it, unless that is done. A pod may have filled /run, and no plan comes when it has room again: so this is to be
    /// called time and again.
    pub(crate) fn show(&mut self) -> io::Result<()> {
        if self.is_shown {
            return Ok(());
        }
        match &self.why {
            Some(why) => fs::write(&self.file, format!("{why}\n"))?,
            None => match fs::remove_file(&self.file) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                result => result?,
            },
        }
        self.is_shown = true;
        Ok(())
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_reboot_that_waits_is_shown_until_the_file_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let mut required = Required {
            file: folder.path().join("run/reboot-required"),
            ..Required::new()
        };
        let file = required.file.clone();
        required.show().unwrap();
        required.is(Some("v2 is prepared".to_owned()));
        for _ in 0..2 {
            required.show().unwrap_err();
        }
        fs::create_dir(folder.path().join("run")).unwrap();
        required.show().unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "v2 is prepared\n");
        // What agents do with it is theirs.
        fs::remove_file(&file).unwrap();
        required.show().unwrap();
        assert!(!file.exists());
        required.is(None);
        required.show().unwrap();
    }
}
