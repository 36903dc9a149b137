//! The commands that a person gives to a rollout.

use crate::entry::{Entry, Step};
use crate::machine::MachineName;
use crate::record::{Phase, Record};

/// A person's command.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// Let nothing new begin.
    Pause(String),
    /// Go on after a pause, or after a halt.
    Resume,
    /// Have machines that failed try again, after a halt or after the end.
    Retry,
    /// End the rollout; machines that are under way come to their end.
    Abort,
    /// Have machines that run the version go back.
    Rollback(String),
    /// Approve one more wave. With the number of that wave, from 1, no other one: what a person has seen is approved once, however often it is said.
    Approve(Option<usize>),
    /// Leave a machine alone.
    Hold(MachineName, String),
    /// Take a hold back.
    Release(MachineName),
}

/// A command that makes no sense now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The rollout has ended.
    #[error("the rollout has ended")]
    Ended,
    /// It goes back already.
    #[error("the rollout goes back: it can be paused, resumed or aborted")]
    GoesBack,
    /// No machine has failed.
    #[error("no machine has failed, so none has to try again")]
    NoFailure,
    /// The waves before that one were not approved.
    #[error("wave {wave} cannot be approved yet: wave {next} comes first")]
    WaveBefore {
        /// The wave that was to be approved.
        wave: usize,
        /// The next one.
        next: usize,
    },
    /// There is no such machine.
    #[error("{0} is no machine of this rollout")]
    NoMachine(MachineName),
}

impl Record {
    /// Carries out a person's command.
    ///
    /// # Errors
    /// It makes no sense now; nothing changed.
    pub fn command(&mut self, command: Command) -> Result<(), Refused> {
        let ends = matches!(
            self.phase,
            Phase::Aborted | Phase::Done | Phase::WentBack { .. }
        );
        let goes_back = matches!(self.phase, Phase::GoingBack { .. });
        match command {
            // The one thing to do after the end.
            Command::Rollback(why)
                if !matches!(self.phase, Phase::WentBack { .. }) && !goes_back =>
            {
                self.phase = Phase::GoingBack { why };
                self.paused = None;
            }
            // As well, unless the end was a person's.
            Command::Retry if !goes_back && (!ends || self.phase == Phase::Done) => {
                self.retry()?;
            }
            _ if ends => return Err(Refused::Ended),
            Command::Rollback(_) | Command::Approve(_) | Command::Retry if goes_back => {
                return Err(Refused::GoesBack);
            }
            Command::Rollback(_) | Command::Retry => return Err(Refused::Ended),
            Command::Pause(why) => self.paused = Some(why),
            Command::Resume => {
                self.paused = None;
                if let Phase::Halted { .. } = self.phase {
                    self.forgive();
                    self.phase = Phase::Rolling;
                }
            }
            Command::Abort => {
                self.paused = None;
                self.phase = Phase::Aborted;
            }
            Command::Approve(wave) => self.approve(wave)?,
            Command::Hold(name, why) => self.entry(name)?.hold = Some(why),
            Command::Release(name) => self.entry(name)?.hold = None,
        }
        self.stalled = None;
        self.revision += 1;
        Ok(())
    }

    /// Approves the next wave; nothing if that wave is approved already.
    fn approve(&mut self, wave: Option<usize>) -> Result<(), Refused> {
        let next = self.approved + 1;
        let wave = wave.unwrap_or(next);
        if wave > next {
            return Err(Refused::WaveBefore { wave, next });
        }
        self.approved = self.approved.max(wave);
        Ok(())
    }

    /// What has failed until now stops the rollout no more: neither by its number nor as a wave without a proof.
    pub(crate) fn forgive(&mut self) {
        self.forgiven = self.failures();
        for entry in self.machines.values_mut() {
            entry.forgiven |= matches!(entry.step, Step::Failed { .. } | Step::Left { .. });
        }
    }

    /// Their failures do not count any more: another one stops the rollout again. That they have begun stays: one that failed by the time alone may
    /// still come up with the version, and has to go back with the others.
    fn retry(&mut self) -> Result<(), Refused> {
        if self.failures() == 0 {
            return Err(Refused::NoFailure);
        }
        for entry in self.machines.values_mut() {
            if matches!(entry.step, Step::Failed { .. }) {
                entry.step = Step::Waiting;
                entry.forgiven = false;
            }
        }
        self.forgiven = 0;
        self.paused = None;
        self.phase = Phase::Rolling;
        Ok(())
    }

    fn entry(&mut self, name: MachineName) -> Result<&mut Entry, Refused> {
        self.machines.get_mut(&name).ok_or(Refused::NoMachine(name))
    }
}
