//! The table of steps, and properties over random histories.

#![allow(clippy::unwrap_used)]

mod histories;
mod holds;
mod locks;
mod records;
mod switching;
mod waiting;

use std::sync::LazyLock;

use instar_channel::{Choice, Date, Release, Why};

use super::*;
use crate::values::{Digest, Window};

fn release(version: &str) -> Release {
    let list = format!(
        r#"{{"version": "{version}", "architecture": "amd64", "image": "r.io/os:{version}", "digest": "{}", "date": "{}"}}"#,
        Digest::of(version.as_bytes()),
        Date::from_seconds(1)
    );
    serde_json::from_str(&list).unwrap()
}

fn target(version: &str) -> Target {
    Target {
        release: release(version),
        seen: 1000,
        approved: false,
        tries: 0,
        not_before: None,
    }
}

fn attempt(version: &str, tries: u32) -> Attempt {
    Attempt {
        target: Target {
            tries,
            ..target(version)
        },
        from: "v0.1.0".into(),
        from_image: None,
        returns: 0,
        start: None,
        expects_start: false,
        restarts: 0,
        left_by_a_person: false,
    }
}

/// The lock of the config.
static HERE: LazyLock<LockPlace> = LazyLock::new(|| place("drawer"));

fn place(group: &str) -> LockPlace {
    LockPlace {
        url: "https://lock.example".into(),
        group: group.into(),
    }
}

fn record(stage: Stage) -> Record {
    Record {
        has_lock: false,
        stage,
        ..Record::begin("stable".into(), "me".into())
    }
}

/// 01:00 UTC of a day.
const NOW: u64 = 20_000 * 86_400 + 3600;

fn facts<'a>(running: &'a str, chosen: Chosen<'a>) -> Facts<'a> {
    Facts {
        now: NOW,
        knows_time: true,
        chosen,
        list_is_fresh: true,
        running,
        running_digest: None,
        failure: None,
        fetched: Fetched::Yes,
        is_signed: false,
        is_busy: false,
        lock: LockAnswer::Unasked,
        ready_for: Some(0),
        watched_for: 0,
        start: "first".into(),
    }
}

const POLICY: Policy<'_> = Policy {
    delay: 0,
    window: None,
    needs_approval: false,
    lock: None,
    healthy_for: 60,
    hold_for: None,
};

const NOTHING: Chosen<'_> = Chosen::None {
    offers_failed: false,
};

/// The channel has this release, and none that failed here.
fn offered(release: &Release) -> Chosen<'_> {
    Chosen::Release {
        release,
        offers_failed: false,
    }
}

fn waits(record: &Record, facts: &Facts<'_>, policy: &Policy<'_>) -> (&'static str, Act) {
    let step = step(record.clone(), facts, policy);
    (step.standing.word(), step.act)
}

fn hold_of(version: &str, has_failed: bool) -> Hold {
    Hold {
        digest: release(version).digest,
        version: version.parse().unwrap(),
        why: "hangs".into(),
        until: None,
        has_failed,
        is_over: false,
    }
}

fn known() -> Record {
    record(Stage::Target(target("v0.2.0")))
}

fn approved() -> Record {
    record(Stage::Target(Target {
        approved: true,
        ..target("v0.2.0")
    }))
}

fn paused() -> Record {
    record(Stage::Target(Target {
        not_before: Some((NOW + 1, "no room".into())),
        ..target("v0.2.0")
    }))
}

fn closed() -> Window {
    "02:00-03:00".parse().unwrap()
}

fn in_window(window: &Window) -> Policy<'_> {
    Policy {
        window: Some(window),
        ..POLICY
    }
}

/// The groups of the locks that a record owes.
fn owed(record: &Record) -> Vec<&str> {
    let owed = record.owed.iter();
    owed.map(|owed| owed.at.group.as_str()).collect()
}

/// The only release of the channel fails, and is held for a while.
fn failed_for_a_while() -> Record {
    let mut failed = record(Stage::Idle);
    failed.has_lock = true;
    failed.hold_release(Hold {
        until: Some(NOW),
        ..hold_of("v0.2.0", true)
    });
    failed
}

/// The choice of a list with one release.
fn alone(release: &Release, why: Why) -> Choice<'_> {
    Choice {
        release: (why == Why::Chosen).then_some(release),
        reasons: vec![(release, why)],
    }
}
