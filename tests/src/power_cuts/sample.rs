//! Chooses the states that are really booted.

use instar_power_cuts::{DiskState, Kind, Verdict};

use super::scenario::{JudgedScenario, Scenario};

/// A state to boot.
#[derive(Debug, Clone, Copy)]
pub struct Sample<'a> {
    /// The state's stage.
    pub scenario: &'a Scenario,
    /// The state.
    pub state: &'a DiskState,
    /// The verdict on the state.
    pub verdict: &'a Verdict,
}

impl JudgedScenario {
    /// Returns some states of every kind that differ in the booted version: the same ones for the same recording.
    pub fn sample(&self, count: usize) -> Vec<Sample<'_>> {
        choose(self, count)
    }
}

/// Returns up to `count` states that differ from their predecessor in the booted version, of every kind, spread evenly
/// over the stage.
fn choose(judged: &JudgedScenario, count: usize) -> Vec<Sample<'_>> {
    let of_kind = |kind: Kind| {
        let numbers = judged.judged.different.iter();
        let verdicts = numbers.map(|number| &judged.judged.verdicts[*number]);
        verdicts
            .filter(|(state, verdict)| {
                state.kind() == kind && !matches!(verdict, Verdict::Fails(_))
            })
            .collect::<Vec<_>>()
    };
    let mut chosen = Vec::new();
    // The first kind makes up for the shortage of the others.
    for (before, kind) in Kind::ALL.into_iter().enumerate().rev() {
        let there = of_kind(kind);
        let share = (count - chosen.len()) / (before + 1);
        chosen.extend(spread(there.len(), share).map(|number| there[number]));
    }
    chosen
        .into_iter()
        .map(|(state, verdict)| Sample {
            scenario: &judged.scenario,
            state,
            verdict,
        })
        .collect()
}

/// Returns `count` numbers below `there`, spread evenly; all of them if there are no more.
fn spread(there: usize, count: usize) -> impl Iterator<Item = usize> {
    let count = count.min(there);
    (0..count).map(move |number| (number * 2 + 1) * there / (count * 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_spread_evenly() {
        let spread = |there, count| spread(there, count).collect::<Vec<_>>();
        assert_eq!(spread(100, 4), [12, 37, 62, 87]);
        assert_eq!(spread(3, 5), [0, 1, 2]);
        assert_eq!(spread(3, 1), [1]);
        assert!(spread(0, 2).is_empty());
    }
}
