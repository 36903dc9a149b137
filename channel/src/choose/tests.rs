#![allow(clippy::unwrap_used)]
use super::*;
use crate::change::tests::{date, list_of, release};

fn version(text: &str) -> Version {
    text.parse().unwrap()
}

/// The machine of the table: what a row does not name is as here.
struct Row {
    running: &'static str,
    digest: Option<Digest>,
    created: Option<Date>,
    labels: &'static [&'static str],
    floor: Option<&'static str>,
    held: &'static [&'static str],
}

const MACHINE: Row = Row {
    running: "v0.2.0",
    digest: None,
    created: None,
    labels: &[],
    floor: None,
    held: &[],
};

/// Returns the chosen version and all reasons.
fn chosen(list: &List, row: &Row) -> (Option<String>, Vec<Why>) {
    let running = row.running.parse().ok();
    let floor = row.floor.map(version);
    let labels: Vec<Label> = row.labels.iter().map(|it| it.parse().unwrap()).collect();
    let held: Vec<Digest> = row
        .held
        .iter()
        .map(|version| release(version).digest)
        .collect();
    let choice = choose(
        list,
        &Follower {
            version: running.as_ref(),
            digest: row.digest,
            created: row.created,
            architecture: "amd64",
            labels: &labels,
            floor: floor.as_ref(),
            held: &|digest| held.contains(&digest).then(|| "it failed".to_owned()),
        },
    );
    let reasons = choice.reasons.into_iter().map(|(_, why)| why).collect();
    (choice.release.map(|it| it.version.to_string()), reasons)
}

/// A row of the table: its name, the list, the machine, the reason of the first release, and the version that is chosen.
type Case = (&'static str, List, Row, Why, Option<&'static str>);

fn check<const N: usize>(cases: [Case; N]) {
    for (named, list, row, first, goes_to) in cases {
        let (version, reasons) = chosen(&list, &row);
        assert_eq!(reasons[0], first, "{named}: {reasons:?}");
        assert_eq!(version.as_deref(), goes_to, "{named}: {reasons:?}");
        assert!(!reasons[0].to_string().is_empty());
    }
}

/// Two releases, the first one changed.
fn changed(change: fn(&mut Release)) -> List {
    let mut list = list_of(&["v0.3.0", "v0.2.1"]);
    change(&mut list.releases[0]);
    list
}

fn unchanged() -> List {
    changed(|_| {})
}

#[test]
fn what_runs_decides() {
    check([
        ("nothing", unchanged(), MACHINE, Why::Chosen, Some("v0.3.0")),
        (
            "another architecture",
            changed(|it| it.architecture = "arm64".into()),
            MACHINE,
            Why::Architecture,
            Some("v0.2.1"),
        ),
        (
            "no order",
            unchanged(),
            Row {
                running: "nightly",
                ..MACHINE
            },
            Why::NoOrder,
            None,
        ),
        (
            "it runs",
            unchanged(),
            Row {
                running: "v0.3.0",
                ..MACHINE
            },
            Why::Runs,
            None,
        ),
        (
            "it runs, from this image",
            unchanged(),
            Row {
                running: "v0.3.0",
                digest: Some(release("v0.3.0").digest),
                ..MACHINE
            },
            Why::Runs,
            None,
        ),
        (
            "the same version from another image",
            unchanged(),
            Row {
                running: "v0.3.0",
                digest: Some(Digest::of(b"mine")),
                ..MACHINE
            },
            Why::NotNewer,
            None,
        ),
        (
            "older",
            unchanged(),
            Row {
                running: "v0.4.0",
                ..MACHINE
            },
            Why::NotNewer,
            None,
        ),
        (
            "a pre-release of it runs",
            unchanged(),
            Row {
                running: "v0.3.0-rc.1",
                ..MACHINE
            },
            Why::Chosen,
            Some("v0.3.0"),
        ),
    ]);
}

#[test]
fn a_withdrawal_the_floor_and_dates_decide() {
    check([
        (
            "withdrawn",
            changed(|it| it.withdrawn = Some("loses data".into())),
            MACHINE,
            Why::Withdrawn("loses data".into()),
            Some("v0.2.1"),
        ),
        (
            "below the floor",
            unchanged(),
            Row {
                floor: Some("v0.9.0"),
                ..MACHINE
            },
            Why::BelowFloor(version("v0.9.0")),
            None,
        ),
        (
            "at the floor",
            unchanged(),
            Row {
                floor: Some("v0.3.0"),
                ..MACHINE
            },
            Why::Chosen,
            Some("v0.3.0"),
        ),
        (
            "before what is installed",
            changed(|it| it.date = date(10)),
            Row {
                created: Some(date(50)),
                ..MACHINE
            },
            Why::BeforeInstalled(date(50)),
            Some("v0.2.1"),
        ),
    ]);
}

/// The release in between was built after the newest one had come into the channel.
#[test]
fn the_date_of_a_release_of_the_channel_is_in_nobody_s_way() {
    let list = list_of(&["v0.3.0", "v0.2.0"]);
    let (own, other) = (release("v0.2.0").digest, Digest::of(b"mine"));
    for (digest, goes_to) in [(own, Some("v0.3.0")), (other, None)] {
        let (version, reasons) = chosen(
            &list,
            &Row {
                digest: Some(digest),
                created: Some(date(5000)),
                ..MACHINE
            },
        );
        assert_eq!(version.as_deref(), goes_to, "{reasons:?}");
    }
}

#[test]
fn labels_ranges_and_failures_decide() {
    check([
        (
            "for other machines",
            changed(|it| it.only_for = vec!["canary=yes".parse().unwrap()]),
            MACHINE,
            Why::OtherMachines,
            Some("v0.2.1"),
        ),
        (
            "for this machine",
            changed(|it| {
                it.only_for = vec!["canary=yes".parse().unwrap(), "site=lab".parse().unwrap()];
            }),
            Row {
                labels: &["site=lab"],
                ..MACHINE
            },
            Why::Chosen,
            Some("v0.3.0"),
        ),
        (
            "it may not follow",
            changed(|it| it.upgrades_from = Some(">=v0.2.1".parse().unwrap())),
            MACHINE,
            Why::MayNotFollow,
            Some("v0.2.1"),
        ),
        (
            "it failed here",
            unchanged(),
            Row {
                held: &["v0.3.0"],
                ..MACHINE
            },
            Why::Held("it failed".into()),
            Some("v0.2.1"),
        ),
        (
            "both failed here",
            unchanged(),
            Row {
                held: &["v0.3.0", "v0.2.1"],
                ..MACHINE
            },
            Why::Held("it failed".into()),
            None,
        ),
    ]);
}

/// Every combination of the objections that can hold at once: exactly a release without any is chosen, and the newest of them.
#[test]
fn a_release_is_chosen_exactly_if_nothing_is_against_it() {
    let changes: [fn(&mut Release); 5] = [
        |it| it.architecture = "arm64".into(),
        |it| it.withdrawn = Some("bad".into()),
        |it| it.only_for = vec!["canary=yes".parse().unwrap()],
        |it| it.upgrades_from = Some("v0.1.0".parse().unwrap()),
        |it| it.date = date(0),
    ];
    let row = Row {
        created: Some(date(50)),
        held: &["v0.4.0"],
        ..MACHINE
    };
    for mask in 0..1_u32 << (2 * changes.len()) {
        let mut list = list_of(&["v0.5.0", "v0.4.0", "v0.3.0", "v0.1.0"]);
        for (bit, change) in changes.iter().enumerate() {
            for (place, release) in [(0, bit), (2, bit + changes.len())] {
                if mask & (1 << release) != 0 {
                    change(&mut list.releases[place]);
                }
            }
        }
        let is_free = |place: usize| (mask >> (place * changes.len())) & 0b11111 == 0;
        let expected = match (is_free(0), is_free(1)) {
            (true, _) => Some("v0.5.0"),
            (false, true) => Some("v0.3.0"),
            (false, false) => None,
        };
        let (version, reasons) = chosen(&list, &row);
        assert_eq!(version.as_deref(), expected, "{mask:b}: {reasons:?}");
        let chosen = reasons.iter().filter(|why| **why == Why::Chosen).count();
        assert_eq!(chosen, usize::from(expected.is_some()), "{mask:b}");
        assert_eq!(reasons.len(), list.releases.len());
    }
}

#[test]
fn a_release_is_reached_over_another_one() {
    let mut list = list_of(&["v0.4.0", "v0.3.0"]);
    list.releases[0].upgrades_from = Some(">=v0.3.0 <v0.4.0".parse().unwrap());
    for (running, goes_to) in [
        ("v0.2.0", Some("v0.3.0")),
        ("v0.3.0", Some("v0.4.0")),
        ("v0.4.0", None),
    ] {
        let (version, _) = chosen(&list, &Row { running, ..MACHINE });
        assert_eq!(version.as_deref(), goes_to, "{running}");
    }
}

#[test]
fn passed_releases_name_the_chosen_one() {
    let list = list_of(&["v0.4.0", "v0.3.0"]);
    let (_, reasons) = chosen(&list, &MACHINE);
    assert_eq!(reasons, [Why::Chosen, Why::Passed(version("v0.4.0"))]);
}
