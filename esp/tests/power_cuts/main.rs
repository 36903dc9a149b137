//! The promise of this crate, for every plan: wherever the power goes, the loader takes an entry whose UKI is whole, and the same change
//! can be made afterwards.

#![allow(clippy::unwrap_used, clippy::panic)]

mod disk;
mod failing;

use std::io::{self, Cursor, Read};

use disk::Disk;
use failing::{Failing, failures};
use instar_esp::{
    Asset, Cause, DEFAULT_SLOTS, Failed, FileDigest, NewSystem, NewVersion, Plan, Refused, Slots,
    State, Step, Volume, add, bless, forget, install, offer_loader, paths, perform, prefer,
    take_loader, tidy,
};

/// The UKIs of these tests: a file with another content is damaged.
fn uki(version: &str) -> Vec<u8> {
    format!("the whole UKI of {version}").into_bytes()
}

const VERSIONS: [&str; 5] = ["v0.1.0", "v0.2.0", "v0.3.0", "v0.4.0", "v0.5.0"];
const LOADER: &[u8] = b"systemd-boot";
const NEXT_LOADER: &[u8] = b"the next systemd-boot";

fn new_version(version: &str) -> NewVersion {
    NewVersion {
        version: version.parse().unwrap(),
        uki: FileDigest::of(&uki(version)),
    }
}

fn new_system() -> NewSystem {
    NewSystem {
        version: new_version("v0.1.0"),
        loader: FileDigest::of(LOADER),
        keys: vec![("PK.auth".into(), b"signed".to_vec())],
        enrol_everywhere: false,
    }
}

fn assets(version: &str) -> impl Fn(Asset) -> io::Result<Box<dyn Read>> {
    let uki = uki(version);
    move |asset| {
        Ok(match asset {
            Asset::Uki => Box::new(Cursor::new(uki.clone())),
            Asset::Loader => Box::new(Cursor::new(LOADER)),
        })
    }
}

fn read(disk: &Disk) -> State {
    State::read(disk).unwrap()
}

/// A change, computed anew from the present state.
type Change<'a> = &'a dyn Fn(&State) -> Result<Plan, Refused>;

/// Makes the change, and cuts the power before each step and after the last one. Returns the disk after an undisturbed run and the number
/// of disks checked.
fn cut_everywhere(start: &Disk, version: &str, change: Change<'_>) -> (Disk, usize) {
    let plan = change(&read(start)).unwrap();
    let mut judged = 0;
    for length in 0..=plan.steps.len() {
        let mut disk = start.clone();
        let begun = Plan {
            steps: plan.steps[..length].to_vec(),
        };
        perform(&begun, &mut disk, assets(version)).unwrap();
        for cut in disk.after_power_cuts() {
            judged += 1;
            check(&cut, &begun);
            check_repeated(cut, version, change, &begun);
        }
    }
    let mut disk = start.clone();
    perform(&plan, &mut disk, assets(version)).unwrap();
    (disk, judged)
}

/// Makes the change with every call failing in every way: it ends with an error, and wherever the power goes afterwards, the files for
/// firmware and loader are whole. Returns the number of failures.
fn fail_everywhere(start: &Disk, version: &str, change: Change<'_>) -> usize {
    let plan = change(&read(start)).unwrap();
    let mut failed = 0;
    for failure in failures() {
        for serves in 0.. {
            let mut failing = Failing::new(start.clone(), serves, failure);
            let outcome = perform(&plan, &mut failing, assets(version));
            if !failing.has_failed() {
                outcome.unwrap();
                break;
            }
            failed += 1;
            let error = outcome.expect_err("a failure that nobody told of");
            assert!(!error.to_string().is_empty());
            let disk = failing.into_disk();
            for cut in disk.after_power_cuts() {
                check(&cut, &plan);
            }
            check_repeated(disk, version, change, &plan);
        }
    }
    failed
}

/// Checks that the files for firmware and loader are whole.
fn check(disk: &Disk, begun: &Plan) {
    let state = read(disk);
    let next = state
        .next_boot()
        .unwrap_or_else(|| panic!("nothing to boot after\n{begun}\n{disk:?}"));
    let content = disk.read(&next.slot.uki_path()).unwrap();
    assert!(
        VERSIONS.iter().any(|version| uki(version) == content),
        "{} is not whole after\n{begun}",
        next.slot
    );
    let loader = disk.read(paths::LOADER).unwrap();
    assert!(
        loader == LOADER || loader == NEXT_LOADER,
        "no loader after\n{begun}"
    );
}

/// Checks that the change is made, or can be made now; either way without leftovers.
fn check_repeated(mut disk: Disk, version: &str, change: Change<'_>, begun: &Plan) {
    // Entries that the change was to make or remove may be missing already.
    let Ok(plan) = change(&read(&disk)) else {
        return;
    };
    perform(&plan, &mut disk, assets(version))
        .unwrap_or_else(|failed| panic!("{failed}: {} after\n{begun}", failed.cause));
    check(&disk, begun);
    assert_eq!(
        tidy(&read(&disk)),
        Plan::default(),
        "left over after\n{begun}"
    );
}

/// A disk with v0.1.0 installed.
fn installed() -> Disk {
    let mut disk = Disk::new();
    let plan = install(&read(&disk), &new_system()).unwrap();
    perform(&plan, &mut disk, assets("v0.1.0")).unwrap();
    disk
}

/// The entries, in the order in which the loader takes them.
fn order(disk: &Disk) -> Vec<String> {
    read(disk)
        .boot_order()
        .iter()
        .map(|entry| format!("{} {}", entry.name, entry.slot))
        .collect()
}

fn upgraded(disk: &Disk, version: &str) -> Disk {
    let mut disk = disk.clone();
    let plan = add(&read(&disk), &new_version(version), None, DEFAULT_SLOTS).unwrap();
    perform(&plan, &mut disk, assets(version)).unwrap();
    disk
}

fn blessed(disk: &Disk, order: u32) -> Disk {
    let mut disk = disk.clone();
    let plan = bless(&read(&disk), order).unwrap();
    perform(&plan, &mut disk, assets("v0.1.0")).unwrap();
    disk
}

/// The disk after the loader has started an entry.
fn started(disk: &Disk) -> Disk {
    let mut disk = disk.clone();
    let state = read(&disk);
    let entry = state.next_boot().unwrap();
    if let Some(tries) = entry.name.tries {
        let mut counted = entry.clone();
        counted.name.tries = Some(tries.after_a_start());
        disk.remove(&entry.name.path()).unwrap();
        disk.create(&counted.name.path(), &mut Cursor::new(counted.text()))
            .unwrap();
        disk.sync_file(&counted.name.path()).unwrap();
        disk.sync_folder(paths::ENTRIES).unwrap();
    }
    disk
}

#[test]
fn an_installation_leaves_no_loader_that_finds_nothing() {
    let empty = Disk::new();
    let plan = install(&read(&empty), &new_system()).unwrap();
    for length in 0..=plan.steps.len() {
        let mut disk = empty.clone();
        let begun = Plan {
            steps: plan.steps[..length].to_vec(),
        };
        perform(&begun, &mut disk, assets("v0.1.0")).unwrap();
        for cut in disk.after_power_cuts() {
            // Missing or empty: the firmware goes on to the medium.
            let loader = cut.read(paths::LOADER).unwrap_or_default();
            assert_eq!(read(&cut).has_loader, !loader.is_empty());
            if !loader.is_empty() {
                check(&cut, &begun);
            }
        }
    }
    let disk = installed();
    assert_eq!(order(&disk), ["instar-1-v0.1.0.conf a"]);
    let config = disk.read(paths::LOADER_CONFIG).unwrap();
    assert_eq!(
        String::from_utf8(config).unwrap(),
        "timeout 0\neditor no\nauto-entries no\nauto-firmware no\nsecure-boot-enroll if-safe\n"
    );
    assert!(matches!(
        install(&read(&disk), &new_system()),
        Err(Refused::InUse(_))
    ));
}

#[test]
fn an_upgrade_survives_every_power_cut() {
    let change = |state: &State| add(state, &new_version("v0.2.0"), None, DEFAULT_SLOTS);
    let (disk, judged) = cut_everywhere(&installed(), "v0.2.0", &change);
    assert_eq!(
        order(&disk),
        ["instar-2-v0.2.0+3.conf b", "instar-1-v0.1.0.conf a"]
    );
    assert!(judged > 50, "only {judged} disks");
}

#[test]
fn a_full_partition_survives_every_power_cut() {
    let mut disk = installed();
    for (number, version) in (2..).zip(["v0.2.0", "v0.3.0"]) {
        disk = blessed(&upgraded(&disk, version), number);
    }
    let change = |state: &State| add(state, &new_version("v0.4.0"), None, DEFAULT_SLOTS);
    let (disk, judged) = cut_everywhere(&disk, "v0.4.0", &change);
    assert_eq!(
        order(&disk),
        [
            "instar-4-v0.4.0+3.conf a",
            "instar-3-v0.3.0.conf c",
            "instar-2-v0.2.0.conf b"
        ]
    );
    assert!(judged > 60, "only {judged} disks");
}

#[test]
fn a_blessing_survives_every_power_cut() {
    let disk = started(&upgraded(&installed(), "v0.2.0"));
    let (disk, _) = cut_everywhere(&disk, "v0.2.0", &|state| bless(state, 2));
    assert_eq!(
        order(&disk),
        ["instar-2-v0.2.0.conf b", "instar-1-v0.1.0.conf a"]
    );
    assert!(bless(&read(&disk), 2).unwrap().is_empty());
    assert_eq!(bless(&read(&disk), 3), Err(Refused::NoEntry(3)));
}

#[test]
fn going_back_and_forth_survives_every_power_cut() {
    let disk = blessed(&upgraded(&installed(), "v0.2.0"), 2);
    // Back to a version that was good once, which is tried again: if it fails now, the newer one boots.
    let (disk, _) = cut_everywhere(&disk, "v0.1.0", &|state| prefer(state, 1));
    assert_eq!(
        order(&disk),
        ["instar-3-v0.1.0+3.conf a", "instar-2-v0.2.0.conf b"]
    );
    // And forth before it is blessed: the last known good version needs no trial.
    let (forth, _) = cut_everywhere(&disk, "v0.2.0", &|state| prefer(state, 2));
    assert_eq!(
        order(&forth),
        ["instar-4-v0.2.0.conf b", "instar-3-v0.1.0+3.conf a"]
    );
}

#[test]
fn forgetting_survives_every_power_cut() {
    let disk = upgraded(&installed(), "v0.2.0");
    let (disk, _) = cut_everywhere(&disk, "v0.2.0", &|state| forget(state, 2));
    assert_eq!(order(&disk), ["instar-1-v0.1.0.conf a"]);
    assert_eq!(read(&disk).ukis.len(), 1);
    assert!(matches!(
        forget(&read(&disk), 1),
        Err(Refused::LastKnownGood(_))
    ));
}

#[test]
fn every_change_survives_every_failing_call() {
    let upgraded_once = upgraded(&installed(), "v0.2.0");
    let good_twice = blessed(&upgraded_once, 2);
    let mut full = good_twice.clone();
    full = blessed(&upgraded(&full, "v0.3.0"), 3);
    let add_version =
        |version| move |state: &State| add(state, &new_version(version), None, DEFAULT_SLOTS);
    let scenarios: [(&Disk, &str, Change<'_>); 5] = [
        (&installed(), "v0.2.0", &add_version("v0.2.0")),
        (&full, "v0.4.0", &add_version("v0.4.0")),
        (&started(&upgraded_once), "v0.2.0", &|state| bless(state, 2)),
        (&good_twice, "v0.1.0", &|state| prefer(state, 1)),
        (&upgraded_once, "v0.2.0", &|state| forget(state, 2)),
    ];
    let failed: usize = scenarios
        .into_iter()
        .map(|(start, version, change)| fail_everywhere(start, version, change))
        .sum();
    assert!(failed > 400, "only {failed} failures");
}

#[test]
fn another_loader_survives_every_power_cut() {
    let start = installed();
    let next = FileDigest::of(NEXT_LOADER);
    let open = |_| Ok(Box::new(Cursor::new(NEXT_LOADER)) as Box<dyn Read>);
    let offer = offer_loader(&read(&start), next).unwrap();
    let mut offered = start.clone();
    perform(&offer, &mut offered, open).unwrap();
    assert_eq!(offered.read(paths::NEW_LOADER).unwrap(), NEXT_LOADER);
    let take = take_loader(&read(&offered)).unwrap();
    for (start, plan) in [(&start, offer), (&offered, take)] {
        for length in 0..=plan.steps.len() {
            let mut disk = start.clone();
            let begun = Plan {
                steps: plan.steps[..length].to_vec(),
            };
            perform(&begun, &mut disk, open).unwrap();
            for mut cut in disk.after_power_cuts() {
                check(&cut, &begun);
                let again = offer_loader(&read(&cut), next).unwrap();
                perform(&again, &mut cut, open).unwrap();
                let again = take_loader(&read(&cut)).unwrap();
                perform(&again, &mut cut, open).unwrap();
                assert_eq!(cut.read(paths::LOADER).unwrap(), NEXT_LOADER);
                assert!(!read(&cut).has_new_loader);
            }
        }
    }
    // A loader that was not taken is removed.
    let plan = tidy(&read(&offered));
    perform(&plan, &mut offered, open).unwrap();
    assert!(!read(&offered).has_new_loader);
    let nowhere = read(&Disk::new());
    assert_eq!(offer_loader(&nowhere, next), Err(Refused::NoLoader));
    assert_eq!(take_loader(&read(&start)), Err(Refused::NoLoader));
}

#[test]
fn three_failed_starts_lead_back_and_free_the_slot() {
    let mut disk = upgraded(&installed(), "v0.2.0");
    for expected in ["instar-2-v0.2.0+2-1.conf b", "instar-2-v0.2.0+1-2.conf b"] {
        disk = started(&disk);
        assert_eq!(order(&disk)[0], expected);
    }
    disk = started(&disk);
    assert_eq!(
        order(&disk),
        ["instar-1-v0.1.0.conf a", "instar-2-v0.2.0+0-3.conf b"]
    );
    // The empty slot first, then the one with the failed version.
    disk = upgraded(&disk, "v0.3.0");
    disk = blessed(&disk, 3);
    assert_eq!(order(&disk)[0], "instar-3-v0.3.0.conf c");
    disk = upgraded(&disk, "v0.4.0");
    assert_eq!(
        order(&disk),
        [
            "instar-4-v0.4.0+3.conf b",
            "instar-3-v0.3.0.conf c",
            "instar-1-v0.1.0.conf a"
        ]
    );
}

#[test]
fn the_last_known_good_version_and_the_running_one_are_never_written_to() {
    // v0.2.0 runs and is not blessed; v0.1.0 is the last known good one.
    let disk = started(&upgraded(&installed(), "v0.2.0"));
    let state = read(&disk);
    let two = Slots::new(2).unwrap();
    let new = new_version("v0.3.0");
    assert_eq!(add(&state, &new, Some(2), two), Err(Refused::NoSlot(2)));
    // The running version is not known.
    let plan = add(&state, &new, None, two).unwrap();
    assert!(
        plan.steps
            .contains(&Step::Remove("EFI/instar/b.efi".into()))
    );
    for plan in [add(&state, &new, Some(2), DEFAULT_SLOTS).unwrap(), plan] {
        let touches_a = plan
            .steps
            .iter()
            .any(|step| step.to_string().contains("EFI/instar/a.efi"));
        assert!(!touches_a, "{plan}");
    }
}

#[test]
fn an_older_version_can_come_after_a_newer_one() {
    let mut disk = Disk::new();
    let mut system = new_system();
    system.version = new_version("v0.3.0");
    let plan = install(&read(&disk), &system).unwrap();
    perform(&plan, &mut disk, assets("v0.3.0")).unwrap();
    disk = upgraded(&disk, "v0.1.0");
    assert_eq!(
        order(&disk),
        ["instar-2-v0.1.0+3.conf b", "instar-1-v0.3.0.conf a"]
    );
}

#[test]
fn a_uki_that_does_not_fit_is_refused_and_one_that_is_different_leaves_nothing() {
    let mut disk = installed();
    let new = new_version("v0.2.0");
    let mut huge = new.clone();
    huge.uki.bytes = 2 << 30;
    assert!(matches!(
        add(&read(&disk), &huge, None, DEFAULT_SLOTS),
        Err(Refused::NoRoom { .. })
    ));

    let plan = add(&read(&disk), &new, None, DEFAULT_SLOTS).unwrap();
    let before = read(&disk);
    let Failed { step, cause } = perform(&plan, &mut disk, assets("v0.3.0")).unwrap_err();
    assert!(step.starts_with("read EFI/instar/b.efi back"), "{step}");
    assert!(matches!(cause, Cause::Different { .. }), "{cause}");
    assert_eq!(read(&disk), before);

    // The disk fills up unexpectedly.
    disk.capacity = disk.capacity - disk.free_bytes().unwrap() + 5;
    let Failed { cause, .. } = perform(&plan, &mut disk, assets("v0.2.0")).unwrap_err();
    assert!(
        matches!(&cause, Cause::Io(error) if error.kind() == io::ErrorKind::StorageFull),
        "{cause}"
    );
    assert_eq!(order(&disk), order(&installed()));
    assert_eq!(read(&disk).ukis.len(), 1);
}

#[test]
fn a_file_of_another_is_not_removed_after_a_failure() {
    let mut disk = installed();
    let plan = add(&read(&disk), &new_version("v0.2.0"), None, DEFAULT_SLOTS).unwrap();
    // The plan is older than the disk.
    disk.create("EFI/instar/b.efi", &mut Cursor::new("another's"))
        .unwrap();
    let failed = perform(&plan, &mut disk, assets("v0.2.0")).unwrap_err();
    assert!(
        failed.to_string().contains("write EFI/instar/b.efi"),
        "{failed}"
    );
    assert_eq!(disk.read("EFI/instar/b.efi").unwrap(), b"another's");
}
