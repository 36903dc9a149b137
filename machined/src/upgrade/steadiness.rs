//! Whether a program that answers is steady: one that ends and starts again every few seconds answers in between.
//!
//! ```text
//!              answers                    answers, of the same run, for long enough
//!   unproven ─────────► proving since … ───────────────────────────────────────────► proved
//!       ▲                    │   │
//!       └────────────────────┘   └──► proving since now, if another run answers
//!          does not answer
//! ```
//!
//! Pure: looks go in, and the proof comes out.

use std::time::Duration;

/// The two numbers that tell one run of a program from the next one. Both change with each start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Its process, as far as it is known.
    pub pid: Option<u32>,
    /// The number of starts before.
    pub restarts: u64,
}

/// One look at a program.
#[derive(Debug, Clone, Copy)]
pub(super) struct Look {
    /// The time of the look, since the first one.
    pub(super) at: Duration,
    /// Whether it has answered well.
    pub(super) answers: bool,
    /// Its run; `None` if nobody knows.
    pub(super) run: Option<Run>,
}

/// The proof so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Steadiness {
    /// The last look had no answer, or there was none yet.
    #[default]
    Unproven,
    /// It has answered in each look since then.
    Since {
        at: Duration,
        /// The run that answers, once it is known.
        run: Option<Run>,
    },
}

impl Steadiness {
    /// Returns the proof after a look.
    pub(super) fn after(self, look: Look) -> Self {
        let Look { at, answers, run } = look;
        if !answers {
            return Steadiness::Unproven;
        }
        match self {
            Steadiness::Since { at, run: before } if is_same(before, run) => Steadiness::Since {
                at,
                run: run.or(before),
            },
            _ => Steadiness::Since { at, run },
        }
    }

    /// Returns for how long it has been steady.
    pub(super) fn held(self, now: Duration) -> Duration {
        match self {
            Steadiness::Unproven => Duration::ZERO,
            Steadiness::Since { at, .. } => now.saturating_sub(at),
        }
    }
}

/// A run that is not known may be any.
fn is_same(one: Option<Run>, other: Option<Run>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => one == other,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Option<Run> = Some(Run {
        pid: Some(40),
        restarts: 0,
    });
    /// Another process of the same number of starts: the container has started anew.
    const B: Option<Run> = Some(Run {
        pid: Some(41),
        restarts: 0,
    });
    /// The same number of the process, which the kernel may give again.
    const C: Option<Run> = Some(Run {
        pid: Some(40),
        restarts: 1,
    });

    /// Looks, one each second, and for how many seconds the program has been steady at the last one.
    type Case = (&'static [(bool, Option<Run>)], u64);

    #[rustfmt::skip]
    const CASES: [Case; 9] = [
        (&[],                                                              0),
        (&[(false, A), (false, A)],                                        0),
        (&[(true, A), (true, A), (true, A)],                               2),
        (&[(false, A), (true, A), (true, A)],                              1),
        (&[(true, A), (true, A), (false, A)],                              0),
        // It crashes between two looks, and answers in both.
        (&[(true, A), (true, A), (true, C), (true, C)],                    1),
        (&[(true, A), (true, A), (true, B)],                               0),
        // Nobody knows its run, or not in each look.
        (&[(true, None), (true, None), (true, None)],                      2),
        (&[(true, None), (true, A), (true, None), (true, C), (true, C)],   1),
    ];

    #[test]
    fn only_one_run_that_answers_in_each_look_is_steady() {
        for (looks, seconds) in CASES {
            let mut proof = Steadiness::default();
            let mut at = Duration::ZERO;
            for (second, &(answers, run)) in (0..).zip(looks) {
                at = Duration::from_secs(second);
                proof = proof.after(Look { at, answers, run });
            }
            assert_eq!(proof.held(at).as_secs(), seconds, "{looks:?}");
        }
    }
}
