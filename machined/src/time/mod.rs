//! The machine's clock: never before the build date, then set by a time server.
//!
//! The clock is **stepped**, and only when it is off by more than [`STEP`]: smaller errors do not matter to TLS,
//! logs or certificates, and slewing would need a call that no safe crate has. The hardware clock is not written.
//! Nothing waits for this: a machine without any reachable server boots and keeps trying.
//!
//! A machine without a hardware clock starts at the build date, and then goes to the latest time that it can prove: that of its files and
//! its authorities (`TimeSync::raise`).

#[cfg(feature = "fuzzing")]
mod canned_answer;
mod query;
mod sample_filter;

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

use rustix::time::{ClockId, Timespec, clock_gettime, clock_settime};
use serde::Serialize;
use tokio::{sync::watch, task::JoinHandle};
use tracing::{debug, info, warn};

use crate::base::back_off::BackOff;

pub use query::QueryError;
pub use sample_filter::{Beforehand, Rejection, Sample, SampleFilter, Verdict, Witness};

/// Offset from which on the clock is set; the same as ntpd's threshold.
pub const STEP: Duration = Duration::from_millis(128);

/// Pauses between measurements while all is well: shorter in the beginning, when the drift is unknown.
const POLLS: BackOff = BackOff {
    first: Duration::from_secs(64),
    longest: Duration::from_secs(1024),
};
/// Pauses while no server answers: the network may come up any moment, but the servers belong to others, who should not be flooded.
const RETRIES: BackOff = BackOff {
    first: Duration::from_secs(1),
    longest: Duration::from_secs(64),
};

/// The settings of the clock: the config's, with the servers of DHCP or the default one where the config names none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClockSpec {
    /// Whether servers are asked at all.
    pub enabled: bool,
    /// Names or addresses, in the order of preference; a port may follow a colon.
    pub servers: Vec<String>,
}

impl Default for ClockSpec {
    /// Talos's default server.
    fn default() -> Self {
        Self {
            enabled: true,
            servers: vec!["time.cloudflare.com".to_owned()],
        }
    }
}

/// The state of the clock, for the resource store.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TimeStatus {
    /// A server has answered in this generation, and the clock agrees with it.
    pub synced: bool,
    /// The config turns time sync off.
    pub disabled: bool,
    /// Offset at the last reply, in microseconds: positive if the clock was behind.
    pub offset_us: i64,
    /// The server of the last reply.
    pub server: Option<String>,
    /// Its stratum: the distance from a reference clock.
    pub stratum: Option<u8>,
    /// The time of the last reply, in seconds since 1970.
    pub last: Option<u64>,
    /// Why the last attempt failed.
    pub problem: Option<String>,
}

/// Why the clock could not be set.
#[derive(Debug, thiserror::Error)]
#[error("cannot set the clock; machined needs CAP_SYS_TIME")]
pub struct SetClockError {
    #[from]
    source: rustix::io::Errno,
}

/// Sets the clock to `floor` (the build date, in seconds since 1970) if it is before that: a machine with an empty battery starts in 1970,
/// when no certificate is valid and no HTTPS time source can be asked. Returns whether it was set.
pub fn raise_to_floor(floor: u64) -> Result<bool, SetClockError> {
    let floor = i64::try_from(floor).unwrap_or(i64::MAX);
    if clock_gettime(ClockId::Realtime).tv_sec >= floor {
        return Ok(false);
    }
    clock_settime(
        ClockId::Realtime,
        Timespec {
            tv_sec: floor,
            tv_nsec: 0,
        },
    )?;
    Ok(true)
}

/// The machine's clock and a server's, at the same moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Comparison {
    /// The machine's time.
    pub local: SystemTime,
    /// The server's time.
    pub remote: SystemTime,
}

/// Asks a server once. The clock is not set. `held` is dropped when the lookup of the server's name has ended, which may be later than the
/// reply.
pub async fn compare(server: &str, held: impl Send + 'static) -> Result<Comparison, QueryError> {
    let sample = query::query(server, held).await?;
    let local = SystemTime::now();
    let offset = Duration::from_micros(sample.offset_us.unsigned_abs());
    let remote = if sample.offset_us < 0 {
        local.checked_sub(offset)
    } else {
        local.checked_add(offset)
    };
    Ok(Comparison {
        local,
        remote: remote.unwrap_or(local),
    })
}

/// The running time sync. Dropping it ends it.
#[derive(Debug)]
pub struct TimeSync {
    spec: watch::Sender<ClockSpec>,
    /// Whether the clock started at the build date.
    has_no_clock: bool,
    before: watch::Sender<Beforehand>,
    status: watch::Receiver<TimeStatus>,
    task: JoinHandle<()>,
}

impl TimeSync {
    /// Starts on the current runtime. `floor`: the build date in seconds since 1970; `before`: the knowledge about the time before a server
    /// answers.
    pub fn start(spec: ClockSpec, floor: u64, before: Beforehand) -> Self {
        let (spec, specs) = watch::channel(spec);
        let has_no_clock = before == Beforehand::Nothing;
        let (before, known) = watch::channel(before);
        let (status_sender, status) = watch::channel(TimeStatus::default());
        let task = crate::base::task::spawn(sync(specs, known, status_sender, floor));
        Self {
            spec,
            has_no_clock,
            before,
            status,
            task,
        }
    }

    /// Sets the clock to a time that has certainly passed, on a machine without a hardware clock that no server has answered yet. Any other
    /// clock is left alone: a file with a date from a wrong clock must not change a right one.
    pub fn raise(&self, at_least: SystemTime) {
        let knows_better = !self.has_no_clock || self.status.borrow().synced;
        let seconds = at_least.duration_since(SystemTime::UNIX_EPOCH);
        let (false, Ok(seconds)) = (knows_better, seconds) else {
            return;
        };
        match raise_to_floor(seconds.as_secs()) {
            Ok(true) => {
                self.before.send_replace(Beforehand::Roughly);
                info!("the clock goes on from the last time that this machine knows of");
            }
            Ok(false) => {}
            Err(error) => warn!(%error, "time"),
        }
    }

    /// Sets other servers, for example after a new config or DHCP lease; equal ones change nothing.
    pub fn set_spec(&self, spec: ClockSpec) {
        self.spec.send_if_modified(|old| {
            let changed = *old != spec;
            *old = spec;
            changed
        });
    }

    /// Returns the server that answered last, or the first one to ask; None while time sync is off or has no servers.
    pub fn server(&self) -> Option<String> {
        let spec = self.spec.borrow();
        let first = spec.servers.first().filter(|_| spec.enabled)?;
        let last = self.status.borrow().server.clone();
        Some(
            last.filter(|last| spec.servers.contains(last))
                .unwrap_or_else(|| first.clone()),
        )
    }

    /// Returns the servers that may be asked; none if the config turns time sync off.
    pub fn servers(&self) -> Vec<String> {
        let spec = self.spec.borrow();
        match spec.enabled {
            true => spec.servers.clone(),
            false => Vec::new(),
        }
    }

    /// Watches the state, which changes after each attempt.
    pub fn status(&self) -> watch::Receiver<TimeStatus> {
        self.status.clone()
    }
}

impl Drop for TimeSync {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn sync(
    mut specs: watch::Receiver<ClockSpec>,
    before: watch::Receiver<Beforehand>,
    status: watch::Sender<TimeStatus>,
    floor: u64,
) {
    let mut judge = SampleFilter::new(floor);
    let mut left_alone = LeftAlone::default();
    let mut steady = 1;
    let mut failures = 0;
    loop {
        let spec = specs.borrow_and_update().clone();
        let pause = if !spec.enabled || spec.servers.is_empty() {
            status.send_modify(|status| status.disabled = true);
            None
        } else {
            judge.know(*before.borrow());
            match attempt(&spec, &mut judge, &mut left_alone).await {
                Ok(done) => {
                    steady = if done.stepped { 1 } else { steady + 1 };
                    failures = 0;
                    status.send_replace(done.status);
                    Some(POLLS.after(steady))
                }
                Err(problem) => {
                    debug!(problem, "no time server");
                    status.send_modify(|status| {
                        status.disabled = false;
                        status.problem = Some(problem);
                    });
                    failures += 1;
                    Some(RETRIES.after(failures))
                }
            }
        };
        let wait = async {
            match pause {
                Some(pause) => tokio::time::sleep(pause).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = wait => {}
            changed = specs.changed() => {
                if changed.is_err() {
                    return;
                }
                failures = 0;
                left_alone = LeftAlone::default();
            }
        }
    }
}

/// The servers that refuse this machine, and until when they are not asked.
#[derive(Default)]
struct LeftAlone(BTreeMap<String, Instant>);

impl LeftAlone {
    fn note(&mut self, server: &str, rest: Duration) {
        self.0.insert(server.to_owned(), Instant::now() + rest);
    }

    /// How long a server rests yet.
    fn rests(&self, server: &str) -> Option<Duration> {
        let left = self.0.get(server)?;
        let left = left.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }
}

struct Done {
    status: TimeStatus,
    stepped: bool,
}

/// Asks the servers in order until one gives a time that is accepted.
async fn attempt(
    spec: &ClockSpec,
    judge: &mut SampleFilter,
    left_alone: &mut LeftAlone,
) -> Result<Done, String> {
    let mut problems = Vec::new();
    for server in &spec.servers {
        if let Some(left) = left_alone.rests(server) {
            let seconds = left.as_secs();
            problems.push(format!(
                "the time server {server} has refused this machine, and is asked again in {seconds} s"
            ));
            continue;
        }
        let sample = match query::query(server, ()).await {
            Ok(sample) => sample,
            Err(error) => {
                if let QueryError::Unwelcome { rest, .. } = &error {
                    left_alone.note(server, *rest);
                }
                problems.push(error.to_string());
                continue;
            }
        };
        let witness = Witness {
            server,
            is_alone: spec.servers.len() == 1,
        };
        let stepped = match judge.judge(&sample, witness, unix_microseconds()) {
            Verdict::Close => false,
            Verdict::Step => {
                if let Err(error) = step(sample.offset_us) {
                    warn!(%error, "time");
                    problems.push(error.to_string());
                    continue;
                }
                info!(server, offset_us = sample.offset_us, "the clock was set");
                true
            }
            Verdict::Rejection(doubt) => {
                problems.push(format!("{server}: {doubt}"));
                continue;
            }
        };
        judge.confirm();
        let status = TimeStatus {
            synced: true,
            disabled: false,
            offset_us: sample.offset_us,
            server: Some(server.clone()),
            stratum: Some(sample.stratum),
            last: u64::try_from(unix_microseconds() / 1_000_000).ok(),
            problem: None,
        };
        return Ok(Done { status, stepped });
    }
    Err(problems.join("; "))
}

/// Moves the clock by this many microseconds.
fn step(offset_us: i64) -> Result<(), SetClockError> {
    let target = unix_microseconds().saturating_add(offset_us);
    let time = Timespec {
        tv_sec: target.div_euclid(1_000_000),
        tv_nsec: target.rem_euclid(1_000_000) * 1000,
    };
    Ok(clock_settime(ClockId::Realtime, time)?)
}

fn unix_microseconds() -> i64 {
    let now = clock_gettime(ClockId::Realtime);
    now.tv_sec
        .saturating_mul(1_000_000)
        .saturating_add(now.tv_nsec / 1000)
}
/// Parses a packet as the reply to our request, and decides whether it is accepted.
#[cfg(feature = "fuzzing")]
pub(crate) fn judge_answer(packet: &[u8]) -> Option<Verdict> {
    let sample = canned_answer::sample_of(packet).ok()?;
    let witness = Witness {
        server: "",
        is_alone: true,
    };
    Some(SampleFilter::new(0).judge(&sample, witness, 1))
}
