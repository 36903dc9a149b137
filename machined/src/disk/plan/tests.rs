#![allow(clippy::unwrap_used, clippy::panic)]
use super::*;
use crate::disk::{
    discover::{discover, tests::fixture},
    layout::LAYOUT,
    probe::Signature,
    table::Partition,
};

const MIB: u64 = 1024 * 1024;

fn disk(mib: u64, more: &[(&str, &str)]) -> Disk {
    let sectors = (mib * 2048).to_string();
    let mut files = vec![
        ("size", sectors.as_str()),
        ("ro", "0"),
        ("queue/logical_block_size", "512"),
    ];
    files.retain(|(name, _)| more.iter().all(|(other, _)| other != name));
    files.extend(more);
    let sys = fixture(&[("pci0000:00/0000:00:02.0/virtio1/block/vda", &files)]);
    discover(sys.path()).unwrap().remove(0)
}

fn ours(length: u64) -> Content {
    let kind = gpt::partition_types::LINUX_FS.guid;
    let partition = Partition {
        number: 1,
        label: EPHEMERAL.to_owned(),
        kind,
        guid: uuid::Uuid::from_u128(1),
        start: ALIGNMENT,
        length,
    };
    Content::Ours(Table {
        guid: uuid::Uuid::from_u128(2),
        partitions: vec![partition],
        needs_repair: false,
    })
}

fn wish(wipe: bool) -> DiskWish<'static> {
    DiskWish {
        layout: LAYOUT,
        wipe,
    }
}

#[test]
fn a_blank_disk_gets_the_layout() {
    let plan = plan(&disk(1024, &[]), &Content::Blank, &wish(false)).unwrap();
    assert_eq!(
        plan.to_string(),
        "/dev/vda (1 GiB): write a new partition table\n  1 EPHEMERAL 1022 MiB at 1 MiB"
    );
}

#[test]
fn ours_is_reused_even_when_the_config_says_wipe() {
    for wipe in [false, true] {
        let plan = plan(&disk(1024, &[]), &ours(1022 * MIB), &wish(wipe)).unwrap();
        assert_eq!(
            plan.to_string(),
            "/dev/vda (1 GiB): use what is there\n  1 EPHEMERAL 1022 MiB at 1 MiB"
        );
        assert!(matches!(
            plan.action,
            Action::Reuse {
                rewrite_table: false,
                grow: None,
                ..
            }
        ));
    }
}

#[test]
fn a_grown_disk_is_used_up() {
    let plan = plan(&disk(2048, &[]), &ours(1022 * MIB), &wish(false)).unwrap();
    assert!(matches!(
        plan.action,
        Action::Reuse {
            rewrite_table: true,
            grow: Some(1),
            ..
        }
    ));
    assert_eq!(plan.ephemeral().unwrap().length, 2046 * MIB);
    assert!(plan.to_string().contains("partition 1 grows"));
}

#[test]
fn a_broken_copy_is_repaired() {
    let Content::Ours(mut table) = ours(1022 * MIB) else {
        panic!()
    };
    table.needs_repair = true;
    let plan = plan(&disk(1024, &[]), &Content::Ours(table), &wish(false)).unwrap();
    assert!(matches!(
        plan.action,
        Action::Reuse {
            rewrite_table: true,
            grow: None,
            ..
        }
    ));
}

#[test]
fn a_foreign_disk_is_refused_unless_wiping_is_asked_for() {
    for content in [
        Content::Signature(Signature::Xfs),
        Content::Mbr,
        Content::BrokenGpt,
        Content::Unknown,
    ] {
        let error = plan(&disk(1024, &[]), &content, &wish(false))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("/dev/vda") && error.contains("wipe"),
            "{error}"
        );
        let plan = plan(&disk(1024, &[]), &content, &wish(true)).unwrap();
        assert!(
            plan.to_string().contains(&format!("DESTROYING {content}")),
            "{plan}"
        );
    }
}

#[test]
fn unfit_disks_are_refused() {
    let refused = |disk: Disk| {
        plan(&disk, &Content::Blank, &wish(true))
            .unwrap_err()
            .to_string()
    };
    assert!(refused(disk(1024, &[("ro", "1")])).contains("read-only"));
    assert!(refused(disk(1024, &[("queue/logical_block_size", "520")])).contains("520"));
    for mib in [1, 2, 65] {
        assert!(refused(disk(mib, &[])).contains("larger disk"), "{mib} MiB");
    }
    assert!(plan(&disk(66, &[]), &Content::Blank, &wish(false)).is_ok());
}
