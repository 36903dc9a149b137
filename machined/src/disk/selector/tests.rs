#![allow(clippy::unwrap_used, clippy::panic)]
use super::*;
use crate::disk::discover::{
    discover,
    tests::{fixture, machine},
};

fn select(selector: &DiskSelector) -> Result<String, String> {
    let sys = machine();
    let disks = discover(sys.path()).unwrap();
    super::select(selector, &disks, |disk| disk.name == "vda")
        .map(|disk| disk.name.clone())
        .map_err(|error| error.to_string())
}

fn cel(text: &str) -> Result<String, String> {
    let selector = DiskSelector::Cel(text.to_owned());
    check(&selector).map_err(|error| error.to_string())?;
    select(&selector)
}

#[test]
fn paths_name_devices_and_links() {
    assert_eq!(
        select(&DiskSelector::Path("/dev/vda".into())).unwrap(),
        "vda"
    );
    assert_eq!(
        select(&DiskSelector::Path("/dev/loop0".into())).unwrap(),
        "loop0"
    );
    assert_eq!(
        select(&DiskSelector::Path("/dev/disk/by-id/wwn-0x50014ee2".into())).unwrap(),
        "sda"
    );
    let error = select(&DiskSelector::Path("/dev/vdb".into())).unwrap_err();
    assert!(
        error.contains("/dev/vdb") && error.contains("/dev/nvme0n1 (931.5 GiB, nvme"),
        "{error}"
    );
    assert!(
        select(&DiskSelector::Path("/dev/vda1".into())).is_err(),
        "a partition is no disk"
    );
}

#[test]
fn expressions_see_what_the_documents_promise() {
    for (text, disk) in [
        ("disk.dev_path == \"/dev/sda\"", "sda"),
        ("disk.transport == \"nvme\"", "nvme0n1"),
        (
            "disk.size > 10u * GiB && disk.rotational && disk.transport == 'sata'",
            "sda",
        ),
        ("disk.size >= 1u * TB && !disk.rotational", "nvme0n1"),
        ("system_disk", "vda"),
        (
            "disk.serial == 'root disk' && !disk.readonly && !disk.cdrom",
            "vda",
        ),
        ("glob('WDC*', disk.model)", "sda"),
        ("'/dev/disk/by-id/virtio-root_disk' in disk.symlinks", "vda"),
        (
            "disk.bus_path.startsWith('/pci0000:00/0000:00:05.0')",
            "nvme0n1",
        ),
        (
            "disk.sector_size == 4096u && disk.uuid == 'c4d2' && disk.wwid.startsWith('eui.')",
            "nvme0n1",
        ),
    ] {
        match cel(text) {
            Ok(found) => assert_eq!(found, disk, "{text}"),
            Err(error) => panic!("{text}: {error}"),
        }
    }
}

#[test]
fn none_and_several_are_errors_that_list_candidates() {
    let error = cel("disk.size < 1u * MiB").unwrap_err();
    assert!(
        error.contains("no disk matches") && error.contains("/dev/sda"),
        "{error}"
    );
    assert!(
        !error.contains("loop0"),
        "what software made is no candidate: {error}"
    );
    let error = cel("disk.rotational").unwrap_err();
    assert!(
        error.contains("more than one") && error.contains("/dev/sda") && error.contains("/dev/vda"),
        "{error}"
    );
    assert!(!error.contains("nvme"), "{error}");
}

#[test]
fn bad_expressions_are_errors() {
    for text in [
        "disk.size >",
        "",
        "disk.size + 1u",
        "nope == 1",
        "disk.nope == 'x'",
        "1 / 0 == 1",
        "disk.size > 'x'",
    ] {
        assert!(cel(text).is_err(), "{text}");
    }
    let deep = "(".repeat(5000) + "true" + &")".repeat(5000);
    assert!(cel(&deep).is_err(), "nesting is bounded");
    assert!(cel(&"!".repeat(20_001)).is_err());
}

#[test]
fn the_largest_expressions_fit_the_stack() {
    let one = "disk.transport == 'nvme'";
    for text in [
        "(".repeat(40) + one + &")".repeat(40),
        "!".repeat(38) + "(" + one + ")",
        format!("{one} && 0 < 1{}", "+1".repeat(490)),
        format!("{one}{}", "&&true".repeat(160)),
    ] {
        assert_eq!(cel(&text).unwrap(), "nvme0n1", "{text}");
    }
    assert!(cel(&format!("disk{}", ".a".repeat(500))).is_err());
}

#[test]
fn fields_must_all_fit() {
    let fields = |fields: DiskFields| select(&DiskSelector::Fields(Box::new(fields)));
    let any = DiskFields::default;
    assert_eq!(
        fields(DiskFields {
            model: Some("WDC*".into()),
            ..any()
        })
        .unwrap(),
        "sda"
    );
    assert_eq!(
        fields(DiskFields {
            kind: Some(DiskKind::Nvme),
            ..any()
        })
        .unwrap(),
        "nvme0n1"
    );
    assert_eq!(
        fields(DiskFields {
            size: Some("<= 64GiB".parse().unwrap()),
            ..any()
        })
        .unwrap(),
        "vda"
    );
    assert_eq!(
        fields(DiskFields {
            bus_path: Some("*/ata1/*".into()),
            ..any()
        })
        .unwrap(),
        "sda"
    );
    assert!(
        fields(DiskFields {
            serial: Some("x".into()),
            ..any()
        })
        .unwrap_err()
        .contains("no disk matches")
    );
    assert!(fields(any()).unwrap_err().contains("more than one"));
}

#[test]
fn a_disk_that_is_attached_twice_is_one_disk() {
    let path = |name: &str| format!("pci0000:00/host0/block/{name}");
    let selector = DiskSelector::Cel("disk.size > 1u * MiB".to_owned());
    for (serial, is_one) in [("S64", true), ("S65", false)] {
        let attributes = |serial| {
            [
                ("size", "131072"),
                ("serial", serial),
                ("wwid", "naa.5000c500"),
            ]
        };
        let (first, second) = (attributes("S64"), attributes(serial));
        let sys = fixture(&[(&path("sda"), &first), (&path("sdb"), &second)]);
        let disks = discover(sys.path()).unwrap();
        let found = super::select(&selector, &disks, |_| false).ok();
        let name = found.map(|disk| disk.name.as_str());
        assert_eq!(name, is_one.then_some("sda"), "{serial}");
    }
}
