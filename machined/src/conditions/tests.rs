#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use super::*;

const T: SystemTime = SystemTime::UNIX_EPOCH;
const HOUR: Duration = Duration::from_secs(3600);

/// A machine that is configured, and has run for a while.
fn fine() -> Facts {
    Facts {
        running: "v0.1.0".to_owned(),
        up_for: HOUR,
        has_config: true,
        var: Some(var(50, 50)),
        memory: Some((50, 100)),
        clock: Some(clock(true, Some(60))),
        certificate: Some(certificate(Signer::Automatic, Some(12), None)),
        state: StateDisk::Writable,
        ..Facts::default()
    }
}

fn var(available: u64, files_free: u64) -> Room {
    Room {
        available,
        size: 100,
        files_free,
        files: 100,
    }
}

fn clock(synced: bool, silent: Option<u64>) -> Clock {
    Clock {
        synced,
        silent_for: silent.map(Duration::from_secs),
        problem: Some("no route".to_owned()),
    }
}

fn certificate(signer: Signer, hours: Option<u32>, warning: Option<&str>) -> Certificate {
    Certificate {
        signer,
        left: hours.map(|hours| HOUR * hours),
        warning: warning.map(str::to_owned),
    }
}

fn problem(subject: &str) -> (String, String, SystemTime) {
    (subject.to_owned(), "it broke".to_owned(), T + HOUR)
}

fn failing(name: &str, since: u32) -> FailedService {
    FailedService {
        name: name.to_owned(),
        failures: 4,
        since: T + HOUR * since,
        last: "the process exited with code 1".to_owned(),
    }
}

fn held(version: &str) -> HeldRelease {
    HeldRelease {
        version: version.to_owned(),
        why: "it hangs".to_owned(),
    }
}

fn unbootable(version: &str, is_next: bool, is_revoked: bool) -> Unbootable {
    Unbootable {
        version: version.to_owned(),
        is_next,
        is_revoked,
        why: "it rots".to_owned(),
    }
}

/// A change of the facts, and the type, the reason and words of the message that follow; none if nothing does.
type Row = (fn(&mut Facts), Option<(Type, &'static str, &'static str)>);

#[rustfmt::skip]
const TABLE: [Row; 58] = [
    // Nothing wrong.
    (|_| {},                                                      None),
    (|it| *it = Facts { has_config: true, ..Facts::default() },   None),

    (|it| it.failed_upgrade = Some(Failure { reason: "v0.2.0 was rolled back".into(), at: T }),
        Some((Type::UpgradeFailed, "PreviousVersionRuns", "v0.1.0 runs on, because the last upgrade failed: v0.2.0 was rolled back"))),

    (|it| it.held = vec![held("v0.2.0"), held("v0.3.0")],
        Some((Type::ReleaseHeld, "ReleaseFailed", "v0.2.0: it hangs; v0.3.0: it hangs"))),
    (|it| it.failed_look = Some(Look { channel: "lab".into(), error: "404".into() }),
        Some((Type::ChannelUnreachable, "ListNotRead", "the list of lab cannot be read, so no new release is seen: 404"))),

    (|it| it.approvals = vec![Approval::Release("v0.2.0".into())],
        Some((Type::ApprovalNeeded, "ApprovalNeeded", "`instarctl follow approve v0.2.0`"))),
    (|it| it.approvals = vec![Approval::Image("web".into())],
        Some((Type::ApprovalNeeded, "ApprovalNeeded", "another image of the container web"))),
    (|it| it.approvals = vec![Approval::Bundle("sda1".into())],
        Some((Type::ApprovalNeeded, "ApprovalNeeded", "the bundle at sda1"))),
    (|it| it.prepared = Some("v0.2.0".into()),
        Some((Type::RebootNeeded, "VersionPrepared", "v0.2.0 is prepared"))),

    // The one that the next boot takes comes first.
    (|it| it.unbootable = vec![unbootable("v0.1.0", false, false)],
        Some((Type::VersionUnbootable, "UkiDamaged", "v0.1.0: it rots; nobody can go back to it"))),
    (|it| it.unbootable = vec![unbootable("v0.1.0", false, true)],
        Some((Type::VersionUnbootable, "UkiRevoked", "v0.1.0: it rots; nobody can go back to it"))),
    (|it| it.unbootable = vec![unbootable("v0.2.0", true, true)],
        Some((Type::VersionUnbootable, "UkiRevoked", "upgrade to a newer version before the machine reboots"))),
    (|it| it.unbootable = vec![unbootable("v0.2.0", true, false), unbootable("v0.1.0", false, true)],
        Some((Type::VersionUnbootable, "UkiDamaged", "v0.2.0: it rots; v0.1.0: it rots; the next boot would take it"))),

    // Less than 10 % of the bytes, less than 5 % of the files; bytes come first. A filesystem without a limit on files has enough.
    (|it| it.var = None,                                          None),
    (|it| it.var = Some(var(10, 50)),                             None),
    (|it| it.var = Some(var(9, 50)),   Some((Type::DiskPressure, "BytesNearlyUsedUp", "9 B of 100 B are left on /var"))),
    (|it| it.var = Some(var(0, 0)),    Some((Type::DiskPressure, "BytesNearlyUsedUp", "0 B of 100 B"))),
    (|it| it.var = Some(var(50, 5)),                              None),
    (|it| it.var = Some(var(50, 4)),   Some((Type::DiskPressure, "FilesNearlyUsedUp", "4 of 100 files"))),
    (|it| it.var = Some(Room { files: 0, files_free: 0, ..var(50, 0) }), None),

    (|it| it.memory = None,                                       None),
    (|it| it.memory = Some((5, 100)),                             None),
    (|it| it.memory = Some((4, 100)),  Some((Type::MemoryPressure, "MemoryNearlyUsedUp", "programs can get 4 B of 100 B"))),
    (|it| it.memory = Some((u64::MAX, u64::MAX)),                 None),

    (|it| it.killed = vec![("web".into(), T), ("db".into(), T)],
        Some((Type::OutOfMemory, "ServiceKilled", "for lack of memory: web; db"))),
    (|it| it.failing = vec![failing("web", 2), failing("db", 1)],
        Some((Type::CrashLoop, "ServiceKeepsFailing", "web (4 times in a row; the process exited with code 1); db"))),
    (|it| it.failing = (0..9).map(|number| failing(&number.to_string(), 1)).collect(),
        Some((Type::CrashLoop, "ServiceKeepsFailing", "; and 4 more"))),
    (|it| it.unhealthy = vec![Unhealthy { name: "web".into(), why: "no answer".into(), since: T }],
        Some((Type::ServiceUnhealthy, "HealthCheckFails", "web (no answer)"))),

    // Two minutes for the first answer, three hours between two; a clock that nobody is asked about is fine.
    (|it| it.clock = None,                                        None),
    (|it| it.clock = Some(clock(true, Some(3 * 3600))),           None),
    (|it| it.clock = Some(clock(true, Some(3 * 3600 + 1))),
        Some((Type::ClockNotSynchronized, "NoServerAnswers", "(no route)"))),
    (|it| it.clock = Some(clock(false, None)),
        Some((Type::ClockNotSynchronized, "NoServerAnswers", "machine.time.servers"))),
    (|it| { it.clock = Some(clock(false, None)); it.up_for = Duration::from_secs(120); }, None),

    (|it| it.certificate = None,                                                           None),
    (|it| it.certificate = Some(certificate(Signer::Automatic, None, None)),               None),
    (|it| it.certificate = Some(certificate(Signer::Automatic, Some(6), None)),            None),
    (|it| it.certificate = Some(certificate(Signer::Automatic, Some(5), None)),
        Some((Type::CertificateEnds, "NotRenewed", "ends in 5 h and was not renewed"))),
    (|it| it.certificate = Some(certificate(Signer::Person, Some(5), None)),               None),
    (|it| it.certificate = Some(certificate(Signer::Person, Some(5), Some("sign it"))),
        Some((Type::CertificateEnds, "EndsSoon", "sign it"))),
    (|it| it.certificate = Some(certificate(Signer::Nobody, None, Some("sign its request"))),
        Some((Type::CertificateEnds, "NotSigned", "sign its request"))),

    // Two minutes to get ready; what a person has to do is told at once.
    (|it| it.node = Some(NodeTrouble::ClusterNotBegun),
        Some((Type::KubernetesNotReady, "ClusterNotBegun", "instarctl bootstrap"))),
    (|it| it.node = Some(NodeTrouble::NotReady("no CNI".into())),
        Some((Type::KubernetesNotReady, "NodeNotReady", "no CNI"))),
    (|it| it.node = Some(NodeTrouble::ClusterUnreachable("no answer".into())),
        Some((Type::KubernetesNotReady, "ClusterUnreachable", "no answer"))),
    (|it| it.node = Some(NodeTrouble::Incomplete("a label".into())),
        Some((Type::KubernetesNotReady, "Incomplete", "a label"))),
    (|it| { it.node = Some(NodeTrouble::NotReady("no CNI".into())); it.up_for = Duration::from_secs(120); }, None),
    (|it| { it.node = Some(NodeTrouble::ClusterNotBegun); it.up_for = Duration::ZERO; },
        Some((Type::KubernetesNotReady, "ClusterNotBegun", ""))),

    // Problems come first, then the missing config, then the config of the last boot.
    (|it| { it.problems = vec![problem("config")]; it.has_config = false; },
        Some((Type::Degraded, "ConfigUnusable", "config: it broke; repair"))),
    (|it| it.problems = vec![problem("boot"), problem("clock")],
        Some((Type::Degraded, "BootIncomplete", "boot: it broke; clock: it broke"))),
    (|it| it.problems = vec![problem("boot entry")],         Some((Type::Degraded, "BootEntryNotBlessed", ""))),
    (|it| it.problems = vec![problem("install")],            Some((Type::Degraded, "NotInstalled", ""))),
    (|it| it.problems = vec![problem("Kubernetes")],         Some((Type::Degraded, "KubernetesNotPrepared", ""))),
    (|it| it.problems = vec![problem("user volume data")],   Some((Type::Degraded, "UserVolumeMissing", ""))),
    (|it| it.problems = vec![problem("extension data")],     Some((Type::Degraded, "ExtensionNotInForce", ""))),
    (|it| it.problems = vec![problem("network settings")],   Some((Type::Degraded, "SettingNotApplied", "network settings: it broke; repair"))),
    (|it| it.has_config = false,                             Some((Type::Degraded, "NoConfig", "apply-config"))),
    (|it| it.stale_config = Some("the server is away".into()),
        Some((Type::Degraded, "ConfigServerUnreachable", "the server is away: repair the server"))),

    (|it| it.state = StateDisk::ReadOnly,              Some((Type::StateNotWritable, "ReadOnly", "STATE is read-only"))),
    (|it| it.state = StateDisk::Failed("EIO".into()),  Some((Type::StateNotWritable, "WriteFailed", "(EIO)"))),
];

#[test]
fn each_fact_makes_one_condition_true() {
    for (number, (change, expected)) in TABLE.iter().enumerate() {
        let mut facts = fine();
        change(&mut facts);
        let judged = judge(&facts);
        let kinds: Vec<_> = judged.iter().map(|condition| condition.kind).collect();
        assert_eq!(kinds, Type::ALL, "row {number}");
        let mut troubles = judged
            .iter()
            .filter_map(|it| Some((it.kind, it.trouble.as_ref()?)));
        let found = troubles.next();
        assert_eq!(troubles.next(), None, "row {number}");
        let told = found.map(|(kind, trouble)| (kind, trouble.reason));
        assert_eq!(
            told,
            expected.map(|(kind, reason, _)| (kind, reason)),
            "row {number}"
        );
        if let (Some((_, trouble)), Some((.., words))) = (found, expected) {
            assert!(trouble.message.contains(words), "{}", trouble.message);
        }
    }
}

/// Types and reasons are labels of metrics, and words in the document for monitoring.
#[test]
fn every_type_is_in_the_table_and_every_reason_in_the_document() {
    let in_table: BTreeSet<Type> = TABLE
        .iter()
        .filter_map(|(_, it)| Some(it.as_ref()?.0))
        .collect();
    assert_eq!(in_table, Type::ALL.into_iter().collect());
    let document = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/observing.md");
    let document = std::fs::read_to_string(document).unwrap();
    for (kind, reason, _) in TABLE.iter().filter_map(|(_, expected)| *expected) {
        let row = document
            .lines()
            .find(|line| line.starts_with(&format!("| `{}` |", kind.name())));
        assert!(
            row.is_some_and(|row| row.contains(&format!("`{reason}`"))),
            "docs/observing.md has no {reason} of {}",
            kind.name()
        );
    }
}

#[test]
fn troubles_of_several_begin_with_the_first() {
    let facts = Facts {
        failing: vec![failing("web", 2), failing("db", 1)],
        ..fine()
    };
    let judged = judge(&facts);
    let trouble = judged.iter().find_map(|it| it.trouble.as_ref()).unwrap();
    assert_eq!(trouble.since, Some(T + HOUR));
}

/// The moment after so many hours, by a clock that showed this time when machined began.
fn after(hours: u32, begun: SystemTime) -> Moment {
    let up = HOUR * hours;
    Moment { at: begun + up, up }
}

#[test]
fn a_begin_is_told_by_the_clock_of_now() {
    let seen = FirstSeen::default();
    let few_bytes = Facts {
        var: Some(var(1, 50)),
        ..fine()
    };
    let look = |now: Moment| {
        let known = seen.note(judge(&few_bytes), now);
        known.into_iter().find_map(|it| it.trouble).map(|it| it.1)
    };
    assert_eq!(look(after(1, T)), Some(T + HOUR));
    // A time server has set the clock, by years; then by what a clock drifts.
    let year = HOUR * (365 * 24);
    assert_eq!(look(after(2, T + year)), Some(T + year + HOUR));
    let little = Duration::from_secs(1);
    assert_eq!(look(after(3, T + year + little)), Some(T + year + HOUR));
    assert_eq!(look(after(4, T + year / 2)), Some(T + year / 2 + HOUR));
}

#[test]
fn a_trouble_without_a_time_begins_when_it_is_first_seen() {
    let seen = FirstSeen::default();
    let look = |facts: &Facts, hours: u32| {
        let known = seen.note(judge(facts), after(hours, T));
        known.into_iter().find_map(|it| it.trouble).map(|it| it.1)
    };
    let few_bytes = Facts {
        var: Some(var(1, 50)),
        ..fine()
    };
    let few_files = Facts {
        var: Some(var(50, 1)),
        ..fine()
    };
    assert_eq!(look(&fine(), 1), None);
    assert_eq!(look(&few_bytes, 2), Some(T + HOUR * 2));
    assert_eq!(look(&few_bytes, 3), Some(T + HOUR * 2));
    // Another reason is another trouble, and so is one that was gone meanwhile.
    assert_eq!(look(&few_files, 4), Some(T + HOUR * 4));
    assert_eq!(look(&fine(), 5), None);
    assert_eq!(look(&few_files, 6), Some(T + HOUR * 6));
    let failed = Facts {
        failed_upgrade: Some(Failure {
            reason: String::new(),
            at: T,
        }),
        ..fine()
    };
    assert_eq!(look(&failed, 7), Some(T));
}
