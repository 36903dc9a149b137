//! A program that crun runs in a container, as a health check. crun is the program's parent, so ending crun alone would not end the program.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// The program, by the file to which crun writes its PID. Dropping this value ends the program.
pub(super) struct ExecProgram {
    pid_file: PathBuf,
}

impl ExecProgram {
    /// Returns the program of the container that has this directory.
    pub(super) fn in_directory(directory: &Path) -> Self {
        ExecProgram {
            pid_file: directory.join("exec.pid"),
        }
    }

    /// Path of the file with its PID.
    pub(super) fn pid_file(&self) -> &Path {
        &self.pid_file
    }

    /// Ends it if the process with its PID belongs to the container.
    pub(super) fn end_if(self, is_of_container: impl Fn(u32) -> bool) {
        self.end(is_of_container);
    }

    fn end(&self, is_of_container: impl Fn(u32) -> bool) {
        let text = fs::read_to_string(&self.pid_file).unwrap_or_default();
        // Remove the file with its program: the PID in it may be reused. A file that is missing is as good.
        let _ = fs::remove_file(&self.pid_file);
        if let Some(pid) = text.trim().parse().ok().and_then(Pid::from_raw)
            && let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty())
            // Asked after the pidfd was opened, so that the answer is about the same process.
            && is_of_container(pid.as_raw_nonzero().get().unsigned_abs())
        {
            // An error means that the program has ended meanwhile.
            let _ = pidfd_send_signal(&pidfd, Signal::KILL);
        }
    }
}

impl Drop for ExecProgram {
    fn drop(&mut self) {
        self.end(|_| true);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// A machined that was killed leaves the program, and another process may have its number when the next one looks.
    #[test]
    fn what_is_left_of_a_check_is_ended_only_in_its_container() {
        let directory = tempfile::tempdir().unwrap();
        for is_of_container in [false, true] {
            let mut child = std::process::Command::new("/bin/sleep")
                .arg("1000")
                .spawn()
                .unwrap();
            let program = ExecProgram::in_directory(directory.path());
            let pid_file = program.pid_file().to_owned();
            fs::write(&pid_file, child.id().to_string()).unwrap();
            program.end_if(|pid| pid == child.id() && is_of_container);
            assert!(!pid_file.exists());
            let ended = child.try_wait().unwrap().is_some() || {
                std::thread::sleep(std::time::Duration::from_millis(100));
                child.try_wait().unwrap().is_some()
            };
            assert_eq!(ended, is_of_container);
            // One that has ended already cannot be killed.
            let _ = child.kill();
            child.wait().unwrap();
        }
    }
}
