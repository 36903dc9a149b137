//! Why a machine is where it is, for people.

use std::fmt;

use crate::machine::MachineName;
use crate::seconds::{Moment, Seconds};

/// Why a machine does what it does, or waits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// It is to begin now.
    Begins,
    /// It is to fetch the image now, or does so.
    Fetches,
    /// It upgrades.
    Upgrades,
    /// It runs the version.
    RunsIt,
    /// It failed, for this reason.
    Failed(String),
    /// It goes back.
    GoesBack,
    /// It may have to go back, and cannot be asked, for this reason.
    CannotBeAsked(String),
    /// It went back.
    WentBack,
    /// It could not go back, for this reason.
    Stuck(String),
    /// The rollout left it as it was, for this reason.
    Left(String),
    /// The rollout has ended or stopped.
    Stopped,
    /// A person paused the rollout, for this reason.
    Paused(String),
    /// A person wants it left alone, for this reason.
    Held(String),
    /// It does not answer.
    Away(String),
    /// It is not ready, for this reason.
    NotReady(String),
    /// It is busy with an upgrade.
    Busy,
    /// A person has to approve the wave with this number, from 1.
    Approval(usize),
    /// The first machine in its way that does not have the image yet.
    Unprepared(MachineName),
    /// A machine of a wave before it is not done.
    Wave(MachineName),
    /// A machine of a wave before it has the version, and is not ready now.
    WaveUnwell(MachineName),
    /// No machine of the wave with this number, from 1, has begun: all are held, or there is none.
    Unproven(usize),
    /// No machine of the wave with this number, from 1, has the version: those that began failed, or left.
    WaveFailed(usize),
    /// The wave before it has to run for a time yet.
    Soaks(Moment),
    /// A pool before its own is not done.
    Pool(String),
    /// No machine of a pool before its own has the version: those that began failed, or left.
    PoolFailed(String),
    /// No window is open.
    Window(Seconds),
    /// As many machines as may begin in a time have begun.
    Rate(Moment),
    /// As many machines as may be out of service are; one of them by itself.
    Full {
        /// The number that may be out of service.
        most: usize,
        /// A machine that is out of service by itself.
        by_itself: Option<MachineName>,
    },
}

impl Reason {
    /// Whether it lasts until a machine gets well by itself, and neither time nor the rollout changes anything.
    pub(crate) fn is_a_machine_that_is_not_well(&self) -> bool {
        matches!(
            self,
            Reason::Away(_)
                | Reason::NotReady(_)
                | Reason::Busy
                | Reason::CannotBeAsked(_)
                | Reason::WaveUnwell(_)
                | Reason::Full {
                    by_itself: Some(_),
                    ..
                }
        )
    }

    /// Whether it ends with time, or by a person.
    pub(crate) fn ends_otherwise(&self) -> bool {
        matches!(
            self,
            Reason::Paused(_)
                | Reason::Approval(_)
                | Reason::Unproven(_)
                | Reason::Soaks(_)
                | Reason::Window(_)
                | Reason::Rate(_)
        )
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Begins => f.write_str("begins now"),
            Reason::Fetches => f.write_str("fetches the image"),
            Reason::Upgrades => f.write_str("upgrades"),
            Reason::RunsIt => f.write_str("runs the version"),
            Reason::Failed(why) => write!(f, "failed: {why}"),
            Reason::GoesBack => f.write_str("goes back"),
            Reason::CannotBeAsked(why) => {
                write!(f, "may have to go back, and cannot be asked: it {why}")
            }
            Reason::WentBack => f.write_str("runs the previous version again"),
            Reason::Stuck(why) => write!(f, "could not go back: {why}"),
            Reason::Left(why) => write!(f, "left as it was; {why}"),
            Reason::Stopped => f.write_str("not begun; the rollout has stopped"),
            Reason::Paused(why) => write!(f, "the rollout is paused: {why}"),
            Reason::Held(why) => write!(f, "held: {why}"),
            Reason::Away(why) => write!(f, "does not answer: {why}"),
            Reason::NotReady(why) => write!(f, "is not ready: {why}"),
            Reason::Busy => f.write_str("is busy with an upgrade"),
            Reason::Approval(wave) => write!(f, "wave {wave} has to be approved"),
            Reason::Unprepared(name) => write!(f, "waits until {name} has the image"),
            Reason::Wave(name) => write!(f, "waits for {name}, which is in a wave before"),
            Reason::WaveUnwell(name) => {
                write!(
                    f,
                    "waits for {name}, which has the version and is not ready"
                )
            }
            Reason::Unproven(wave) => write!(
                f,
                "wave {wave} has no machine that proves the version: all are held, or there is none; release one"
            ),
            Reason::WaveFailed(wave) => write!(
                f,
                "waits for a person: no machine of wave {wave} has the version, those that began failed or left; resume goes on without a proof, \
                 retry has those that failed try again"
            ),
            Reason::Soaks(until) => write!(f, "the wave before has to run until {until}"),
            Reason::Pool(pool) => write!(f, "waits for the pool {pool}"),
            Reason::PoolFailed(pool) => write!(
                f,
                "waits for a person: no machine of the pool {pool} has the version, those that began failed or left; resume goes on without a \
                 proof, retry has those that failed try again"
            ),
            Reason::Window(time) => write!(f, "its window opens in {}", minutes(*time)),
            Reason::Rate(until) => {
                write!(f, "enough machines have begun; the next one may at {until}")
            }
            Reason::Full {
                most,
                by_itself: None,
            } => {
                write!(f, "{most} at once, and as many are under way")
            }
            Reason::Full {
                most,
                by_itself: Some(name),
            } => write!(
                f,
                "{most} may be out of service at once, and as many are: {name} by itself"
            ),
        }
    }
}

/// A time to wait, rounded up to minutes.
fn minutes(time: Seconds) -> Seconds {
    Seconds(time.0.div_ceil(60) * 60)
}
