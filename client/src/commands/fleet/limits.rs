//! The limits of a rollout: those of the options, those of the fleet's file, and the defaults where neither names one.
//!
//! Policies combine by their smallest numbers, and a policy always has a number of failures and a patience. So a policy that does not name
//! them gets numbers that limit nothing here; otherwise its defaults would undo the numbers that another policy names.

use std::collections::BTreeSet;
use std::num::NonZeroU32;

use instar_rollout::{Approval, OnFailure, Policy, Seconds, Select, Wave};
use serde::Deserialize;

use crate::cli::FleetLimits;

/// A number of failures that limits nothing.
const ANY_FAILURES: NonZeroU32 = NonZeroU32::MAX;
/// A patience that limits nothing.
const ANY_PATIENCE: Seconds = Seconds(u64::MAX);

/// The limits that the policies of a file name, among those that a policy always has.
#[derive(Deserialize)]
pub(super) struct OfFile {
    #[serde(default)]
    policies: Vec<Named>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Named {
    max_failures: Option<NonZeroU32>,
    patience: Option<Seconds>,
}

impl OfFile {
    /// The policies of the file, without the numbers that they do not name.
    pub(super) fn without_defaults(&self, mut policies: Vec<Policy>) -> Vec<Policy> {
        for (policy, named) in policies.iter_mut().zip(&self.policies) {
            policy.max_failures = named.max_failures.unwrap_or(ANY_FAILURES);
            policy.patience = named.patience.unwrap_or(ANY_PATIENCE);
        }
        policies
    }
}

/// The policies of a file without their defaults, the policy of the options, and the defaults for what none of them limits. `pools`: those of
/// the nodes.
pub(super) fn complete(
    of_file: Vec<Policy>,
    options: &FleetLimits,
    pools: &BTreeSet<&str>,
) -> Vec<Policy> {
    let mut policies = of_file;
    policies.push(of_options(options));
    if policies.iter().all(|it| it.max_failures == ANY_FAILURES) {
        set(&mut policies, |own| {
            own.max_failures = Policy::default().max_failures;
        });
    }
    let has_number = |it: &Policy| it.at_once.is_some() || it.share.is_some();
    supply(&mut policies, pools, has_number, |policy| {
        policy.at_once = Some(NonZeroU32::MIN);
    });
    let has_patience = |it: &Policy| it.patience != ANY_PATIENCE;
    supply(&mut policies, pools, has_patience, |policy| {
        policy.patience = Policy::default().patience;
    });
    policies
}

/// Sets a default for the pools that no policy limits: in the policy of the options if they are all, else in one more policy.
fn supply(
    policies: &mut Vec<Policy>,
    pools: &BTreeSet<&str>,
    limits: impl Fn(&Policy) -> bool,
    default: impl Fn(&mut Policy),
) {
    let is_open = |pool: &&&str| {
        let mut all = policies.iter();
        !all.any(|policy| is_for(policy, pool) && limits(policy))
    };
    let open: Vec<String> = pools
        .iter()
        .filter(is_open)
        .map(|pool| (*pool).to_owned())
        .collect();
    if open.len() == pools.len() {
        set(policies, default);
    } else if !open.is_empty() {
        let mut more = Policy {
            pools: open,
            max_failures: ANY_FAILURES,
            patience: ANY_PATIENCE,
            ..Policy::default()
        };
        default(&mut more);
        policies.push(more);
    }
}

fn is_for(policy: &Policy, pool: &str) -> bool {
    policy.pools.is_empty() || policy.pools.iter().any(|it| it == pool)
}

/// Changes the policy of the options: the last one that is for all pools.
fn set(policies: &mut [Policy], change: impl Fn(&mut Policy)) {
    let own = policies.iter_mut().rfind(|policy| policy.pools.is_empty());
    own.into_iter().for_each(change);
}

/// The policy of the options.
fn of_options(options: &FleetLimits) -> Policy {
    let canary = options.canary.map(|count| Wave {
        select: Select::Count(count),
        soak: options.soak,
    });
    Policy {
        at_once: options.at_once,
        share: options.share,
        rate: options.rate,
        waves: canary.into_iter().collect(),
        windows: options.window.clone(),
        prepare_first: options.prepare_first,
        approval: match options.approve_waves {
            true => Approval::Waves,
            false => Approval::None,
        },
        max_failures: options.max_failures.unwrap_or(ANY_FAILURES),
        on_failure: match options.roll_back {
            true => OnFailure::Rollback,
            false => OnFailure::Halt,
        },
        patience: options.patience.unwrap_or(ANY_PATIENCE),
        ..Policy::default()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command, Fleet};

    /// The policies of these options and of the policies of a file, for nodes of the pools `lab` and `kitchen`.
    fn policies(options: &str, file: &str) -> Vec<Policy> {
        let roll = ["instarctl", "fleet", "roll", "--image", "i"].into_iter();
        let parsed = Cli::try_parse_from(roll.chain(options.split_whitespace())).unwrap();
        let Command::Fleet(Fleet::Roll(roll)) = parsed.command else {
            unreachable!("it is a roll");
        };
        let named: OfFile = serde_saphyr::from_str(&format!("policies: {file}")).unwrap();
        let read: Vec<Policy> = serde_saphyr::from_str(file).unwrap();
        let pools = BTreeSet::from(["lab", "kitchen"]);
        complete(named.without_defaults(read), &roll.over.limits, &pools)
    }

    /// The limits of a pool: the smallest numbers of the policies that are for it.
    fn of(pool: &str, policies: &[Policy]) -> (Option<u32>, Option<u8>, u64) {
        let own = policies.iter().filter(|policy| is_for(policy, pool));
        (
            own.clone().filter_map(|it| it.at_once).min().map(u32::from),
            own.clone().filter_map(|it| it.share.map(u8::from)).min(),
            own.map(|it| it.patience.0).min().unwrap(),
        )
    }

    #[test]
    fn defaults_hold_only_where_nothing_else_is_named() {
        for (options, file, failures, lab, kitchen) in [
            ("", "[]", 1, (Some(1), None, 1800), (Some(1), None, 1800)),
            (
                "--share 25",
                "[]",
                1,
                (None, Some(25), 1800),
                (None, Some(25), 1800),
            ),
            (
                "--at-once 3 --share 25",
                "[]",
                1,
                (Some(3), Some(25), 1800),
                (Some(3), Some(25), 1800),
            ),
            (
                "--max-failures 4 --patience 2h",
                "[]",
                4,
                (Some(1), None, 7200),
                (Some(1), None, 7200),
            ),
            (
                "",
                "[{atOnce: 5, maxFailures: 3, patience: 1h}, {pools: [kitchen], windows: [\"02:00-05:00\"]}]",
                3,
                (Some(5), None, 3600),
                (Some(5), None, 3600),
            ),
            // The smallest number counts, as ever.
            (
                "--at-once 2 --patience 40m",
                "[{atOnce: 5, patience: 1h}]",
                1,
                (Some(2), None, 2400),
                (Some(2), None, 2400),
            ),
            // A pool that no policy limits keeps the defaults.
            (
                "",
                "[{pools: [kitchen], share: 50, patience: 10m}]",
                1,
                (Some(1), None, 1800),
                (None, Some(50), 600),
            ),
        ] {
            let policies = policies(options, file);
            let fewest = policies.iter().map(|it| it.max_failures.get()).min();
            let found = (of("lab", &policies), of("kitchen", &policies));
            assert_eq!(
                (fewest, found),
                (Some(failures), (lab, kitchen)),
                "{options:?} {file}"
            );
        }
    }
}
