//! Traces of real runs of `instarctl fleet roll`, replayed in the engine. The client's tests of fleets write them
//! (`INSTAR_BLESS=1 cargo test -p instarctl --test client -- fleet::trace`).

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use instar_rollout::{Action, Phase, TracedRound, replay};

fn read(text: &str) -> Vec<TracedRound> {
    let rounds = text.lines().map(serde_json::from_str);
    rounds.collect::<Result<_, _>>().unwrap()
}

/// The words of all actions of a trace, in their order.
fn actions(rounds: &[TracedRound]) -> Vec<String> {
    let actions = rounds.iter().flat_map(|round| &round.actions);
    let told = actions.map(|action| match action {
        Action::Prepare(name) => format!("prepare {name}"),
        Action::Switch(name) => format!("switch {name}"),
        Action::Return(name) => format!("return {name}"),
    });
    told.collect()
}

#[test]
fn a_run_in_waves_is_replayed() {
    let rounds = read(include_str!("data/waves.jsonl"));
    let replayed = replay(&rounds).unwrap();
    assert_eq!(replayed.actions, 3);
    assert_eq!(actions(&rounds)[0], "switch n0");
    let others: BTreeSet<_> = actions(&rounds).into_iter().skip(1).collect();
    assert_eq!(others, ["switch n1", "switch n2"].map(String::from).into());
}

#[test]
fn a_run_that_went_back_is_replayed() {
    let rounds = read(include_str!("data/way-back.jsonl"));
    replay(&rounds).unwrap();
    // The second node failed; the third one was never asked.
    assert_eq!(actions(&rounds), ["switch n0", "switch n1", "return n0"]);
    let last = rounds.last().unwrap();
    assert!(matches!(last.before.phase, Phase::GoingBack { .. }));
}

#[test]
fn a_real_run_that_is_changed_is_refused() {
    let rounds = read(include_str!("data/way-back.jsonl"));
    // The node after the failure is asked as well.
    let failed = |round: &TracedRound| round.before.failures() > 0;
    let mut changed = rounds.clone();
    let after_failure = changed.iter_mut().find(|round| failed(round)).unwrap();
    after_failure.actions.push(Action::Switch("n2".into()));
    assert!(replay(&changed).is_err());
    // The canary's look is left out: the second node begins too early.
    let mut changed = rounds;
    let second = changed.iter_mut().find(|round| {
        let n1 = Action::Switch("n1".into());
        round.actions.contains(&n1)
    });
    second.unwrap().facts.remove(&"n0".into());
    assert!(replay(&changed).is_err());
}
