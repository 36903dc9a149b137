//! Policies: the limits that people set on a rollout.
//!
//! A policy is for some pools, or for all machines. Several policies combine as the intersection of all limits. So a policy can only make a
//! rollout more careful, and the order of policies does not matter.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use crate::entry::Entry;
use crate::hours::Hours;
use crate::machine::MachineName;
use crate::seconds::Seconds;

/// Limits on a rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Policy {
    /// The pools that it is for; all machines if there are none.
    pub pools: Vec<String>,
    /// The number of machines that may be out of service at once, those counted that are so by themselves.
    pub at_once: Option<NonZeroU32>,
    /// The same as a share of the machines that the policy is for. Rounded down, but never less than one machine.
    pub share: Option<Percent>,
    /// The number of machines that may begin in a time.
    pub rate: Option<Rate>,
    /// Machines that go before the others. Who is left is the last wave.
    pub waves: Vec<Wave>,
    /// Hours in which a machine may begin; at any time if there are none.
    pub windows: Vec<Hours>,
    /// Pools that begin only when others are done.
    pub order: Vec<PoolOrder>,
    /// Whether every machine must have the image before the first one begins.
    pub prepare_first: bool,
    /// The steps that a person has to approve.
    pub approval: Approval,
    /// The number of failures at which the rollout stops.
    pub max_failures: NonZeroU32,
    /// The reaction to that.
    pub on_failure: OnFailure,
    /// The time that one machine has for its upgrade, and the rollout for machines that are not ready.
    pub patience: Seconds,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            pools: Vec::new(),
            at_once: None,
            share: None,
            rate: None,
            waves: Vec::new(),
            windows: Vec::new(),
            order: Vec::new(),
            prepare_first: false,
            approval: Approval::None,
            max_failures: NonZeroU32::MIN,
            on_failure: OnFailure::Halt,
            patience: Seconds(30 * 60),
        }
    }
}

/// A share in percent, 1 to 100.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct Percent(u8);

impl TryFrom<u8> for Percent {
    type Error = &'static str;

    fn try_from(number: u8) -> Result<Self, Self::Error> {
        match number {
            1..=100 => Ok(Self(number)),
            _ => Err("a share is 1 to 100 percent"),
        }
    }
}

impl From<Percent> for u8 {
    fn from(percent: Percent) -> Self {
        percent.0
    }
}

impl Percent {
    /// This share of a number of machines, at least one.
    pub(crate) fn of(self, machines: usize) -> usize {
        (machines * usize::from(self.0) / 100).max(1)
    }
}

/// A number of machines in a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// The number of machines.
    pub machines: NonZeroU32,
    /// The time.
    pub per: Seconds,
}

/// Machines that go before others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wave {
    /// The machines.
    pub select: Select,
    /// How long all of them must have run the version before the next wave begins.
    #[serde(default)]
    pub soak: Seconds,
}

/// A choice of machines among those of no earlier wave.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Select {
    /// The first ones by name.
    Count(NonZeroU32),
    /// A share of all machines that the policy is for, the first ones by name.
    Share(Percent),
    /// Those with this label, as in `canary=yes`.
    Label(String),
}

/// A pool that begins only when others are done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolOrder {
    /// The pool.
    pub pool: String,
    /// The pools before it.
    pub after: Vec<String>,
}

/// The steps that a person has to approve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Approval {
    /// Nothing.
    #[default]
    None,
    /// Each wave before it begins, the first one too.
    Waves,
}

/// The reaction of a rollout to too many failures. Nothing new begins in either case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnFailure {
    /// It stops; machines that run the version keep it.
    #[default]
    Halt,
    /// Machines that run the version go back to the one before.
    Rollback,
}

impl Policy {
    /// Whether it is for machines of this pool.
    pub(crate) fn is_for(&self, entry: &Entry) -> bool {
        self.pools.is_empty() || self.pools.contains(&entry.pool)
    }

    /// The number of machines of all that may be out of service at once.
    pub(crate) fn most_at_once(&self, machines: usize) -> usize {
        let number = self.at_once.map(|number| number.get() as usize);
        let share = self.share.map(|share| share.of(machines));
        number.into_iter().chain(share).min().unwrap_or(usize::MAX)
    }

    /// The waves of a rollout's machines.
    pub(crate) fn waves_in<'a>(
        &self,
        machines: &'a BTreeMap<MachineName, Entry>,
    ) -> BTreeMap<&'a MachineName, usize> {
        let machines: Vec<_> = machines
            .iter()
            .filter(|(_, entry)| self.is_for(entry))
            .collect();
        self.waves_of(&machines).into_iter().collect()
    }

    /// The waves' machines: the number of the wave of each machine that the policy is for.
    pub(crate) fn waves_of<'a>(
        &self,
        machines: &[(&'a MachineName, &Entry)],
    ) -> Vec<(&'a MachineName, usize)> {
        let mut left: Vec<_> = machines.to_vec();
        let mut waves = Vec::new();
        for (number, wave) in self.waves.iter().enumerate() {
            let mut room = match &wave.select {
                Select::Count(count) => count.get() as usize,
                Select::Share(share) => share.of(machines.len()),
                Select::Label(_) => usize::MAX,
            };
            left.retain(|(name, entry)| {
                let is_meant = match &wave.select {
                    Select::Label(label) => entry.labels.contains(label),
                    Select::Count(_) | Select::Share(_) => true,
                };
                let joins = is_meant && room > 0;
                if joins {
                    room -= 1;
                    waves.push((*name, number));
                }
                !joins
            });
        }
        let last = self.waves.len();
        waves.extend(left.into_iter().map(|(name, _)| (name, last)));
        waves
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_share_is_rounded_down_but_never_to_nothing() {
        let share = |percent| Percent::try_from(percent).unwrap();
        for (percent, of, most) in [(50, 5, 2), (10, 5, 1), (100, 5, 5), (34, 3, 1), (67, 3, 2)] {
            assert_eq!(share(percent).of(of), most, "{percent} % of {of}");
        }
        assert!(Percent::try_from(0).is_err() && Percent::try_from(101).is_err());
        let both = Policy {
            at_once: NonZeroU32::new(2),
            share: Some(share(20)),
            ..Policy::default()
        };
        assert_eq!((both.most_at_once(5), both.most_at_once(20)), (1, 2));
    }

    #[test]
    fn a_policy_is_read_from_its_document() {
        let text = r#"{"pools": ["kitchen"], "atOnce": 2, "share": 25, "rate": {"machines": 2, "per": "1h"},
            "waves": [{"select": {"label": "canary=yes"}, "soak": "10m"}, {"select": {"count": 3}}],
            "windows": ["Sat,Sun 02:00-05:00 +01:00", "02:00-03:00 Europe/Berlin"], "order": [{"pool": "kitchen", "after": ["lab"]}],
            "prepareFirst": true, "approval": "waves", "maxFailures": 2, "onFailure": "rollback", "patience": "20m"}"#;
        let policy: Policy = serde_json::from_str(text).unwrap();
        assert_eq!(policy.waves[0].soak, Seconds(600));
        assert_eq!(policy.waves[1].soak, Seconds(0));
        assert_eq!(policy.on_failure, OnFailure::Rollback);
        let again = serde_json::to_string(&policy).unwrap();
        assert_eq!(serde_json::from_str::<Policy>(&again).unwrap(), policy);
        for bad in [r#"{"atOnce": 0}"#, r#"{"share": 0}"#, r#"{"hours": []}"#] {
            assert!(serde_json::from_str::<Policy>(bad).is_err(), "{bad}");
        }
    }
}
