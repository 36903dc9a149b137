//! A process that never outlives this one: started, watched and killed by one thread of its own.
//!
//! The thread lives exactly as long as the process, because the kernel ends the process with the *thread* that started
//! it (see [`die_with_starter`]). Signals go through a pidfd, so they can only ever reach the process that was started
//! here.

use std::io;
use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, mpsc};
use std::time::{Duration, Instant};

use instar_base::lock::{Changes as _, Lock as _};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::error::Ended;
use crate::sys::die_with_starter;

/// A process that is killed when this value is dropped, and with this process at the latest.
#[derive(Debug)]
pub struct OwnedProcess {
    pid: u32,
    pidfd: Arc<OwnedFd>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Set before the signal is sent, so that the watcher knows why the process ended.
    cut: bool,
    ended: Option<Ended>,
}

impl Shared {
    /// Waits for the process's end, or until the limit has passed.
    fn wait(&self, limit: Option<Duration>) -> MutexGuard<'_, State> {
        let running = |state: &mut State| state.ended.is_none();
        self.changed
            .wait_locked(self.state.locked(), limit, running)
    }
}

impl OwnedProcess {
    /// Starts the program; it is killed when the deadline passes.
    pub fn start(mut command: Command, deadline: Option<Instant>) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let (report, started) = mpsc::channel();
        let watched = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("process-owner".to_owned())
            .spawn(move || {
                die_with_starter(&mut command);
                let (mut child, pidfd) = match spawn(&mut command) {
                    Ok(pair) => pair,
                    Err(error) => {
                        // The receiver, `start`, waits for this message.
                        let _ = report.send(Err(error));
                        return;
                    }
                };
                // The receiver, `start`, waits for this message.
                let _ = report.send(Ok((child.id(), Arc::clone(&pidfd))));
                let ended = watch(&mut child, &pidfd, deadline, &watched);
                watched.state.locked().ended = Some(ended);
                watched.changed.notify_all();
            })?;
        let (pid, pidfd) = started
            .recv()
            .map_err(|_| io::Error::other("the thread that starts it ended without a word"))??;
        Ok(Self { pid, pidfd, shared })
    }

    /// The process's number.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// How the process ended, if it has.
    pub fn ended(&self) -> Option<Ended> {
        self.shared.state.locked().ended
    }

    /// Waits for the process's end.
    pub fn wait(&self, within: Duration) -> Option<Ended> {
        self.shared.wait(Some(within)).ended
    }

    /// Halts the process where it is: its sockets stay open, and nobody answers there. It can still be killed.
    pub fn halt(&self) -> io::Result<()> {
        Ok(pidfd_send_signal(&self.pidfd, Signal::STOP)?)
    }

    /// Kills the process at once and waits until it is gone.
    pub fn kill(&self) -> Ended {
        self.shared.state.locked().cut = true;
        // The process may have ended by itself: then the pidfd refuses, which is fine.
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
        self.shared.wait(None).ended.unwrap_or(Ended::PowerCut)
    }
}

impl Drop for OwnedProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

fn spawn(command: &mut Command) -> io::Result<(Child, Arc<OwnedFd>)> {
    let mut child = command.spawn()?;
    let pid = Pid::from_child(&child);
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) => Ok((child, Arc::new(pidfd))),
        Err(error) => {
            // The process may have ended.
            let _ = child.kill();
            let _ = child.wait();
            Err(error.into())
        }
    }
}

/// Returns when the process has ended, at its deadline at the latest.
fn watch(child: &mut Child, pidfd: &OwnedFd, deadline: Option<Instant>, shared: &Shared) -> Ended {
    let mut late = false;
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut [PollFd::new(pidfd, PollFlags::IN)], timeout.as_ref()) {
            Ok(0) => {
                late = true;
                break;
            }
            Ok(_) => break,
            Err(rustix::io::Errno::INTR) => {}
            // Without poll there is no deadline; waiting still works.
            Err(_) => break,
        }
    }
    if late {
        // A client of the machine only sees its connection end, without this reason.
        eprintln!("process {}: killed at its deadline", child.id());
        // The process may have ended.
        let _ = child.kill();
    }
    let status = child.wait();
    if late {
        return Ended::Deadline;
    }
    match status {
        Ok(status) if !(shared.state.locked().cut && status.code().is_none()) => {
            Ended::Exited(status)
        }
        _ => Ended::PowerCut,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    fn is_alive(pid: u32) -> bool {
        std::path::Path::new(&format!("/proc/{pid}")).exists()
    }

    #[test]
    fn tells_how_it_ended() {
        let owner = OwnedProcess::start(shell("exit 3"), None).unwrap();
        let Some(Ended::Exited(status)) = owner.wait(Duration::from_secs(30)) else {
            unreachable!()
        };
        assert_eq!(status.code(), Some(3));
    }

    #[test]
    fn a_power_cut_is_not_an_exit() {
        let owner = OwnedProcess::start(shell("exec sleep 600"), None).unwrap();
        assert_eq!(owner.ended(), None);
        assert_eq!(owner.kill(), Ended::PowerCut);
        assert!(!is_alive(owner.pid()));
    }

    #[test]
    fn a_halted_process_does_nothing_more_until_it_is_killed() {
        let owner = OwnedProcess::start(shell("exec sleep 1"), None).unwrap();
        owner.halt().unwrap();
        assert_eq!(owner.wait(Duration::from_secs(2)), None);
        assert_eq!(owner.kill(), Ended::PowerCut);
    }

    #[test]
    fn is_killed_at_its_deadline() {
        let deadline = Instant::now() + Duration::from_millis(50);
        let owner = OwnedProcess::start(shell("exec sleep 600"), Some(deadline)).unwrap();
        assert_eq!(owner.wait(Duration::from_secs(30)), Some(Ended::Deadline));
        assert!(!is_alive(owner.pid()));
    }

    #[test]
    fn outlives_the_thread_that_asked_but_not_its_value() {
        let owner =
            std::thread::spawn(|| OwnedProcess::start(shell("exec sleep 600"), None).unwrap())
                .join()
                .unwrap();
        std::thread::sleep(Duration::from_millis(100));
        let pid = owner.pid();
        assert!(
            is_alive(pid),
            "the thread that called start is gone, its process must not be"
        );
        drop(owner);
        assert!(!is_alive(pid));
    }

    #[test]
    fn a_missing_program_is_an_error() {
        assert_eq!(
            OwnedProcess::start(Command::new("/nowhere/qemu"), None)
                .unwrap_err()
                .kind(),
            io::ErrorKind::NotFound
        );
    }
}
