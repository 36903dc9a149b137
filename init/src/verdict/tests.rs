use super::{Event, Ladder, Standing, Verdict};
use Event::{Died, GaveUp, Healthy, Late, NextReady, Unclean, Unstartable};
use Standing::{Fresh, New, Settled, Trial};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

const STANDINGS: [Standing; 4] = [New, Trial, Fresh, Settled];
const EVENTS: [Event; 7] = [Healthy, NextReady, Died, Late, GaveUp, Unstartable, Unclean];

fn at(seconds: u64) -> Instant {
    static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
    *BEGIN + Duration::from_secs(seconds)
}

fn in_standing(standing: Standing) -> Ladder {
    Ladder {
        standing,
        ..Ladder::default()
    }
}

fn without_restarts(standing: Standing) -> Ladder {
    let mut ladder = in_standing(standing);
    for _ in 0..3 {
        assert_eq!(ladder.decide(Died, at(0)), Verdict::Restart);
    }
    ladder
}

fn without_fresh_starts(standing: Standing) -> Ladder {
    let mut ladder = without_restarts(standing);
    ladder.fresh_starts.push(at(0));
    ladder
}

/// The state machine as a table: (standing, event) → with all budgets, without restarts, without any budget.
#[test]
fn every_transition() {
    use Verdict::{Commit, GoBack, Reboot, Refuse, Restart, StartFresh, Swap};
    #[rustfmt::skip]
    let table = [
        (New,     Healthy,     [(Settled, Commit),    (Settled, Commit),    (Settled, Commit)]),
        (New,     NextReady,   [(New, Refuse),      (New, Refuse),      (New, Refuse)]),
        (New,     Died,        [(New, Restart),     (Fresh, StartFresh),  (New, Reboot)]),
        (New,     Late,        [(Fresh, StartFresh),  (Fresh, StartFresh),  (New, Reboot)]),
        (New,     GaveUp,      [(Fresh, StartFresh),  (Fresh, StartFresh),  (New, Reboot)]),
        (New,     Unstartable, [(New, Reboot),      (New, Reboot),      (New, Reboot)]),
        (New,     Unclean,     [(New, Reboot),      (New, Reboot),      (New, Reboot)]),
        (Trial,   Healthy,     [(Settled, Commit),    (Settled, Commit),    (Settled, Commit)]),
        (Trial,   NextReady,   [(Trial, Refuse),      (Trial, Refuse),      (Trial, Refuse)]),
        (Trial,   Died,        [(Trial, Restart),     (New, GoBack),       (New, GoBack)]),
        (Trial,   Late,        [(New, GoBack),       (New, GoBack),       (New, GoBack)]),
        (Trial,   GaveUp,      [(New, GoBack),       (New, GoBack),       (New, GoBack)]),
        (Trial,   Unstartable, [(New, GoBack),       (New, GoBack),       (New, GoBack)]),
        (Trial,   Unclean,     [(Trial, Reboot),      (Trial, Reboot),      (Trial, Reboot)]),
        (Fresh,   Healthy,     [(Settled, Commit),    (Settled, Commit),    (Settled, Commit)]),
        (Fresh,   NextReady,   [(Fresh, Refuse),      (Fresh, Refuse),      (Fresh, Refuse)]),
        (Fresh,   Died,        [(Fresh, Restart),     (Fresh, Reboot),      (Fresh, Reboot)]),
        (Fresh,   Late,        [(Fresh, Reboot),      (Fresh, Reboot),      (Fresh, Reboot)]),
        (Fresh,   GaveUp,      [(Fresh, Reboot),      (Fresh, Reboot),      (Fresh, Reboot)]),
        (Fresh,   Unstartable, [(Fresh, Reboot),      (Fresh, Reboot),      (Fresh, Reboot)]),
        (Fresh,   Unclean,     [(Fresh, Reboot),      (Fresh, Reboot),      (Fresh, Reboot)]),
        (Settled, Healthy,     [(Settled, Commit),    (Settled, Commit),    (Settled, Commit)]),
        (Settled, NextReady,   [(Trial, Swap),        (Trial, Swap),        (Trial, Swap)]),
        (Settled, Died,        [(Settled, Restart),   (Fresh, StartFresh),  (Settled, Reboot)]),
        (Settled, Late,        [(Fresh, StartFresh),  (Fresh, StartFresh),  (Settled, Reboot)]),
        (Settled, GaveUp,      [(Fresh, StartFresh),  (Fresh, StartFresh),  (Settled, Reboot)]),
        (Settled, Unstartable, [(Fresh, StartFresh),  (Fresh, StartFresh),  (Settled, Reboot)]),
        (Settled, Unclean,     [(Settled, Reboot),    (Settled, Reboot),    (Settled, Reboot)]),
    ];

    let mut seen = Vec::new();
    for (standing, event, expected) in table {
        let ladders = [
            in_standing(standing),
            without_restarts(standing),
            without_fresh_starts(standing),
        ];
        for (mut ladder, (next, verdict)) in ladders.into_iter().zip(expected) {
            assert_eq!(
                ladder.decide(event, at(0)),
                verdict,
                "{standing:?} {event:?}"
            );
            assert_eq!(ladder.standing, next, "{standing:?} {event:?}");
        }
        seen.push((standing, event));
    }
    let all = STANDINGS
        .iter()
        .flat_map(|s| EVENTS.iter().map(|e| (*s, *e)));
    assert!(all.eq(seen), "the table has every pair once, in order");
}

#[test]
fn a_crash_that_goes_on_for_ever_walks_down_the_whole_ladder() {
    use Verdict::{Reboot, Restart, StartFresh};
    let mut ladder = Ladder::default();
    let verdicts: Vec<Verdict> = (0..8).map(|i| ladder.decide(Died, at(i))).collect();
    assert_eq!(
        verdicts,
        [
            Restart, Restart, Restart, StartFresh, Restart, Restart, Restart, Reboot
        ]
    );
}

#[test]
fn a_trial_that_crashes_goes_back_and_the_old_one_settles() {
    let mut ladder = in_standing(Settled);
    assert_eq!(ladder.decide(NextReady, at(0)), Verdict::Swap);
    for _ in 0..3 {
        assert_eq!(ladder.decide(Died, at(1)), Verdict::Restart);
    }
    assert_eq!(ladder.decide(Died, at(2)), Verdict::GoBack);
    // The old generation has restarts of its own.
    assert_eq!(ladder.decide(Died, at(3)), Verdict::Restart);
    assert_eq!(ladder.decide(Healthy, at(4)), Verdict::Commit);
    assert_eq!(ladder.decide(NextReady, at(5)), Verdict::Swap);
}

#[test]
fn rare_crashes_are_forgotten() {
    let mut ladder = in_standing(Settled);
    for i in 0..100 {
        assert_eq!(
            ladder.decide(Died, at(i * 20)),
            Verdict::Restart,
            "crash {i}"
        );
    }
    // One more in the same minute is too many.
    assert_eq!(ladder.decide(Died, at(99 * 20 + 1)), Verdict::StartFresh);
}

#[test]
fn a_machine_that_needs_fresh_generations_again_and_again_reboots() {
    let mut ladder = in_standing(Settled);
    assert_eq!(ladder.decide(GaveUp, at(0)), Verdict::StartFresh);
    assert_eq!(ladder.decide(Healthy, at(1)), Verdict::Commit);
    assert_eq!(ladder.clone().decide(GaveUp, at(599)), Verdict::Reboot);
    assert_eq!(ladder.decide(GaveUp, at(600)), Verdict::StartFresh);
}

/// Failures alone, in any order, lead to a reboot soon.
#[test]
fn no_sequence_of_failures_is_endless() {
    fn longest(ladder: &Ladder, depth: u32) -> u32 {
        assert!(depth < 20, "no end in sight: {ladder:?}");
        let failures = [Died, Late, GaveUp, Unstartable, Unclean];
        let rest = failures.map(|event| {
            let mut ladder = ladder.clone();
            match ladder.decide(event, at(0)) {
                Verdict::Reboot => 0,
                Verdict::Commit | Verdict::Swap | Verdict::Refuse => {
                    unreachable!("{event:?} is no success")
                }
                Verdict::Restart | Verdict::StartFresh | Verdict::GoBack => {
                    longest(&ladder, depth + 1)
                }
            }
        });
        1 + rest.into_iter().max().unwrap_or(0)
    }
    for standing in STANDINGS {
        let steps = longest(&in_standing(standing), 0);
        assert!(steps <= 12, "{standing:?} takes {steps}");
    }
}
