use super::{Event, Ladder, Standing, Verdict};
use Event::{Died, GaveUp, Healthy, Late, NextReady, Unclean, Unstartable};
use Standing::{Back, First, Fresh, Settled, Trial};
use std::time::Duration;

const STANDINGS: [Standing; 5] = [First, Trial, Back, Fresh, Settled];
const EVENTS: [Event; 7] = [Healthy, NextReady, Died, Late, GaveUp, Unstartable, Unclean];

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn in_standing(standing: Standing) -> Ladder {
    Ladder {
        standing,
        ..Ladder::new()
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
    assert!(ladder.fresh_starts.take(at(0)));
    ladder
}

/// The whole machine as a table: (standing, event) → with all budgets, without restarts, without any budget.
#[test]
fn every_transition() {
    use Verdict::{Commit, GoBack, Reboot, Refuse, Restart, StartFresh, Swap};
    #[rustfmt::skip]
    let table = [
        (First,   Healthy,     [(Settled, Commit),    (Settled, Commit),    (Settled, Commit)]),
        (First,   NextReady,   [(First, Refuse),      (First, Refuse),      (First, Refuse)]),
        (First,   Died,        [(First, Restart),     (Fresh, StartFresh),  (First, Reboot)]),
        (First,   Late,        [(Fresh, StartFresh),  (Fresh, StartFresh),  (First, Reboot)]),
        (First,   GaveUp,      [(Fresh, StartFresh),  (Fresh, StartFresh),  (First, Reboot)]),
        (First,   Unstartable, [(First, Reboot),      (First, Reboot),      (First, Reboot)]),
        (First,   Unclean,     [(First, Reboot),      (First, Reboot),      (First, Reboot)]),
        (Trial,   Healthy,     [(Settled, Commit),    (Settled, Commit),    (Settled, Commit)]),
        (Trial,   NextReady,   [(Trial, Refuse),      (Trial, Refuse),      (Trial, Refuse)]),
        (Trial,   Died,        [(Trial, Restart),     (Back, GoBack),       (Back, GoBack)]),
        (Trial,   Late,        [(Back, GoBack),       (Back, GoBack),       (Back, GoBack)]),
        (Trial,   GaveUp,      [(Back, GoBack),       (Back, GoBack),       (Back, GoBack)]),
        (Trial,   Unstartable, [(Back, GoBack),       (Back, GoBack),       (Back, GoBack)]),
        (Trial,   Unclean,     [(Trial, Reboot),      (Trial, Reboot),      (Trial, Reboot)]),
        (Back,    Healthy,     [(Settled, Commit),    (Settled, Commit),    (Settled, Commit)]),
        (Back,    NextReady,   [(Back, Refuse),       (Back, Refuse),       (Back, Refuse)]),
        (Back,    Died,        [(Back, Restart),      (Fresh, StartFresh),  (Back, Reboot)]),
        (Back,    Late,        [(Fresh, StartFresh),  (Fresh, StartFresh),  (Back, Reboot)]),
        (Back,    GaveUp,      [(Fresh, StartFresh),  (Fresh, StartFresh),  (Back, Reboot)]),
        (Back,    Unstartable, [(Back, Reboot),       (Back, Reboot),       (Back, Reboot)]),
        (Back,    Unclean,     [(Back, Reboot),       (Back, Reboot),       (Back, Reboot)]),
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
    let mut ladder = Ladder::new();
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

/// Whatever happens, as long as it is only failures, the machine reboots soon.
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
