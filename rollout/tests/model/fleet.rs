//! The bounds of an exploration: its machines, its policy, and how often something may happen.

use std::num::NonZeroU32;

use instar_rollout::{
    Approval, Moment, OnFailure, Policy, PoolOrder, Rate, Release, Seconds, Select, Wave,
};

/// A tick of the clock: the patience of the policies. A hundred days, so that all turns within it make nobody late.
pub(crate) const TICK: u64 = 100 * 2 * HALF_DAY;
/// The time of a turn: of a window, which is open in the first half of each day, of a soak, and of a rate.
pub(crate) const HALF_DAY: u64 = 12 * 3600;
const WINDOW: &str = "00:00-12:00 +00:00";
/// The pool that goes first where there is an order, and the one after it.
const FIRST_POOL: &str = "lab";
const SECOND_POOL: &str = "kitchen";

/// The bounds of one exploration.
#[derive(Clone)]
pub(crate) struct Fleet {
    pub(crate) machines: u8,
    pub(crate) policy: Policy,
    /// Whether drivers read and save in two steps, and may overtake each other.
    pub(crate) lease: bool,
    pub(crate) budgets: Budgets,
}

/// How many times something may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Budgets {
    pub(crate) deaths: u8,
    pub(crate) outages: u8,
    pub(crate) failures: u8,
    pub(crate) ticks: u8,
    /// How many times half a day passes while something else can happen: a window opens or closes, a soak or the time of a rate is over.
    pub(crate) turns: u8,
    /// Commands of people: pause, abort, roll back, hold, cordon.
    pub(crate) commands: u8,
    /// How many times a person resumes a halted rollout.
    pub(crate) resumes: u8,
    /// How many times a person has machines that failed try again.
    pub(crate) retries: u8,
    /// How many machines are taken out of the fleet.
    pub(crate) removals: u8,
}

pub(crate) const BUDGETS: Budgets = Budgets {
    deaths: 1,
    outages: 1,
    failures: 1,
    ticks: 1,
    turns: 0,
    commands: 1,
    resumes: 1,
    retries: 0,
    removals: 0,
};

impl Fleet {
    /// The number of machines that may be out of service at once, computed apart from the engine.
    pub(crate) fn limit(&self) -> usize {
        let number = self.policy.at_once.map(|most| most.get() as usize);
        let share = self.policy.share.map(|share| {
            let of_hundred = usize::from(u8::from(share)) * usize::from(self.machines);
            std::cmp::max(1, of_hundred / 100)
        });
        number.into_iter().chain(share).min().unwrap()
    }

    /// The pool of a machine. Where pools have an order, the first machine by name is alone in the last one.
    pub(crate) fn pool(&self, number: u8) -> String {
        let pool = match (self.policy.order.is_empty(), number) {
            (true, _) => "",
            (false, 0) => SECOND_POOL,
            (false, _) => FIRST_POOL,
        };
        pool.to_owned()
    }
}

pub(crate) fn release(version: &str) -> Release {
    Release {
        version: version.to_owned(),
        digest: None,
        image: None,
    }
}

/// A policy with a number at once.
pub(crate) fn policy(at_once: u32, on_failure: OnFailure) -> Policy {
    Policy {
        at_once: NonZeroU32::new(at_once),
        on_failure,
        patience: Seconds(TICK),
        ..Policy::default()
    }
}

/// A policy with a share in percent at once.
pub(crate) fn share(percent: u8, on_failure: OnFailure) -> Policy {
    Policy {
        at_once: None,
        share: Some(percent.try_into().unwrap()),
        ..policy(1, on_failure)
    }
}

/// The policy after a canary.
pub(crate) fn after_a_canary(policy: Policy) -> Policy {
    let canary = Wave {
        select: Select::Count(NonZeroU32::MIN),
        soak: Seconds(0),
    };
    Policy {
        waves: vec![canary],
        ..policy
    }
}

/// The policy after a canary that has to run the version for half a day.
pub(crate) fn after_a_soak(policy: Policy) -> Policy {
    let mut policy = after_a_canary(policy);
    for wave in &mut policy.waves {
        wave.soak = Seconds(HALF_DAY);
    }
    policy
}

/// The policy where one machine may begin in half a day.
pub(crate) fn rated(policy: Policy) -> Policy {
    let rate = Rate {
        machines: NonZeroU32::MIN,
        per: Seconds(HALF_DAY),
    };
    Policy {
        rate: Some(rate),
        ..policy
    }
}

/// The policy where one pool begins when the other one is done.
pub(crate) fn in_order(policy: Policy) -> Policy {
    let order = PoolOrder {
        pool: SECOND_POOL.to_owned(),
        after: vec![FIRST_POOL.to_owned()],
    };
    Policy {
        order: vec![order],
        ..policy
    }
}

/// The policy where a person approves each wave.
pub(crate) fn approved(policy: Policy) -> Policy {
    Policy {
        approval: Approval::Waves,
        ..policy
    }
}

/// The policy in the first half of each day.
pub(crate) fn in_hours(policy: Policy) -> Policy {
    Policy {
        windows: vec![WINDOW.parse().unwrap()],
        ..policy
    }
}

/// Whether something begins by time alone: a window, a soak, or the time of a rate.
pub(crate) fn has_half_days(policy: &Policy) -> bool {
    let soaks = policy.waves.iter().any(|wave| wave.soak > Seconds(0));
    soaks || policy.rate.is_some() || !policy.windows.is_empty()
}

/// Whether the window is open, computed apart from the engine.
pub(crate) fn is_open(policy: &Policy, Moment(now): Moment) -> bool {
    policy.windows.is_empty() || (now / HALF_DAY).is_multiple_of(2)
}
