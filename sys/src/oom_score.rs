//! The order in which the kernel kills processes when memory runs out: `oom_score_adj` (Documentation/filesystems/proc.rst), from -1000,
//! never, to 1000.
//!
//! init is PID 1, which the kernel never picks. The value is inherited, so every program that machined starts gets its own.

// The child's value must be set between fork and exec: later, its own first children would have inherited machined's value.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::fs;
use std::io;

use tokio::process::Command;

/// For machined and apid: without them no client can find out what is wrong. Only processes that are never picked come after them.
pub const KEPT: i16 = -900;
/// For all other programs of the machine. Containers have higher values.
pub const USUAL: i16 = 0;

const OWN: &CStr = c"/proc/self/oom_score_adj";

/// Sets the value of this process.
pub fn set_own(score: i16) -> io::Result<()> {
    fs::write("/proc/self/oom_score_adj", score.to_string())
}

/// Starts a program with this value, or with the higher inherited one if this process may not lower it: machined may.
pub fn set_for(command: &mut Command, score: i16) {
    let text = score.to_string();
    let set = move || {
        // SAFETY: open, write and close are async-signal-safe; path and text outlive the calls, and the descriptor is this closure's.
        unsafe {
            let file = libc::open(OWN.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
            if file < 0 {
                return Err(io::Error::last_os_error());
            }
            let written = libc::write(file, text.as_ptr().cast(), text.len());
            let error = io::Error::last_os_error();
            libc::close(file);
            let may_not_lower = error.raw_os_error() == Some(libc::EACCES);
            match written < 0 && !may_not_lower {
                true => Err(error),
                false => Ok(()),
            }
        }
    };
    // SAFETY: the closure runs in the child between fork and exec. It allocates nothing and takes no lock; its text was made before
    // the fork.
    unsafe { command.pre_exec(set) };
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn a_program_begins_with_its_own_value() {
        let own = fs::read_to_string("/proc/self/oom_score_adj").unwrap();
        // Without privileges the value can only be raised.
        let score = own.trim().parse::<i16>().unwrap().max(0) + 7;
        let mut command = Command::new("cat");
        command.arg("/proc/self/oom_score_adj");
        set_for(&mut command, score);
        let said = command.output().await.unwrap();
        assert_eq!(
            String::from_utf8(said.stdout).unwrap(),
            format!("{score}\n")
        );
        assert_eq!(fs::read_to_string("/proc/self/oom_score_adj").unwrap(), own);
    }
}
