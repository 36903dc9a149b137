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

/// A disk with `EFI`, `STATE`, and an `EPHEMERAL` of `length` bytes.
fn ours(length: u64) -> Content {
    let sizes = [128 * MIB, 24 * MIB, length];
    let mut start = ALIGNMENT;
    let partitions = (1..)
        .zip(LAYOUT)
        .zip(sizes)
        .map(|((number, spec), length)| {
            let partition = Partition {
                number,
                label: spec.label.as_str().to_owned(),
                kind: spec.kind.guid,
                guid: uuid::Uuid::from_u128(number.into()),
                start,
                length,
            };
            start += length;
            partition
        });
    Content::Ours(Table {
        guid: uuid::Uuid::from_u128(9),
        partitions: partitions.collect(),
        needs_repair: false,
    })
}

#[test]
fn a_blank_disk_gets_the_layout() {
    let plan = plan(&disk(1024, &[]), &Content::Blank, Takeover::Refuse).unwrap();
    assert_eq!(
        plan.to_string(),
        "/dev/vda (1 GiB): write a new partition table\n  1 EFI 128 MiB at 1 MiB\n  2 STATE 24 MiB at 129 MiB\n  3 EPHEMERAL 870 MiB at 153 MiB"
    );
}

#[test]
fn ours_is_reused_even_when_the_config_says_wipe() {
    for takeover in [Takeover::Refuse, Takeover::Wipe] {
        let plan = plan(&disk(1024, &[]), &ours(870 * MIB), takeover).unwrap();
        assert_eq!(
            plan.to_string(),
            "/dev/vda (1 GiB): use what is there\n  1 EFI 128 MiB at 1 MiB\n  2 STATE 24 MiB at 129 MiB\n  3 EPHEMERAL 870 MiB at 153 MiB"
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
    let plan = plan(&disk(2048, &[]), &ours(870 * MIB), Takeover::Refuse).unwrap();
    assert!(matches!(
        plan.action,
        Action::Reuse {
            rewrite_table: true,
            grow: Some(3),
            ..
        }
    ));
    assert_eq!(plan.partition(Label::Ephemeral).unwrap().length, 1894 * MIB);
    assert!(plan.to_string().contains("partition 3 grows"));
}

#[test]
fn a_broken_copy_is_repaired() {
    let Content::Ours(mut table) = ours(870 * MIB) else {
        panic!()
    };
    table.needs_repair = true;
    let plan = plan(&disk(1024, &[]), &Content::Ours(table), Takeover::Refuse).unwrap();
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
        let error = plan(&disk(1024, &[]), &content, Takeover::Refuse)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("/dev/vda") && error.contains("wipe"),
            "{error}"
        );
        let plan = plan(&disk(1024, &[]), &content, Takeover::Wipe).unwrap();
        assert!(
            plan.to_string().contains(&format!("DESTROYING {content}")),
            "{plan}"
        );
    }
}

#[test]
fn unfit_disks_are_refused() {
    let refused = |disk: Disk| {
        plan(&disk, &Content::Blank, Takeover::Wipe)
            .unwrap_err()
            .to_string()
    };
    assert!(refused(disk(1024, &[("ro", "1")])).contains("read-only"));
    assert!(refused(disk(1024, &[("queue/logical_block_size", "520")])).contains("520"));
    for mib in [1, 2, 217] {
        assert!(refused(disk(mib, &[])).contains("larger disk"), "{mib} MiB");
    }
    assert!(plan(&disk(218, &[]), &Content::Blank, Takeover::Refuse).is_ok());
}

#[test]
fn what_a_disk_image_leaves_out_is_added_behind_it() {
    let Content::Ours(mut table) = ours(0) else {
        panic!()
    };
    table.partitions.pop();
    let found = Content::Ours(table);
    let plan = plan(&disk(1024, &[]), &found, Takeover::Refuse).unwrap();
    assert_eq!(
        plan.to_string(),
        "/dev/vda (1 GiB): use what is there, add what is missing\n  1 EFI 128 MiB at 1 MiB\n  2 STATE 24 MiB at 129 MiB\n  3 EPHEMERAL 870 MiB at 153 MiB"
    );
    let kept = |label| plan.partition(label).unwrap().guid.is_some();
    assert!(kept(Label::State) && !kept(Label::Ephemeral));
}

#[test]
fn another_layout_is_refused_unless_wiping_is_asked_for() {
    let Content::Ours(mut table) = ours(870 * MIB) else {
        panic!()
    };
    table.partitions.remove(1);
    let found = Content::Ours(table);
    let error = plan(&disk(1024, &[]), &found, Takeover::Refuse).unwrap_err();
    assert!(error.to_string().contains("not STATE"), "{error}");
    let plan = plan(&disk(1024, &[]), &found, Takeover::Wipe).unwrap();
    assert!(
        plan.to_string()
            .contains("DESTROYING partitions of Instar's"),
        "{plan}"
    );
}
