//! The limits: each is a function that returns the reason why a machine may not begin, if there is one. They are asked before each machine,
//! not once per rollout.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, UNIX_EPOCH};

use instar_values::Openness;

use crate::entry::{Entry, Step, hold};
use crate::machine::{Condition, Fact, Facts, MachineName};
use crate::policy::{Approval, Policy};
use crate::reason::Reason;
use crate::record::{Phase, Record};
use crate::seconds::{Moment, Seconds};

/// How long before a wave may begin the machines are looked at on which it relies.
const SOON: Seconds = Seconds(300);

/// A machine that would begin, and all that its limits are computed from.
#[derive(Clone, Copy)]
pub(crate) struct Candidate<'a> {
    pub(crate) record: &'a Record,
    /// The waves of each of its policies.
    pub(crate) waves: &'a [Waves<'a>],
    pub(crate) facts: &'a Facts,
    pub(crate) now: Moment,
    pub(crate) name: &'a MachineName,
    pub(crate) entry: &'a Entry,
}

impl<'a> Candidate<'a> {
    /// The first reason why it may not begin.
    pub(crate) fn obstacle(self) -> Option<Reason> {
        self.is_held()
            .or_else(|| self.is_not_well())
            .or_else(|| self.pool_before())
            .or_else(|| {
                let mut policies = self.record.policies.iter().zip(self.waves);
                policies.find_map(|(policy, waves)| match policy.is_for(self.entry) {
                    true => self.forbidden_by(policy, waves),
                    false => None,
                })
            })
    }

    pub(crate) fn is_held(self) -> Option<Reason> {
        hold(self.name, self.entry, self.facts).map(Reason::Held)
    }

    pub(crate) fn is_not_well(self) -> Option<Reason> {
        match self.facts.get(self.name).map(|fact| &fact.condition) {
            Some(Condition::Ready) => None,
            Some(Condition::NotReady(why)) => Some(Reason::NotReady(why.clone())),
            Some(Condition::Busy) => Some(Reason::Busy),
            Some(Condition::Away(why) | Condition::Gone(why)) => Some(Reason::Away(why.clone())),
            None => Some(Reason::Away("it was not asked".to_owned())),
        }
    }

    /// On the way back only the number at once is a limit: windows and waves are for what can wait. Machines that are unwell do not count,
    /// for the version may be the cause.
    pub(crate) fn too_many_under_way(self) -> Option<Reason> {
        let most = self.policies().map(|policy| {
            let machines = self.record.machines.values();
            let machines: Vec<_> = machines.filter(|entry| policy.is_for(entry)).collect();
            let under_way = machines.iter().filter(|entry| entry.step.is_under_way());
            (policy.most_at_once(machines.len()), under_way.count())
        });
        let full = most.into_iter().find(|(most, under_way)| under_way >= most);
        full.map(|(most, _)| Reason::Full {
            most,
            by_itself: None,
        })
    }

    fn policies(self) -> impl Iterator<Item = &'a Policy> {
        let policies = self.record.policies.iter();
        policies.filter(move |policy| policy.is_for(self.entry))
    }

    fn forbidden_by(self, policy: &Policy, waves: &Waves<'_>) -> Option<Reason> {
        let machines = self.record.machines.iter();
        let machines: Vec<_> = machines.filter(|(_, entry)| policy.is_for(entry)).collect();
        wave_before(self, policy, waves)
            .or_else(|| unprepared(self, policy, &machines))
            .or_else(|| opens_in(policy, self.now).map(Reason::Window))
            .or_else(|| too_fast(policy, &machines, self.now))
            .or_else(|| full(policy, &machines, self.facts))
    }

    /// A pool that has to be done first.
    fn pool_before(self) -> Option<Reason> {
        let pools = self.record.pools_before(&self.entry.pool);
        pools.into_iter().find_map(|pool| {
            let machines = self.record.machines.iter();
            let mut own = machines.filter(|(_, entry)| entry.pool == pool);
            match own.all(|(name, entry)| self.has_ended(name, entry)) {
                false => Some(Reason::Pool(pool.to_owned())),
                true => {
                    let has_failed = failed_as_a_whole(self.record, pool);
                    has_failed.then(|| Reason::PoolFailed(pool.to_owned()))
                }
            }
        })
    }

    /// Whether others need not wait for a machine. Who is held is not waited for.
    fn has_ended(self, name: &MachineName, entry: &Entry) -> bool {
        match entry.step {
            Step::Waiting | Step::Preparing { .. } | Step::Prepared => {
                hold(name, entry, self.facts).is_some()
            }
            Step::Switching { .. } | Step::Returning { .. } => false,
            _ => true,
        }
    }
}

impl Record {
    /// Whether a machine would be asked again now if it showed no sign of what it was to do. After a stop no upgrade begins, nor outside of the windows
    /// or without an approval, also not that of a machine whose turn came before; the way back does.
    pub(crate) fn may_be_asked(
        &self,
        name: &MachineName,
        entry: &Entry,
        facts: &Facts,
        now: Moment,
    ) -> bool {
        let goes_on = match entry.step {
            Step::Returning { .. } => true,
            Step::Switching { .. } => {
                let is_time = self.is_open_for(entry, now) && self.is_approved(name, entry);
                self.may_begin_any() && is_time
            }
            _ => self.may_begin_any(),
        };
        goes_on && hold(name, entry, facts).is_none()
    }

    fn may_begin_any(&self) -> bool {
        self.phase == Phase::Rolling && self.paused.is_none()
    }

    /// Whether each policy for a machine has a window that is open, or none at all.
    pub(crate) fn is_open_for(&self, entry: &Entry, now: Moment) -> bool {
        let mut policies = self.policies.iter().filter(|policy| policy.is_for(entry));
        policies.all(|policy| opens_in(policy, now).is_none())
    }

    /// Whether a person has approved a machine's wave, and has not withdrawn that, where a policy asks for it.
    pub(crate) fn is_approved(&self, name: &MachineName, entry: &Entry) -> bool {
        let policies = self.policies.iter().filter(|policy| policy.is_for(entry));
        let mut asking = policies.filter(|policy| policy.approval == Approval::Waves);
        asking.all(|policy| {
            let waves = policy.waves_in(&self.machines);
            waves.get(name).is_some_and(|wave| *wave < self.approved)
        })
    }

    /// The machines with the version on which the next wave relies: each has to be well when a machine of that wave begins, so a driver has to look
    /// at it anew before that. None while nothing may begin, nor will within minutes. `is_held`: whether a machine is to be left alone; who is held
    /// and has not begun is not waited for.
    pub fn relied_on(
        &self,
        is_held: impl Fn(&MachineName) -> bool,
        now: Moment,
    ) -> BTreeSet<MachineName> {
        let mut relied_on = BTreeSet::new();
        if self.phase != Phase::Rolling || self.paused.is_some() {
            return relied_on;
        }
        let is_held = |name: &MachineName, entry: &Entry| entry.hold.is_some() || is_held(name);
        let is_awaited = |name: &MachineName, entry: &Entry| {
            entry.step.is_before() && !is_held(name, entry) || entry.step.is_under_way()
        };
        let soon = now.after(SOON);
        let opens_soon = |policy: &&Policy| opens_in(policy, now).is_none_or(|it| it <= SOON);
        for policy in self.policies.iter().filter(opens_soon) {
            let waves = policy.waves_in(&self.machines);
            let waves = waves.into_iter().filter_map(|(name, wave)| {
                let entry = self.machines.get(name)?;
                Some((name, entry, wave))
            });
            let waves: Vec<_> = waves.collect();
            let awaited = waves
                .iter()
                .filter(|(name, entry, _)| is_awaited(name, entry));
            let Some(next) = awaited.map(|(_, _, wave)| *wave).min() else {
                continue;
            };
            if policy.approval == Approval::Waves && next >= self.approved {
                continue;
            }
            let proofs = waves.iter().filter(|(_, entry, wave)| {
                *wave < next && matches!(entry.step, Step::Updated { .. })
            });
            let soaks_on = |(name, entry, wave): &(&MachineName, &Entry, usize)| {
                policy.soaks_until(entry, *wave).is_some_and(|it| soon < it)
                    && !is_held(name, entry)
            };
            if !proofs.clone().any(soaks_on) {
                relied_on.extend(proofs.map(|(name, ..)| (*name).clone()));
            }
        }
        relied_on
    }
}

impl Policy {
    /// The end of the soak of a machine of this wave; none if it does not have the version.
    fn soaks_until(&self, entry: &Entry, wave: usize) -> Option<Moment> {
        let Step::Updated { at } = entry.step else {
            return None;
        };
        let soak = self.waves.get(wave).map(|wave| wave.soak);
        Some(at.after(soak.unwrap_or_default()))
    }
}

/// Machines that a policy is for.
type Machines<'a> = [(&'a MachineName, &'a Entry)];

/// The number of the wave of each machine that a policy is for.
pub(crate) type Waves<'a> = BTreeMap<&'a MachineName, usize>;

fn wave_before(candidate: Candidate<'_>, policy: &Policy, waves: &Waves<'_>) -> Option<Reason> {
    let own = *waves.get(candidate.name)?;
    let earlier = waves.iter().filter(|(_, wave)| **wave < own);
    let entries = earlier
        .filter_map(|(name, wave)| Some((*name, *wave, candidate.record.machines.get(*name)?)));
    for (name, wave, entry) in entries.clone() {
        if !candidate.has_ended(name, entry) {
            return Some(Reason::Wave(name.clone()));
        }
        let Some(until) = policy.soaks_until(entry, wave) else {
            continue;
        };
        if hold(name, entry, candidate.facts).is_some() {
            continue;
        }
        // It has to be well when the next wave begins, not only once.
        let is_well = Candidate {
            name,
            entry,
            ..candidate
        }
        .is_not_well()
        .is_none();
        if !is_well {
            return Some(Reason::WaveUnwell(name.clone()));
        }
        if candidate.now < until {
            return Some(Reason::Soaks(until));
        }
    }
    if policy.approval == Approval::Waves {
        // A person's word stands for a proof.
        let is_approved = own < candidate.record.approved;
        return (!is_approved).then_some(Reason::Approval(own + 1));
    }
    let before = own.checked_sub(1)?;
    let members = entries.filter(|(_, wave, _)| *wave == before);
    let members: Vec<&Entry> = members.map(|(_, _, entry)| entry).collect();
    lacks_a_proof(&members, own)
}

/// Why a wave proves nothing, by its machines, of which none is under way. `number`: that of the wave, from 1.
pub(crate) fn lacks_a_proof(members: &[&Entry], number: usize) -> Option<Reason> {
    let has_version = |entry: &&Entry| matches!(entry.step, Step::Updated { .. });
    if members.iter().any(has_version) {
        return None;
    }
    let mut ended = members.iter().filter(|entry| !entry.step.is_before());
    match ended.clone().next() {
        None => Some(Reason::Unproven(number)),
        // A person has seen them, and goes on without a proof.
        Some(_) => ended
            .any(|entry| !entry.forgiven)
            .then_some(Reason::WaveFailed(number)),
    }
}

/// Whether machines of a pool have begun, none of them has the version, and no person has said that this does not matter. As with a wave, a pool of
/// which all machines failed is no proof for the next one. A pool of held machines is none either, and is passed over: it has shown nothing bad.
pub(crate) fn failed_as_a_whole(record: &Record, pool: &str) -> bool {
    let machines = record.machines.values();
    let own = machines.filter(|entry| entry.pool == pool);
    let mut ended = own.filter(|entry| !entry.step.is_before());
    let has_version = |entry: &Entry| matches!(entry.step, Step::Updated { .. });
    !ended.clone().any(has_version) && ended.any(|entry| !entry.forgiven)
}

/// The first machine without the image, if all must have it.
fn unprepared(
    candidate: Candidate<'_>,
    policy: &Policy,
    machines: &Machines<'_>,
) -> Option<Reason> {
    let is_needed = |(name, entry): &&(&MachineName, &Entry)| {
        let is_without = matches!(entry.step, Step::Waiting | Step::Preparing { .. });
        is_without && hold(name, entry, candidate.facts).is_none()
    };
    let first = policy
        .prepare_first
        .then(|| machines.iter().find(is_needed))??;
    Some(Reason::Unprepared(first.0.clone()))
}

/// The time until a window of a policy opens; none if one is open, or if there are none.
fn opens_in(policy: &Policy, now: Moment) -> Option<Seconds> {
    let now = UNIX_EPOCH + Duration::from_secs(now.0);
    let mut soonest = None;
    for window in &policy.windows {
        match window.at(now) {
            Openness::Open(_) => return None,
            Openness::Opens(time) => {
                soonest = Some(soonest.map_or(time, |other: Duration| other.min(time)))
            }
        }
    }
    soonest.map(|time| Seconds(time.as_secs()))
}

fn too_fast(policy: &Policy, machines: &Machines<'_>, now: Moment) -> Option<Reason> {
    let rate = policy.rate?;
    let mut began: Vec<Moment> = machines
        .iter()
        .filter_map(|(_, entry)| entry.began)
        .collect();
    began.sort_unstable();
    // The one that has to be old enough for another one to begin.
    let place = began.len().checked_sub(rate.machines.get() as usize)?;
    let until = began.get(place)?.after(rate.per);
    (now < until).then_some(Reason::Rate(until))
}

/// Machines out of service count, whether by the rollout's hand or by themselves; but who is held is not waited for.
fn full(policy: &Policy, machines: &Machines<'_>, facts: &Facts) -> Option<Reason> {
    let most = policy.most_at_once(machines.len());
    let is_well = |name: &MachineName| {
        facts
            .get(name)
            .is_some_and(|fact: &Fact| fact.condition == Condition::Ready)
    };
    let is_out = |(name, entry): &&(&MachineName, &Entry)| {
        !entry.step.is_under_way() && !is_well(name) && hold(name, entry, facts).is_none()
    };
    let by_itself = machines.iter().filter(is_out);
    let by_itself: Vec<&MachineName> = by_itself.map(|(name, _)| *name).collect();
    let under_way = machines
        .iter()
        .filter(|(_, entry)| entry.step.is_under_way())
        .count();
    (under_way + by_itself.len() >= most).then(|| Reason::Full {
        most,
        by_itself: by_itself.first().map(|name| (*name).clone()),
    })
}
