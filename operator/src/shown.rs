//! The objects that show a rollout: the status of its pool and the NodeUpgrades. Pure.

use instar_rollout::{Entry, MachineName, Moment, Phase, Reason, Record, Step};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::api::{Kind, LeftBehind, NodeUpgradeStatus, PoolStatus};
use crate::{left_behind, removed_patches};

/// A condition before it has a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConditionText {
    type_: &'static str,
    holds: bool,
    reason: &'static str,
    message: String,
}

/// The fault of a pool; nothing new begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Invalid {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

impl Invalid {
    pub(crate) fn new(reason: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { reason, message }
    }
}

pub(crate) fn told(
    type_: &'static str,
    holds: bool,
    reason: &'static str,
    message: impl Into<String>,
) -> ConditionText {
    ConditionText {
        type_,
        holds,
        reason,
        message: message.into(),
    }
}

/// The facts about a pool.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Known<'a> {
    /// The generation of the pool.
    pub(crate) generation: Option<i64>,
    /// Why it cannot be driven.
    pub(crate) invalid: Option<&'a Invalid>,
    /// The kind of the newest rollout, and its record.
    pub(crate) newest: Option<(Kind, &'a Record)>,
    /// Why it does not go on.
    pub(crate) waits: Option<&'a str>,
    /// Whether another rollout comes after it.
    pub(crate) is_followed: bool,
}

/// Writes into the status what the record and the checks of the pool say. The times of conditions stay unless their status changes.
pub(crate) fn show(status: &mut PoolStatus, known: Known<'_>, now: Timestamp) {
    let Known {
        generation,
        invalid,
        ..
    } = known;
    status.observed_generation = generation;
    let mut conditions = vec![match invalid {
        Some(Invalid { reason, message }) => told("Valid", false, reason, message),
        None => told("Valid", true, "Valid", "the pool can be driven"),
    }];
    match known.newest {
        Some((kind, record)) => {
            let (phase, mut message) = phase(kind, record, known);
            // The record of a version tells of its own nodes.
            let mut others = status.left_behind.clone();
            others.retain(|one| {
                kind == Kind::Config || !record.machines.contains_key(&one.machine())
            });
            let left = left_behind::told(&others);
            if let (Some(left), Phase::Done) = (&left, &record.phase) {
                message = format!("{message}; {left}");
            }
            let removed = removed_patches::in_short(&status.removed_patches);
            if let (Some(removed), Phase::Done) = (removed, &record.phase) {
                message = format!("{message}; {removed}");
            }
            let count = |is: fn(&Step) -> bool| {
                let machines = record.machines.values();
                u32::try_from(machines.filter(|entry| is(&entry.step)).count()).unwrap_or(u32::MAX)
            };
            let target = match kind {
                Kind::Version => &mut status.version,
                Kind::Config => &mut status.config,
            };
            *target = Some(record.target.version.clone());
            status.nodes = u32::try_from(record.machines.len()).unwrap_or(u32::MAX);
            status.updated = count(|step| matches!(step, Step::Updated { .. }));
            status.failed = count(|step| matches!(step, Step::Failed { .. } | Step::Stuck { .. }))
                .saturating_add(count_of(&others));
            let is_last = record.phase == Phase::Done && !known.is_followed;
            let is_updated = is_last && status.updated == status.nodes;
            let reason = match is_updated && left.is_none() {
                true => "AllNodes",
                false => phase,
            };
            conditions.push(told("Updated", is_updated, reason, message.clone()));
            conditions.push(match left_behind::full(&status.left_behind) {
                Some(why) => told("Failed", true, "TooManyLeftBehind", why),
                None => failed(record, left),
            });
            status.phase = Some(phase.to_owned());
            status.message = Some(message);
        }
        None => {
            status.phase = Some("Waiting".to_owned());
            status.message = known.waits.map(str::to_owned);
        }
    }
    if let Some(why) = removed_patches::told(&status.removed_patches) {
        conditions.push(told("PatchesRemoved", true, "StayInForce", why));
    }
    if let Some(invalid) = invalid {
        status.phase = Some("Invalid".to_owned());
        status.message = Some(invalid.message.clone());
    }
    status.conditions = conditions
        .into_iter()
        .map(|condition| stamped(condition, &status.conditions, generation, now))
        .collect();
}

/// The condition with its time, which stays while its status stays.
pub(crate) fn stamped(
    told: ConditionText,
    before: &[Condition],
    generation: Option<i64>,
    now: Timestamp,
) -> Condition {
    let status = if told.holds { "True" } else { "False" };
    let same = before
        .iter()
        .find(|other| other.type_ == told.type_ && other.status == status);
    Condition {
        type_: told.type_.to_owned(),
        status: status.to_owned(),
        reason: told.reason.to_owned(),
        message: told.message,
        observed_generation: generation,
        last_transition_time: same.map_or(Time(now), |other| other.last_transition_time.clone()),
    }
}

/// The phase in a word, and in a sentence.
fn phase(kind: Kind, record: &Record, known: Known<'_>) -> (&'static str, String) {
    let target = &record.target.version;
    let all = record.machines.len();
    let updated = |entry: &&Entry| matches!(entry.step, Step::Updated { .. });
    let run_it = record.machines.values().filter(updated).count();
    let verb = match kind {
        Kind::Version => "run",
        Kind::Config => "have",
    };
    let run = format!("{run_it} of {all} nodes {verb} {target}");
    let under_way = record
        .machines
        .iter()
        .filter(|(_, entry)| entry.step.is_under_way());
    let under_way: Vec<&str> = under_way.map(|(name, _)| name.as_str()).take(3).collect();
    let doing = match (&under_way[..], &record.paused, known.waits) {
        ([], Some(why), _) => format!("; paused: {why}"),
        ([], None, Some(waits)) => format!("; {waits}"),
        ([], None, None) => String::new(),
        (names, ..) => format!("; under way: {}", names.join(", ")),
    };
    match &record.phase {
        Phase::Rolling if record.paused.is_some() => ("Paused", run + &doing),
        Phase::Rolling => ("Rolling", run + &doing),
        Phase::Halted { why } => ("Halted", format!("{run}; stopped: {why}")),
        Phase::GoingBack { why } => ("GoingBack", format!("{run}; goes back: {why}{doing}")),
        Phase::WentBack { why } => ("WentBack", format!("{run}; went back: {why}")),
        Phase::Aborted => ("Aborted", format!("{run}; a person ended the rollout")),
        Phase::Done if known.is_followed => {
            let why = known.waits.unwrap_or("another rollout comes next");
            ("Waiting", format!("{run}; {why}"))
        }
        Phase::Done => ("Done", run),
    }
}

fn count_of(left: &[LeftBehind]) -> u32 {
    let left = left.iter().filter(|one| !one.tries_again);
    u32::try_from(left.count()).unwrap_or(u32::MAX)
}

/// `left`: the nodes that are left behind, in a sentence.
fn failed(record: &Record, left: Option<String>) -> ConditionText {
    let mut failures = record
        .machines
        .iter()
        .filter_map(|(name, entry)| match &entry.step {
            Step::Failed { why, .. } => Some(("NodeFailed", format!("{name}: {why}"))),
            Step::Stuck { why } => Some(("NodeStuck", format!("{name}: {why}"))),
            _ => None,
        });
    match (failures.next(), &record.phase, left) {
        (Some((reason, message)), ..) => told("Failed", true, reason, message),
        (None, Phase::Halted { why }, _) => told("Failed", true, "Stalled", why.clone()),
        (None, _, Some(left)) => told("Failed", true, "NodeLeftBehind", left),
        (None, _, None) => told("Failed", false, "NoFailure", "no node has failed"),
    }
}

/// The reason why a rollout waits: that of the first machine that waits for something else than another machine of the rollout.
pub(crate) fn waits<'a>(
    reasons: impl Iterator<Item = (&'a MachineName, &'a Reason)>,
) -> Option<String> {
    let mut reasons = reasons;
    let (name, reason) = reasons.find(|(_, reason)| {
        let word = word(reason);
        !matches!(
            word,
            "Begins"
                | "Fetches"
                | "Upgrades"
                | "RunsIt"
                | "Failed"
                | "GoesBack"
                | "WentBack"
                | "Stuck"
                | "Left"
                | "Stopped"
        )
    })?;
    Some(format!("{name}: {reason}"))
}

/// The status of a machine's NodeUpgrade. `before`: its conditions until now.
pub(crate) fn node_upgrade(
    entry: &Entry,
    reason: Option<&Reason>,
    before: &[Condition],
    now: Timestamp,
) -> NodeUpgradeStatus {
    let (phase, ended) = match &entry.step {
        Step::Waiting => ("Waiting", None),
        Step::Preparing { .. } => ("Preparing", None),
        Step::Prepared => ("Prepared", None),
        Step::Switching { .. } => ("Upgrading", None),
        Step::Updated { at } => ("Updated", Some(*at)),
        Step::Failed { at, .. } => ("Failed", Some(*at)),
        Step::Returning { .. } => ("GoingBack", None),
        Step::Returned { at } => ("WentBack", Some(*at)),
        Step::Stuck { .. } => ("Stuck", None),
        Step::Left { .. } => ("Left", None),
    };
    let message = match entry.step.why() {
        Some(why) => why.to_owned(),
        None => reason.map(ToString::to_string).unwrap_or_default(),
    };
    let is_complete = matches!(entry.step, Step::Updated { .. });
    let has_failed = matches!(entry.step, Step::Failed { .. } | Step::Stuck { .. });
    let failed = match has_failed {
        true => told("Failed", true, phase, message.clone()),
        false => told("Failed", false, "NoFailure", "the node has not failed"),
    };
    let conditions = [
        told("Complete", is_complete, phase, message.clone()),
        failed,
    ];
    let conditions = conditions.map(|it| stamped(it, before, None, now));
    NodeUpgradeStatus {
        phase: phase.to_owned(),
        reason: reason.map_or("Unknown", word).to_owned(),
        message,
        conditions: conditions.into(),
        from: entry.before.as_ref().map(|before| before.version.clone()),
        began: entry.began.and_then(time),
        ended: ended.and_then(time),
    }
}

/// Whether what is shown of a node has to be written: the sentence alone, which counts others, does not matter.
pub(crate) fn differs(shown: &NodeUpgradeStatus, wanted: &NodeUpgradeStatus) -> bool {
    let essence = |status: &NodeUpgradeStatus| {
        let mut status = status.clone();
        status.message.clear();
        for condition in &mut status.conditions {
            condition.message.clear();
            condition.last_transition_time = Time(Timestamp::UNIX_EPOCH);
        }
        status
    };
    essence(shown) != essence(wanted)
}

fn time(moment: Moment) -> Option<String> {
    let second = i64::try_from(moment.0).ok()?;
    Some(Timestamp::from_second(second).ok()?.to_string())
}

/// A reason in one word.
fn word(reason: &Reason) -> &'static str {
    match reason {
        Reason::Begins => "Begins",
        Reason::Fetches => "Fetches",
        Reason::Upgrades => "Upgrades",
        Reason::RunsIt => "RunsIt",
        Reason::Failed(_) => "Failed",
        Reason::GoesBack => "GoesBack",
        Reason::CannotBeAsked(_) => "CannotBeAsked",
        Reason::WentBack => "WentBack",
        Reason::Stuck(_) => "Stuck",
        Reason::Left(_) => "Left",
        Reason::Stopped => "Stopped",
        Reason::Paused(_) => "Paused",
        Reason::Held(_) => "Held",
        Reason::Away(_) => "Away",
        Reason::NotReady(_) => "NotReady",
        Reason::Busy => "Busy",
        Reason::Approval(_) => "NeedsApproval",
        Reason::Unprepared(_) => "OthersPrepare",
        Reason::Wave(_) => "EarlierWave",
        Reason::WaveUnwell(_) => "EarlierWaveUnwell",
        Reason::Unproven(_) => "EarlierWaveUnproven",
        Reason::WaveFailed(_) => "EarlierWaveFailed",
        Reason::Soaks(_) => "Soaks",
        Reason::Pool(_) => "EarlierPool",
        Reason::PoolFailed(_) => "EarlierPoolFailed",
        Reason::Window(_) => "Window",
        Reason::Rate(_) => "Rate",
        Reason::Full { .. } => "AtOnce",
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use instar_rollout::{Member, Policy, Release};

    use super::*;
    use crate::api::RemovedPatch;

    fn release(version: &str) -> Release {
        Release {
            version: version.to_owned(),
            digest: None,
            image: None,
        }
    }

    fn record() -> Record {
        let members = ["n1", "n2"].map(|name| (MachineName::from(name), Member::default()));
        Record::begin(release("v2"), vec![Policy::default()], members.into()).unwrap()
    }

    fn with(steps: [Step; 2], phase: Phase) -> Record {
        let mut record = record();
        record.phase = phase;
        for (entry, step) in record.machines.values_mut().zip(steps) {
            entry.step = step;
        }
        record
    }

    /// The phase, and each condition as `type=status/reason`.
    fn shown(record: Option<&Record>, invalid: Option<&Invalid>) -> (String, String) {
        let mut status = PoolStatus::default();
        let known = Known {
            generation: Some(3),
            invalid,
            newest: record.map(|record| (Kind::Version, record)),
            ..Known::default()
        };
        show(&mut status, known, Timestamp::UNIX_EPOCH);
        let conditions = status.conditions.iter();
        let conditions = conditions.map(|it| format!("{}={}/{}", it.type_, it.status, it.reason));
        (
            status.phase.unwrap(),
            conditions.collect::<Vec<_>>().join(" "),
        )
    }

    #[test]
    fn conditions_say_where_a_rollout_is() {
        let at = Moment(1);
        let updated = Step::Updated { at };
        let failed = Step::Failed {
            at,
            why: "it burns".to_owned(),
        };
        let why = || "it burns".to_owned();
        let bad = Invalid::new("BadPolicy", "windows: …");
        for (record, invalid, phase, conditions) in [
            (None, None, "Waiting", "Valid=True/Valid"),
            (None, Some(&bad), "Invalid", "Valid=False/BadPolicy"),
            (
                Some(with([updated.clone(), Step::Waiting], Phase::Rolling)),
                None,
                "Rolling",
                "Valid=True/Valid Updated=False/Rolling Failed=False/NoFailure",
            ),
            (
                Some(with([updated.clone(), updated.clone()], Phase::Done)),
                None,
                "Done",
                "Valid=True/Valid Updated=True/AllNodes Failed=False/NoFailure",
            ),
            (
                Some(with(
                    [updated.clone(), Step::Left { why: why() }],
                    Phase::Done,
                )),
                None,
                "Done",
                "Valid=True/Valid Updated=False/Done Failed=False/NoFailure",
            ),
            (
                Some(with(
                    [failed.clone(), Step::Waiting],
                    Phase::Halted { why: why() },
                )),
                None,
                "Halted",
                "Valid=True/Valid Updated=False/Halted Failed=True/NodeFailed",
            ),
            (
                Some(with([failed, updated], Phase::GoingBack { why: why() })),
                None,
                "GoingBack",
                "Valid=True/Valid Updated=False/GoingBack Failed=True/NodeFailed",
            ),
            (
                Some(with(
                    [Step::Waiting, Step::Waiting],
                    Phase::Halted { why: why() },
                )),
                None,
                "Halted",
                "Valid=True/Valid Updated=False/Halted Failed=True/Stalled",
            ),
        ] {
            let expected = (phase.to_owned(), conditions.to_owned());
            assert_eq!(shown(record.as_ref(), invalid), expected);
        }
    }

    #[test]
    fn a_node_that_is_left_behind_is_shown() {
        let mut status = PoolStatus {
            left_behind: vec![LeftBehind {
                node: "n3".to_owned(),
                version: "v1".to_owned(),
                why: "it burns".to_owned(),
                ..LeftBehind::default()
            }],
            ..PoolStatus::default()
        };
        let updated = || Step::Updated { at: Moment(1) };
        let done = with([updated(), updated()], Phase::Done);
        let known = Known {
            newest: Some((Kind::Version, &done)),
            ..Known::default()
        };
        show(&mut status, known, Timestamp::UNIX_EPOCH);
        let conditions = status.conditions.iter();
        let conditions = conditions.map(|it| format!("{}={}/{}", it.type_, it.status, it.reason));
        let expected = [
            "Valid=True/Valid",
            "Updated=True/Done",
            "Failed=True/NodeLeftBehind",
        ];
        assert_eq!(conditions.collect::<Vec<_>>(), expected);
        let message = status.message.unwrap();
        let left = "left behind: n3, which failed at v1: it burns";
        assert_eq!(message, format!("2 of 2 nodes run v2; {left}"));
        assert_eq!((status.nodes, status.failed), (2, 1));
    }

    #[test]
    fn no_failure_is_forgotten_without_a_word() {
        let left = |number: usize| LeftBehind {
            node: format!("n{number}"),
            version: "v1".to_owned(),
            ..LeftBehind::default()
        };
        let updated = || Step::Updated { at: Moment(1) };
        let done = with([updated(), updated()], Phase::Done);
        for (number, reason) in [
            (left_behind::MOST - 1, "NodeLeftBehind"),
            (left_behind::MOST, "TooManyLeftBehind"),
        ] {
            let mut status = PoolStatus {
                left_behind: (0..number).map(left).collect(),
                ..PoolStatus::default()
            };
            let known = Known {
                newest: Some((Kind::Version, &done)),
                ..Known::default()
            };
            show(&mut status, known, Timestamp::UNIX_EPOCH);
            let failed = status.conditions.iter().find(|it| it.type_ == "Failed");
            assert_eq!(failed.unwrap().reason, reason, "{number}");
        }
    }

    #[test]
    fn a_patch_that_was_taken_out_is_shown_whatever_the_pool_names_now() {
        let mut status = PoolStatus {
            removed_patches: vec![RemovedPatch {
                fingerprint: "1a2b3c4d".to_owned(),
                begins: "machine: {}".to_owned(),
                nodes: 12,
            }],
            ..PoolStatus::default()
        };
        let updated = || Step::Updated { at: Moment(1) };
        let done = with([updated(), updated()], Phase::Done);
        for newest in [Some((Kind::Config, &done)), None] {
            let known = Known {
                newest,
                ..Known::default()
            };
            show(&mut status, known, Timestamp::UNIX_EPOCH);
            let condition = status.conditions.last().unwrap();
            assert_eq!(
                (&*condition.type_, &*condition.status),
                ("PatchesRemoved", "True")
            );
            assert!(
                condition
                    .message
                    .contains("1a2b3c4d (machine: {}) on 12 nodes")
            );
            if newest.is_some() {
                let said = status.message.clone().unwrap();
                assert!(
                    said.ends_with("; a patch that was taken out stays in force"),
                    "{said}"
                );
            }
        }
        status.removed_patches.clear();
        show(&mut status, Known::default(), Timestamp::UNIX_EPOCH);
        assert!(
            !status
                .conditions
                .iter()
                .any(|it| it.type_ == "PatchesRemoved")
        );
    }

    #[test]
    fn a_condition_keeps_its_time_while_its_status_stays() {
        let (first, later) = (Timestamp::UNIX_EPOCH, Timestamp::from_second(60).unwrap());
        let mut status = PoolStatus::default();
        let mut record = record();
        fn known(record: &Record) -> Known<'_> {
            Known {
                newest: Some((Kind::Version, record)),
                ..Known::default()
            }
        }
        show(&mut status, known(&record), first);
        record.phase = Phase::Done;
        for entry in record.machines.values_mut() {
            entry.step = Step::Updated { at: Moment(1) };
        }
        show(&mut status, known(&record), later);
        let times = status.conditions.iter().map(|it| it.last_transition_time.0);
        assert_eq!(times.collect::<Vec<_>>(), [first, later, first]);
    }

    #[test]
    fn a_pool_is_updated_once_version_and_config_are_there() {
        let at = Moment(1);
        let mut status = PoolStatus::default();
        let mut shown = |kind, version: &str, is_followed| {
            let mut done = with([Step::Updated { at }, Step::Updated { at }], Phase::Done);
            done.target = release(version);
            let known = Known {
                newest: Some((kind, &done)),
                is_followed,
                ..Known::default()
            };
            show(&mut status, known, Timestamp::UNIX_EPOCH);
            let updated = status.conditions.iter().find(|it| it.type_ == "Updated");
            let updated = updated
                .map(|it| format!("{}/{}", it.status, it.reason))
                .unwrap();
            let (phase, message) = (status.phase.clone(), status.message.clone());
            let targets = (status.version.clone(), status.config.clone());
            (phase.unwrap(), message.unwrap(), updated, targets)
        };
        let text = |text: &str| Some(text.to_owned());
        let (phase, message, updated, targets) = shown(Kind::Version, "v2", true);
        assert_eq!(
            (phase.as_str(), updated.as_str()),
            ("Waiting", "False/Waiting")
        );
        assert!(
            message.starts_with("2 of 2 nodes run v2; another"),
            "{message}"
        );
        assert_eq!(targets, (text("v2"), None));
        let (phase, message, updated, targets) = shown(Kind::Config, "config 1a2b", false);
        assert_eq!(
            (phase.as_str(), updated.as_str()),
            ("Done", "True/AllNodes")
        );
        assert_eq!(message, "2 of 2 nodes have config 1a2b");
        assert_eq!(targets, (text("v2"), text("config 1a2b")));
    }

    #[test]
    fn a_node_upgrade_has_the_nodes_own_reason() {
        let mut entry = record().machines.values().next().unwrap().clone();
        entry.before = Some(release("v1"));
        entry.began = Some(Moment(60));
        entry.step = Step::Failed {
            at: Moment(120),
            why: "the moon is full".to_owned(),
        };
        let reason = Reason::Failed("the moon is full".to_owned());
        let shown = node_upgrade(&entry, Some(&reason), &[], Timestamp::UNIX_EPOCH);
        assert_eq!(
            (shown.phase.as_str(), shown.message.as_str()),
            ("Failed", "the moon is full")
        );
        assert_eq!(shown.from.as_deref(), Some("v1"));
        assert_eq!(shown.began.as_deref(), Some("1970-01-01T00:01:00Z"));
        assert_eq!(shown.ended.as_deref(), Some("1970-01-01T00:02:00Z"));
    }

    #[test]
    fn a_sentence_that_changes_alone_is_not_written() {
        let entry = record().machines.values().next().unwrap().clone();
        let full = |most| {
            let reason = Reason::Full {
                most,
                by_itself: None,
            };
            node_upgrade(&entry, Some(&reason), &[], Timestamp::UNIX_EPOCH)
        };
        assert!(!differs(&full(1), &full(2)));
        assert!(differs(
            &full(1),
            &node_upgrade(&entry, Some(&Reason::Busy), &[], Timestamp::UNIX_EPOCH)
        ));
        let mut shown = full(1);
        shown.conditions.clear();
        assert!(differs(&shown, &full(1)), "as an older operator wrote it");
    }

    #[test]
    fn conditions_of_a_node_upgrade_say_how_it_ended() {
        let mut entry = record().machines.values().next().unwrap().clone();
        let at = Moment(1);
        let why = || "it burns".to_owned();
        let failed = Step::Failed { at, why: why() };
        for (step, complete, failure) in [
            (Step::Waiting, "False/Waiting", "False/NoFailure"),
            (Step::Updated { at }, "True/Updated", "False/NoFailure"),
            (failed, "False/Failed", "True/Failed"),
            (Step::Stuck { why: why() }, "False/Stuck", "True/Stuck"),
            (Step::Returned { at }, "False/WentBack", "False/NoFailure"),
        ] {
            entry.step = step;
            let shown = node_upgrade(&entry, None, &[], Timestamp::UNIX_EPOCH);
            let told = shown.conditions.iter();
            let told = told.map(|it| format!("{}={}/{}", it.type_, it.status, it.reason));
            let expected = [format!("Complete={complete}"), format!("Failed={failure}")];
            assert_eq!(told.collect::<Vec<_>>(), expected);
        }
    }
}
