//! How long a rollout took, and the upgrade of each machine in it, by its record.

use std::fmt;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

/// The largest part of a rollout, in percent of its upgrades one after the other.
const LONGEST: u64 = 120;

/// A rollout of one machine at a time, in seconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RolloutTimes {
    /// When a person asked for it.
    asked: u64,
    /// When each machine was asked, and had proved the version, in this order.
    upgrades: Vec<Upgrade>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Upgrade {
    name: String,
    began: u64,
    proved: u64,
}

impl RolloutTimes {
    /// Reads the times from the record of a rollout at its end: those of machines that began after a person had asked, and proved the version.
    pub fn of_record(record: &Value, asked: u64) -> Result<Self> {
        let machines = record["machines"].as_object();
        let mut upgrades = Vec::new();
        for (name, entry) in machines.context("a record has no machines")? {
            let is_updated = entry["step"]["is"] == "updated";
            let times = (entry["began"].as_u64(), entry["step"]["at"].as_u64());
            let (true, (Some(began), Some(proved))) = (is_updated, times) else {
                continue;
            };
            if began >= asked {
                let name = name.clone();
                upgrades.push(Upgrade {
                    name,
                    began,
                    proved,
                });
            }
        }
        upgrades.sort_by_key(|upgrade| upgrade.began);
        Ok(Self { asked, upgrades })
    }

    /// The time from when it was asked for until the last machine had proved the version.
    fn whole(&self) -> u64 {
        let proved = self.upgrades.iter().map(|upgrade| upgrade.proved);
        proved.max().unwrap_or(self.asked) - self.asked
    }

    /// The sum of the upgrades, each from its request until the machine had proved the version.
    fn upgrades(&self) -> u64 {
        let each = self.upgrades.iter();
        each.map(|upgrade| upgrade.proved - upgrade.began).sum()
    }

    /// The number of the machines.
    pub fn machines(&self) -> usize {
        self.upgrades.len()
    }

    /// Fails unless the machines were upgraded one after the other, and all of it took at most a fifth longer than their upgrades.
    pub fn take_little_longer_than_upgrades(&self) -> Result<()> {
        for pair in self.upgrades.windows(2) {
            ensure!(pair[0].proved <= pair[1].began, "two at once: {self}");
        }
        let (whole, upgrades) = (self.whole(), self.upgrades());
        ensure!(whole * 100 <= upgrades * LONGEST, "{self}");
        Ok(())
    }
}

impl fmt::Display for RolloutTimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, upgrades) = (self.whole(), self.upgrades());
        write!(f, "the rollout took {whole} s, its upgrades {upgrades} s:")?;
        let mut last = self.asked;
        for Upgrade {
            name,
            began,
            proved,
        } in &self.upgrades
        {
            let (gap, took) = (began.saturating_sub(last), proved - began);
            write!(f, " {name} {took} s ({gap} s after the one before)")?;
            last = *proved;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    /// Judges a rollout of two machines by when each began and had the version; a third one was left as it was.
    fn times(times: [(u64, u64); 2], asked: u64) -> RolloutTimes {
        let [a, b] =
            times.map(|(began, at)| json!({"began": began, "step": {"is": "updated", "at": at}}));
        let left = json!({"began": null, "step": {"is": "left", "why": "held"}});
        let record = json!({"machines": {"a": a, "b": b, "c": left}});
        RolloutTimes::of_record(&record, asked).unwrap()
    }

    fn judged(each: [(u64, u64); 2]) -> Result<(), String> {
        let judged = times(each, 100).take_little_longer_than_upgrades();
        judged.map_err(|error| error.to_string())
    }

    #[test]
    fn a_rollout_may_take_a_fifth_longer_than_its_upgrades() {
        let whole = judged([(101, 111), (112, 122)]);
        assert_eq!(whole, Ok(()));
        let slow = judged([(103, 113), (115, 125)]).unwrap_err();
        assert!(slow.contains("took 25 s, its upgrades 20 s"), "{slow}");
        let at_once = judged([(101, 111), (110, 120)]).unwrap_err();
        assert!(at_once.starts_with("two at once"), "{at_once}");
    }

    #[test]
    fn what_began_before_it_was_asked_for_is_of_another_rollout() {
        let known = |asked| times([(101, 111), (112, 122)], asked).machines();
        assert_eq!([known(101), known(102), known(113)], [2, 1, 0]);
        assert!(RolloutTimes::of_record(&json!({}), 0).is_err());
    }
}
