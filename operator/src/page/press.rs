//! The changes in the cluster that a press on the page makes: the same that a person makes with `kubectl`. Pure.
//!
//! ```text
//!  pause, resume               ─► spec.paused              resume after a halt, retry, abort, roll back ─► the annotation instar.dev/command
//!  approve                     ─► spec.approvedWaves       hold, release ─► the node's annotation instar.dev/hold
//! ```

use instar_rollout::{Command, Phase, Record};
use kube::ResourceExt as _;
use serde_json::{Value, json};

use crate::api::{COMMAND, HOLD, Pool};
use crate::rollouts::{ABORT, RESUME, RETRY, ROLLBACK};

/// A change: a merge patch.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Press {
    /// It is so already.
    Nothing,
    /// Of the pool.
    Pool(Value),
    /// Of a node, which is left alone from then on.
    Hold { node: String, patch: Value },
    /// Of a node, which is a part of rollouts again.
    Release { node: String, patch: Value },
}

/// Makes the change of a command.
///
/// # Errors
/// The command makes no sense now; says why.
pub(super) fn press(
    pool: &Pool,
    record: Option<&Record>,
    command: Command,
) -> Result<Press, String> {
    match command {
        Command::Pause(_) => Ok(paused(pool, true)),
        Command::Resume => resume(pool, record),
        Command::Approve(wave) => approve(pool, record, wave),
        Command::Retry => ordered(pool, record, command, RETRY),
        Command::Abort => ordered(pool, record, command, ABORT),
        Command::Rollback(_) => ordered(pool, record, command, ROLLBACK),
        Command::Hold(node, why) => Ok(Press::Hold {
            node: node.as_str().to_owned(),
            patch: annotated(HOLD, Some(&why)),
        }),
        Command::Release(node) => Ok(Press::Release {
            node: node.as_str().to_owned(),
            patch: annotated(HOLD, None),
        }),
    }
}

fn annotated(name: &str, value: Option<&str>) -> Value {
    json!({"metadata": {"annotations": {name: value}}})
}

fn paused(pool: &Pool, paused: bool) -> Press {
    match pool.spec.paused == paused {
        true => Press::Nothing,
        false => Press::Pool(json!({"spec": {"paused": paused}})),
    }
}

/// A halt ends by the annotation, a pause by the field; both can be there.
fn resume(pool: &Pool, record: Option<&Record>) -> Result<Press, String> {
    let halted = record.filter(|record| matches!(record.phase, Phase::Halted { .. }));
    if halted.is_none() {
        return Ok(paused(pool, false));
    }
    let mut press = ordered(pool, record, Command::Resume, RESUME)?;
    if let (Press::Pool(patch), true) = (&mut press, pool.spec.paused) {
        patch["spec"] = json!({"paused": false});
    }
    Ok(press)
}

/// One more wave than the operator has taken in, or the one that the visitor has seen. So a second press meanwhile approves no wave that nobody has
/// looked at.
fn approve(pool: &Pool, record: Option<&Record>, wave: Option<usize>) -> Result<Press, String> {
    let record = makes_sense(record, Command::Approve(wave))?;
    if wave.is_some_and(|wave| wave <= record.approved) {
        return Ok(Press::Nothing);
    }
    let rollout = pool.status.as_ref().and_then(|it| it.rollout.as_ref());
    // The field counts on over versions.
    let before = rollout.map_or(0, |rollout| rollout.approved_before);
    let own = u32::try_from(record.approved + 1).unwrap_or(u32::MAX);
    let wanted = before.saturating_add(own);
    Ok(match pool.spec.approved_waves >= wanted {
        true => Press::Nothing,
        false => Press::Pool(json!({"spec": {"approvedWaves": wanted}})),
    })
}

/// A command that the operator carries out once.
fn ordered(
    pool: &Pool,
    record: Option<&Record>,
    command: Command,
    word: &str,
) -> Result<Press, String> {
    makes_sense(record, command)?;
    match pool.annotations().get(COMMAND) {
        None => Ok(Press::Pool(annotated(COMMAND, Some(word)))),
        Some(waits) if waits == word => Ok(Press::Nothing),
        Some(waits) => Err(format!(
            "another command waits for the operator: {waits}; try again in a moment"
        )),
    }
}

/// Whether the record takes the command now, by the engine's own rules.
fn makes_sense(record: Option<&Record>, command: Command) -> Result<&Record, String> {
    let record = record.ok_or("the pool has no rollout yet")?;
    let tried = record.clone().command(command);
    tried.map_err(|refused| refused.to_string())?;
    Ok(record)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use instar_rollout::{MachineName, Member, Moment, Policy, Release, Step};

    use super::*;

    fn pool(annotations: Value, spec: Value) -> Pool {
        let mut object = json!({
            "apiVersion": "instar.dev/v1alpha1", "kind": "Pool",
            "metadata": {"name": "lab", "annotations": annotations},
            "spec": {"nodeSelector": {}, "image": "r/i:v2"},
        });
        for (key, value) in spec.as_object().unwrap() {
            object["spec"][key] = value.clone();
        }
        serde_json::from_value(object).unwrap()
    }

    fn record(phase: Phase, approved: usize) -> Record {
        let target = Release {
            version: "v2".to_owned(),
            digest: None,
            image: None,
        };
        let members = [(MachineName::from("n1"), Member::default())];
        let mut record = Record::begin(target, vec![Policy::default()], members.into()).unwrap();
        (record.phase, record.approved) = (phase, approved);
        record
    }

    fn approved_before(before: u32) -> Pool {
        let mut pool = pool(json!({}), json!({"approvedWaves": before}));
        let rollout = json!({"number": 2, "image": "r/i:v2", "approvedBefore": before});
        pool.status = serde_json::from_value(json!({ "rollout": rollout })).unwrap();
        pool
    }

    fn failed() -> Record {
        let mut record = record(Phase::Done, 0);
        let step = Step::Failed {
            at: Moment(1),
            why: "it burns".to_owned(),
        };
        record
            .machines
            .values_mut()
            .for_each(|entry| entry.step = step.clone());
        record
    }

    fn halted() -> Record {
        record(
            Phase::Halted {
                why: "it burns".to_owned(),
            },
            0,
        )
    }

    fn word(word: &str) -> Press {
        Press::Pool(annotated(COMMAND, Some(word)))
    }

    #[test]
    fn a_press_is_what_a_person_does_with_kubectl() {
        let plain = || pool(json!({}), json!({}));
        let stands = || pool(json!({}), json!({"paused": true}));
        let rolling = |approved| Some(record(Phase::Rolling, approved));
        let spec = |spec: Value| Press::Pool(json!({ "spec": spec }));
        let both =
            json!({"metadata": {"annotations": {COMMAND: "resume"}}, "spec": {"paused": false}});
        let back = || Command::Rollback("on the page".to_owned());
        let pause = || Command::Pause("on the page".to_owned());
        for (pool, record, command, expected) in [
            (plain(), rolling(0), pause(), spec(json!({"paused": true}))),
            (stands(), rolling(0), pause(), Press::Nothing),
            (plain(), None, pause(), spec(json!({"paused": true}))),
            (
                stands(),
                None,
                Command::Resume,
                spec(json!({"paused": false})),
            ),
            (
                stands(),
                rolling(0),
                Command::Resume,
                spec(json!({"paused": false})),
            ),
            (plain(), rolling(0), Command::Resume, Press::Nothing),
            (plain(), Some(halted()), Command::Resume, word("resume")),
            (stands(), Some(halted()), Command::Resume, Press::Pool(both)),
            (plain(), rolling(0), Command::Abort, word("abort")),
            (plain(), Some(failed()), Command::Retry, word("retry")),
            (
                plain(),
                Some(record(Phase::Done, 0)),
                back(),
                word("rollback"),
            ),
        ] {
            let pressed = press(&pool, record.as_ref(), command.clone());
            assert_eq!(pressed, Ok(expected), "{command:?}");
        }
    }

    #[test]
    fn an_approval_is_of_one_wave() {
        let plain = || pool(json!({}), json!({}));
        let approved = || pool(json!({}), json!({"approvedWaves": 1}));
        for (pool, of_record, wave, expected) in [
            (plain(), 0, None, Some(1)),
            (approved(), 1, None, Some(2)),
            // Pressed twice before the operator has taken it in, or before the page shows that it has.
            (approved(), 0, None, None),
            (approved(), 1, Some(1), None),
            (approved(), 1, Some(2), Some(2)),
            // Two approvals were for versions before.
            (approved_before(2), 0, None, Some(3)),
            (approved_before(2), 1, None, Some(4)),
        ] {
            let rolling = record(Phase::Rolling, of_record);
            let pressed = press(&pool, Some(&rolling), Command::Approve(wave));
            let waves = |waves: usize| Press::Pool(json!({"spec": {"approvedWaves": waves}}));
            let expected = expected.map_or(Press::Nothing, waves);
            assert_eq!(pressed, Ok(expected), "{of_record} {wave:?}");
        }
    }

    #[test]
    fn a_press_that_makes_no_sense_says_why() {
        let plain = || pool(json!({}), json!({}));
        let waits = pool(json!({COMMAND: "resume"}), json!({}));
        let back = || Command::Rollback("on the page".to_owned());
        let went_back = Phase::WentBack { why: String::new() };
        for (pool, record, command, why) in [
            (plain(), None, back(), "no rollout yet"),
            (
                plain(),
                Some(record(Phase::Done, 0)),
                Command::Abort,
                "has ended",
            ),
            (
                plain(),
                Some(record(Phase::Done, 0)),
                Command::Approve(None),
                "has ended",
            ),
            (
                plain(),
                Some(record(Phase::Rolling, 0)),
                Command::Approve(Some(2)),
                "wave 1 comes first",
            ),
            (plain(), Some(record(went_back, 0)), back(), "has ended"),
            (
                plain(),
                Some(record(Phase::Done, 0)),
                Command::Retry,
                "no machine has failed",
            ),
            (
                waits,
                Some(halted()),
                Command::Abort,
                "another command waits",
            ),
        ] {
            let refused = press(&pool, record.as_ref(), command).unwrap_err();
            assert!(refused.contains(why), "{refused}");
        }
    }

    #[test]
    fn the_operator_knows_the_words_and_a_second_press_is_none() {
        for (command, known) in [
            (Command::Abort, ABORT),
            (Command::Rollback(String::new()), ROLLBACK),
        ] {
            let pressed = pool(json!({COMMAND: known}), json!({}));
            let rolling = record(Phase::Rolling, 0);
            let again = press(&pressed, Some(&rolling), command);
            assert_eq!(again, Ok(Press::Nothing));
        }
        for known in [RESUME, RETRY, ABORT, ROLLBACK] {
            assert!(crate::rollouts::command(known).is_some(), "{known}");
        }
    }

    #[test]
    fn a_hold_is_an_annotation_of_the_node() {
        let lab = pool(json!({}), json!({}));
        let node = || MachineName::from("n1");
        let hold = press(&lab, None, Command::Hold(node(), "on the page".to_owned()));
        let (node_name, held) = ("n1".to_owned(), json!({HOLD: "on the page"}));
        let patch = json!({"metadata": {"annotations": held}});
        assert_eq!(
            hold,
            Ok(Press::Hold {
                node: node_name.clone(),
                patch
            })
        );
        let patch = json!({"metadata": {"annotations": {HOLD: null}}});
        let release = press(&lab, None, Command::Release(node()));
        assert_eq!(
            release,
            Ok(Press::Release {
                node: node_name,
                patch
            })
        );
    }
}
