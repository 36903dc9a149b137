//! Ends a machined that hangs after it was healthy, when init's deadline no longer applies: a thread outside of the runtime asks the
//! runtime for a sign of life, and ends the process if there is none. init then starts machined again in place, and containers go on.
//!
//! It must not mistake a slow machine for a hanging process. So it counts its own probes instead of seconds, because probes stop while the
//! process or the machine is stopped; it leaves out probes that came late; and it checks what the silent thread does:
//!
//! | the runtime's thread | counts |
//! | --- | --- |
//! | sleeps, or a debugger holds it | yes: it waits for an event that does not come |
//! | runs, most of the time | yes: it turns in circles |
//! | wants to run, but hardly gets to | no: the machine is busy |
//! | waits for a disk | no: it goes on when the disk does, and could not be ended before |
//!
//! SIGSTOP and a frozen cgroup stop the guard as well. For that case there is a kernel timer, which the guard resets at each probe: when it
//! expires, the kernel ends the process with SIGKILL, the one signal that a stopped process gets.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigEvent, SigevNotify, Signal};
use nix::sys::time::TimeSpec;
use nix::sys::timer::{Expiration, Timer, TimerSetTimeFlags};
use nix::time::ClockId;
use tokio::sync::Notify;

/// Interval between two probes.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);
/// A probe that takes this long is late: the guard's own thread was kept waiting.
const LATE: Duration = Duration::from_secs(8);
/// Limit on probes without a sign of life: half a minute. All work on machined's thread is done within a few seconds, also on an emulated
/// machine. And with init's budget of three restarts a minute, a machined that hangs after every start is restarted again and again instead
/// of costing its containers their generation.
const SILENT_PROBES: u32 = 6;
/// Time of the kernel timer: twice as long, because a guard that runs at all is never that late.
const STOPPED: Duration = Duration::from_secs(60);
/// Stack of the guard's thread, in bytes: it reads a small file and writes a line.
const STACK: usize = 64 * 1024;
/// Clock ticks of processes' times per second (proc_pid_stat(5), `sysconf(_SC_CLK_TCK)`: 100 on x86-64).
const TICKS: u64 = 100;

/// The runtime's side: answers for as long as the runtime works.
#[derive(Debug, Default)]
pub struct Heartbeat {
    asked: Notify,
    answered: AtomicBool,
}

impl Heartbeat {
    /// Answers for ever.
    pub async fn answer(self: Arc<Self>) {
        loop {
            self.asked.notified().await;
            self.answered.store(true, Ordering::Release);
        }
    }

    fn ask(&self) {
        self.answered.store(false, Ordering::Release);
        self.asked.notify_one();
    }

    fn is_answered(&self) -> bool {
        self.answered.load(Ordering::Acquire)
    }
}

/// Starts the guard over the process's first thread, which has to run the runtime that answers.
pub fn start() -> io::Result<Arc<Heartbeat>> {
    let heartbeat = Arc::new(Heartbeat::default());
    let watched = heartbeat.clone();
    // The kernel's log, because logging takes locks that the silent thread may hold.
    let kernel_log = File::options().write(true).open("/dev/kmsg").ok();
    std::thread::Builder::new()
        .name("hang-guard".to_owned())
        .stack_size(STACK)
        .spawn(move || guard(&watched, kernel_log))?;
    Ok(heartbeat)
}

fn guard(heartbeat: &Heartbeat, mut kernel_log: Option<File>) {
    let mut detector = HangDetector::default();
    // Without a timer the guard still works.
    let mut timer = KillTimer::new().ok();
    loop {
        // An existing timer can always be reset.
        let _ = timer.as_mut().map(|timer| timer.wind_up(STOPPED));
        heartbeat.ask();
        let begun = Instant::now();
        std::thread::sleep(PROBE_INTERVAL);
        let probe = Probe {
            took: begun.elapsed(),
            silent: (!heartbeat.is_answered()).then(|| Thread::first_of_this_process().ok()),
        };
        if detector.note(probe) {
            let words: &[u8] =
                b"<2>machined: it gave no sign of life for half a minute and ends itself, to be started again\n";
            if let Some(log) = &mut kernel_log {
                // A failure cannot be handled here.
                let _ = log.write_all(words);
            }
            std::process::abort();
        }
    }
}

/// Kills this process when it expires, even a stopped one.
struct KillTimer(Timer);

impl KillTimer {
    fn new() -> io::Result<Self> {
        let kill = SigEvent::new(SigevNotify::SigevSignal {
            signal: Signal::SIGKILL,
            si_value: 0,
        });
        Ok(Self(Timer::new(ClockId::CLOCK_MONOTONIC, kill)?))
    }

    fn wind_up(&mut self, time: Duration) -> io::Result<()> {
        let once = Expiration::OneShot(TimeSpec::from_duration(time));
        Ok(self.0.set(once, TimerSetTimeFlags::empty())?)
    }
}

/// The result of a probe.
#[derive(Debug, Clone, Copy)]
struct Probe {
    took: Duration,
    /// The silent thread, if the runtime did not answer; the inner None: the kernel does not tell its state.
    silent: Option<Option<Thread>>,
}

/// A thread's state in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Thread {
    state: State,
    /// Its CPU time so far, in ticks.
    ran: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Runnable,
    OnDisk,
    /// Asleep, stopped, or held by a debugger.
    Waiting,
}

impl Thread {
    fn first_of_this_process() -> io::Result<Self> {
        let stat = fs::read_to_string(format!("/proc/self/task/{}/stat", std::process::id()))?;
        Self::parse(&stat).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Parses proc_pid_stat(5): `12 (name) S …`, with the times at fields 14 and 15.
    fn parse(stat: &str) -> Option<Self> {
        let (_, after_name) = stat.rsplit_once(") ")?;
        let mut fields = after_name.split(' ');
        let state = match fields.next()? {
            "R" => State::Runnable,
            "D" => State::OnDisk,
            _ => State::Waiting,
        };
        let user: u64 = fields.nth(10)?.parse().ok()?;
        let system: u64 = fields.next()?.parse().ok()?;
        Some(Thread {
            state,
            ran: user + system,
        })
    }
}

/// Counts the silent probes in a row.
#[derive(Debug, Default)]
struct HangDetector {
    probes: u32,
    /// CPU time of the thread at the start of the silence, or at its last probe.
    ran: Option<u64>,
}

impl HangDetector {
    /// Counts a probe; returns true when the process certainly hangs.
    fn note(&mut self, probe: Probe) -> bool {
        let Some(thread) = probe.silent else {
            *self = HangDetector::default();
            return false;
        };
        let ran = thread.map(|thread| thread.ran);
        let ran_now = match (self.ran, ran) {
            (Some(before), Some(now)) => now.saturating_sub(before),
            _ => 0,
        };
        self.ran = ran;
        let counts = match thread.map(|thread| thread.state) {
            _ if probe.took >= LATE => false,
            Some(State::OnDisk) => false,
            Some(State::Runnable) => ran_now >= PROBE_INTERVAL.as_secs() * TICKS / 2,
            Some(State::Waiting) | None => true,
        };
        self.probes += u32::from(counts);
        self.probes >= SILENT_PROBES
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    fn silent(state: State, ran: u64) -> Probe {
        Probe {
            took: PROBE_INTERVAL,
            silent: Some(Some(Thread { state, ran })),
        }
    }

    /// Returns after how many of these probes, out of a hundred, the guard is certain.
    fn certain(probe: impl Fn(u64) -> Probe) -> Option<u64> {
        let mut detector = HangDetector::default();
        (1..=100).find(|number| detector.note(probe(*number)))
    }

    #[test]
    fn a_thread_that_waits_or_turns_in_circles_hangs() {
        let probes = u64::from(SILENT_PROBES);
        assert_eq!(certain(|_| silent(State::Waiting, 7)), Some(probes));
        let whole_probe = PROBE_INTERVAL.as_secs() * TICKS;
        // At the first probe the CPU time from before the silence is unknown.
        let circles = certain(|number| silent(State::Runnable, number * whole_probe));
        assert_eq!(circles, Some(probes + 1));
        let unreadable = Probe {
            took: PROBE_INTERVAL,
            silent: Some(None),
        };
        assert_eq!(certain(|_| unreadable), Some(probes));
    }

    #[test]
    fn a_busy_or_stopped_machine_is_not_mistaken_for_it() {
        assert_eq!(certain(|_| silent(State::OnDisk, 0)), None);
        assert_eq!(certain(|number| silent(State::Runnable, number * 50)), None);
        let late = |number| Probe {
            took: LATE,
            ..silent(State::Waiting, number)
        };
        assert_eq!(certain(late), None);
        let answers_now_and_then = |number: u64| Probe {
            silent: (!number.is_multiple_of(5)).then_some(None),
            took: PROBE_INTERVAL,
        };
        assert_eq!(certain(answers_now_and_then), None);
    }

    /// The test runs itself again, as the process that is stopped.
    #[test]
    fn a_stopped_process_is_ended() {
        const VARIABLE: &str = "INSTAR_TEST_STOPPED";
        if std::env::var_os(VARIABLE).is_some() {
            let mut timer = KillTimer::new().unwrap();
            timer.wind_up(Duration::from_millis(300)).unwrap();
            nix::sys::signal::raise(Signal::SIGSTOP).unwrap();
            unreachable!("nobody lets it go on");
        }
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "hang_guard::tests::a_stopped_process_is_ended"])
            .env(VARIABLE, "1")
            .status()
            .unwrap();
        assert_eq!(status.signal(), Some(9), "{status}");
    }

    #[test]
    fn the_kernels_line_is_understood() {
        let stat = "12 (a) b) S 1 12 12 0 -1 4194560 100 0 0 0 31 11 0 0 20 0 2 0 100 1 2";
        let expected = Thread {
            state: State::Waiting,
            ran: 42,
        };
        assert_eq!(Thread::parse(stat), Some(expected));
        assert_eq!(Thread::parse("12 (a"), None);
        assert!(Thread::first_of_this_process().is_ok());
    }

    #[test]
    fn a_runtime_that_works_answers() {
        let heartbeat = Arc::new(Heartbeat::default());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let asking = heartbeat.clone();
        let asked = std::thread::spawn(move || {
            asking.ask();
            while !asking.is_answered() {
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        runtime.spawn(heartbeat.answer());
        runtime.block_on(async {
            while !asked.is_finished() {
                tokio::task::yield_now().await;
            }
        });
        asked.join().unwrap();
    }
}
