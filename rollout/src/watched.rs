//! The time that counts: time in which a driver watched, by whatever clock that driver has.
//!
//! A rollout may be taken over by a driver on another computer, whose clock is hours ahead or behind, or go on days after its driver was killed.
//! Patience, soaks and rates are for machines that somebody watches. So who takes over shifts all moments of the record as if no time had passed
//! since the last save. Windows are hours of the day, and go by the clock.

use crate::entry::Step;
use crate::record::Record;
use crate::seconds::{Moment, Seconds};

/// A record that has not ended is saved at least this often: time after the last save may not count for who takes over.
const SAVED_EVERY: Seconds = Seconds(60);
/// Distances between two clocks that change nothing: one driver follows another one within moments, and clocks are set right by seconds.
const LATER: Seconds = Seconds(120);
const EARLIER: Seconds = Seconds(30);

impl Record {
    /// Leaves time out that nobody watched. `expected`: what the driver's clock would say if it had gone on evenly since the last save.
    pub fn skip_unwatched(&mut self, expected: Moment, now: Moment) {
        let is_plausible = now.since(expected) <= LATER && expected.since(now) <= EARLIER;
        if is_plausible || self.has_ended() {
            return;
        }
        for moment in self.moments() {
            // What lay before the last save lies as long before now.
            *moment = Moment((now.0 + moment.0).saturating_sub(expected.0));
        }
        self.revision += 1;
    }

    /// Notes the time of a save: with each change, and every minute. `before`: the revision before the changes.
    pub fn note_save(&mut self, before: u64, now: Moment) {
        let last = self.saved_at.unwrap_or_default();
        if self.revision != before || now.since(last) >= SAVED_EVERY || now < last {
            // Of a rollout that has ended no time counts.
            self.saved_at = (!self.has_ended()).then_some(now);
        }
    }

    /// All moments, but that of the last save.
    fn moments(&mut self) -> impl Iterator<Item = &mut Moment> {
        let entries = self.machines.values_mut();
        let of_entries = entries.flat_map(|entry| {
            let at = match &mut entry.step {
                Step::Preparing { since }
                | Step::Switching { since, .. }
                | Step::Returning { since, .. } => Some(since),
                Step::Updated { at } | Step::Failed { at, .. } | Step::Returned { at } => Some(at),
                Step::Waiting | Step::Prepared | Step::Stuck { .. } | Step::Left { .. } => None,
            };
            let earlier = entry.earlier.as_mut().map(|earlier| &mut earlier.at);
            at.into_iter().chain(&mut entry.began).chain(earlier)
        });
        of_entries.chain(&mut self.stalled)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::entry::Member;
    use crate::machine::{Facts, MachineName, Release};
    use crate::policy::Policy;
    use crate::{Action, Phase};

    const HOURS: u64 = 5 * 3600;

    /// A record whose machine was asked to upgrade ten minutes before the last save, and the moment of that.
    fn record() -> (Record, Moment) {
        let target = Release {
            version: "v2".to_owned(),
            digest: None,
            image: None,
        };
        let members = [(MachineName::from("m"), Member::default())];
        let mut record = Record::begin(target, vec![Policy::default()], members.into()).unwrap();
        let began = Moment(1_000_000);
        let action = Action::Switch(MachineName::from("m"));
        record.intend(&action, &Facts::new(), began);
        let saved = began.after(Seconds(600));
        record.note_save(0, saved);
        (record, saved)
    }

    /// The phase in the record after this time, with a machine that stays silent.
    fn after(record: &Record, now: Moment, seconds: u64) -> Phase {
        let mut record = record.clone();
        record.observe(&Facts::new(), now.after(Seconds(seconds)));
        record.phase
    }

    #[test]
    fn a_machine_has_its_patience_by_any_clock_and_after_any_pause() {
        let (record, saved) = record();
        let is_halted = |phase: Phase| matches!(phase, Phase::Halted { .. });
        for now in [saved.0, saved.0 + HOURS, saved.0 - HOURS, 0] {
            let (mut taken, now) = (record.clone(), Moment(now));
            taken.skip_unwatched(saved, now);
            // Ten of its thirty minutes are over; before 1970 there is no moment.
            let left = if now.0 == 0 { 1800 } else { 1200 };
            assert!(!is_halted(after(&taken, now, left - 1)), "{now:?}");
            assert!(is_halted(after(&taken, now, left)), "{now:?}");
        }
    }

    #[test]
    fn moments_stay_where_the_clock_goes_on_and_after_the_end() {
        let (mut record, saved) = record();
        let before = record.clone();
        record.skip_unwatched(saved, saved.after(LATER));
        record.skip_unwatched(saved, Moment(saved.0 - EARLIER.0));
        assert_eq!(record, before);
        record.phase = Phase::Done;
        record.machines.values_mut().next().unwrap().step = Step::Updated { at: Moment(7) };
        let before = record.clone();
        record.skip_unwatched(saved, Moment(saved.0 + HOURS));
        assert_eq!(record, before);
    }

    #[test]
    fn a_save_is_noted_with_each_change_and_every_minute() {
        let (mut record, saved) = record();
        let revision = record.revision;
        let noted = |record: &mut Record, before, seconds| {
            record.note_save(before, saved.after(Seconds(seconds)));
            record.saved_at.map(|at| at.0 - saved.0)
        };
        assert_eq!(noted(&mut record, revision, 59), Some(0));
        assert_eq!(noted(&mut record, revision, 60), Some(60));
        assert_eq!(noted(&mut record, revision - 1, 61), Some(61));
        record.phase = Phase::Done;
        record.machines.values_mut().next().unwrap().step = Step::Waiting;
        assert_eq!(noted(&mut record, revision - 1, 62), None);
    }
}
