//! The firmware's boot order (UEFI specification 2.10, 3.1): the loader must be in it once per try, plus once.
//!
//! A UKI that the firmware refuses ends the loader, and the firmware goes on with the next entry of its order: if there is only one entry
//! for the loader, that is a prompt, or the next disk. With four, the loader counts a version's three tries down and starts the one before.
//! The firmware may forget its variables, and other systems write to them: missing ones are written again. Without them only the removable
//! path is left, which is one try per power-on.

use std::collections::BTreeMap;

use crate::{name::TRIES, volume::paths};

/// Number of entries for the loader in the order.
pub const ENTRIES: usize = TRIES as usize + 1;
/// The description that the firmware shows for our entries, and by which we recognise them.
pub const DESCRIPTION: &str = "Instar";
/// The namespace of the variables.
pub const VENDOR: &str = "8be4df61-93ca-11d2-aa0d-00e098032b8c";
/// The attributes of the variables: kept over reboots, for firmware and system. efivarfs stores them as four bytes before the value.
pub const ATTRIBUTES: u32 = 7;
/// The description of an entry for a loader that is to be started once.
const NEXT_DESCRIPTION: &str = "Instar's next loader";
/// The variable with the entry to start once, before the order.
pub const BOOT_NEXT: &str = "BootNext";
/// The variable with the order.
pub const BOOT_ORDER: &str = "BootOrder";

/// The loader's partition, as device paths describe it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Its number in the GPT, from 1.
    pub number: u32,
    /// Its first block.
    pub first_block: u64,
    /// Its number of blocks.
    pub blocks: u64,
    /// Its own GUID, as the GPT stores it.
    pub guid: [u8; 16],
}

/// A variable to write, or to remove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its name, such as `Boot0003`.
    pub name: String,
    /// Its new value; `None` removes it.
    pub value: Option<Vec<u8>>,
}

/// The changes that put the loader first, [`ENTRIES`] times; none if it already is. In this order: the boot order itself is written after
/// the entries that it names, and before any is removed.
///
/// `variables` are those of [`VENDOR`] by name; only `BootOrder` and `Boot####` matter.
#[must_use]
pub fn plan(variables: &BTreeMap<String, Vec<u8>>, partition: &Partition) -> Vec<Change> {
    let options: BTreeMap<u16, &Vec<u8>> = variables
        .iter()
        .filter_map(|(name, value)| Some((number(name)?, value)))
        .collect();
    let order: Vec<u16> = variables
        .get(BOOT_ORDER)
        .map(|value| {
            let pairs = value.chunks_exact(2);
            pairs
                .map(|pair| u16::from_le_bytes([pair[0], pair[1]]))
                .collect()
        })
        .unwrap_or_default();
    let wanted = load_option(partition);
    let mut ours: Vec<u16> = options
        .iter()
        .filter(|(_, value)| ***value == wanted)
        .map(|(number, _)| *number)
        .collect();
    ours.truncate(ENTRIES);

    let mut changes = Vec::new();
    let free = (0..=u16::MAX).filter(|number| !options.contains_key(number));
    for number in free.take(ENTRIES - ours.len()) {
        changes.push(Change {
            name: name(number),
            value: Some(wanted.clone()),
        });
        ours.push(number);
    }
    // Entries of an earlier installation, or superfluous ones: they would start something else, or nothing.
    let stale: Vec<u16> = options
        .iter()
        .filter(|(number, value)| is_instars(value) && !ours.contains(number))
        .map(|(number, _)| *number)
        .collect();
    let others = order
        .iter()
        .filter(|number| !ours.contains(number) && !stale.contains(number));
    let in_place = order
        .get(..ours.len())
        .is_some_and(|first| ours.iter().all(|number| first.contains(number)));
    let first = if in_place {
        &order[..ours.len()]
    } else {
        &ours
    };
    let new_order: Vec<u16> = first.iter().chain(others).copied().collect();
    if new_order != order {
        changes.push(Change {
            name: BOOT_ORDER.to_owned(),
            value: Some(new_order.into_iter().flat_map(u16::to_le_bytes).collect()),
        });
    }
    changes.extend(stale.into_iter().map(|number| Change {
        name: name(number),
        value: None,
    }));
    changes
}

/// The changes that make the firmware start [`paths::NEW_LOADER`] at the next boot only, before its order. If it cannot, it goes on with
/// the order.
#[must_use]
pub fn start_once(variables: &BTreeMap<String, Vec<u8>>, partition: &Partition) -> Vec<Change> {
    let used = |number: &u16| variables.contains_key(&name(*number));
    let ours = next_loaders(variables).next();
    let Some(number) = ours.or_else(|| (0..=u16::MAX).find(|number| !used(number))) else {
        return Vec::new();
    };
    let wanted = option(NEXT_DESCRIPTION, paths::NEW_LOADER, partition);
    vec![
        Change {
            name: name(number),
            value: Some(wanted),
        },
        Change {
            name: BOOT_NEXT.to_owned(),
            value: Some(number.to_le_bytes().to_vec()),
        },
    ]
}

/// The changes that clean up after [`start_once`]. The firmware itself removes `BootNext` before it starts anything.
#[must_use]
pub fn started_once(variables: &BTreeMap<String, Vec<u8>>) -> Vec<Change> {
    let removed = next_loaders(variables).map(|number| Change {
        name: name(number),
        value: None,
    });
    removed.collect()
}

/// The numbers of our entries for a loader that is to be started once.
fn next_loaders(variables: &BTreeMap<String, Vec<u8>>) -> impl Iterator<Item = u16> {
    variables
        .iter()
        .filter(|(_, value)| is_described(value, NEXT_DESCRIPTION))
        .filter_map(|(name, _)| number(name))
}

fn name(number: u16) -> String {
    format!("Boot{number:04X}")
}

fn number(name: &str) -> Option<u16> {
    let digits = name.strip_prefix("Boot").filter(|digits| {
        digits.len() == 4
            && digits
                .bytes()
                .all(|byte| byte.is_ascii_digit() || (b'A'..=b'F').contains(&byte))
    })?;
    u16::from_str_radix(digits, 16).ok()
}

/// The load option of the loader.
fn load_option(partition: &Partition) -> Vec<u8> {
    option(DESCRIPTION, paths::LOADER, partition)
}

/// An `EFI_LOAD_OPTION`: active, with a description, and a device path of partition and file.
fn option(description: &str, path: &str, partition: &Partition) -> Vec<u8> {
    let file = utf16(&format!("\\{}", path.replace('/', "\\")));
    // Hard drive: number, first block, blocks, GUID, and the formats of table and signature (GPT).
    let mut device_path = node(
        4,
        1,
        &[
            &partition.number.to_le_bytes()[..],
            &partition.first_block.to_le_bytes(),
            &partition.blocks.to_le_bytes(),
            &partition.guid,
            &[2, 2],
        ]
        .concat(),
    );
    device_path.extend(node(4, 4, &file));
    device_path.extend(node(0x7F, 0xFF, &[]));

    let mut option = 1_u32.to_le_bytes().to_vec();
    option.extend((device_path.len() as u16).to_le_bytes());
    option.extend(utf16(description));
    option.extend(device_path);
    option
}

/// A node of a device path; ours are some dozen bytes long.
fn node(kind: u8, subkind: u8, content: &[u8]) -> Vec<u8> {
    let mut node = vec![kind, subkind];
    node.extend((4 + content.len() as u16).to_le_bytes());
    node.extend(content);
    node
}

/// Whether a load option has our description, wherever its path leads.
fn is_instars(option: &[u8]) -> bool {
    is_described(option, DESCRIPTION)
}

fn is_described(option: &[u8], description: &str) -> bool {
    option
        .get(6..)
        .is_some_and(|rest| rest.starts_with(&utf16(description)))
}

/// UTF-16 with a NUL at the end.
fn utf16(text: &str) -> Vec<u8> {
    let units = text.encode_utf16().chain([0]);
    units.flat_map(u16::to_le_bytes).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const PARTITION: Partition = Partition {
        number: 1,
        first_block: 2048,
        blocks: 262_144,
        guid: [7; 16],
    };

    fn apply(variables: &mut BTreeMap<String, Vec<u8>>, changes: Vec<Change>) {
        for Change { name, value } in changes {
            match value {
                Some(value) => variables.insert(name, value),
                None => variables.remove(&name),
            };
        }
    }

    fn order(variables: &BTreeMap<String, Vec<u8>>) -> Vec<u16> {
        let pairs = variables[BOOT_ORDER].chunks_exact(2);
        pairs
            .map(|pair| u16::from_le_bytes(pair.try_into().unwrap()))
            .collect()
    }

    #[test]
    fn a_load_option_has_the_layout_of_the_specification() {
        let option = load_option(&PARTITION);
        assert_eq!(option[..6], [1, 0, 0, 0, 94, 0]);
        assert_eq!(option[6..20], *b"I\0n\0s\0t\0a\0r\0\0\0");
        let path = &option[20..];
        assert_eq!(path.len(), 94);
        assert_eq!(path[..8], [4, 1, 42, 0, 1, 0, 0, 0]);
        assert_eq!(
            path[8..24],
            [0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0]
        );
        assert_eq!(path[24..42], [[7; 16].as_slice(), &[2, 2]].concat());
        assert_eq!(path[42..46], [4, 4, 48, 0]);
        assert_eq!(path[46..90], utf16("\\EFI\\BOOT\\BOOTX64.EFI"));
        assert_eq!(path[90..], [0x7F, 0xFF, 4, 0]);
    }

    #[test]
    fn entries_come_first_once_per_try_and_once_more() {
        let mut variables = BTreeMap::from([
            ("Boot0000".to_owned(), b"setup".to_vec()),
            ("Boot0002".to_owned(), b"shell".to_vec()),
            ("BootCurrent".to_owned(), vec![0, 0]),
            (BOOT_ORDER.to_owned(), vec![0, 0, 2, 0]),
        ]);
        let changes = plan(&variables, &PARTITION);
        let names: Vec<&str> = changes.iter().map(|change| change.name.as_str()).collect();
        assert_eq!(
            names,
            ["Boot0001", "Boot0003", "Boot0004", "Boot0005", BOOT_ORDER]
        );
        apply(&mut variables, changes);
        assert_eq!(order(&variables), [1, 3, 4, 5, 0, 2]);
        assert_eq!(plan(&variables, &PARTITION), []);

        // The firmware puts its own disk entry first, and loses one of ours.
        variables.insert("Boot0006".to_owned(), b"disk".to_vec());
        variables.remove("Boot0004");
        variables.insert(BOOT_ORDER.to_owned(), vec![6, 0, 5, 0, 1, 0, 3, 0]);
        let changes = plan(&variables, &PARTITION);
        apply(&mut variables, changes);
        assert_eq!(order(&variables), [1, 3, 5, 4, 6]);

        // Any order of ours is fine.
        variables.insert(BOOT_ORDER.to_owned(), vec![4, 0, 5, 0, 1, 0, 3, 0, 6, 0]);
        assert_eq!(plan(&variables, &PARTITION), []);
    }

    #[test]
    fn another_loader_is_started_once_and_leaves_the_order_alone() {
        let mut variables = BTreeMap::from([("Boot0000".to_owned(), b"setup".to_vec())]);
        let changes = plan(&variables, &PARTITION);
        apply(&mut variables, changes);
        let before = order(&variables);
        for _ in 0..2 {
            let changes = start_once(&variables, &PARTITION);
            apply(&mut variables, changes);
            assert_eq!(variables[BOOT_NEXT], [5, 0]);
            assert_eq!(order(&variables), before);
            assert_eq!(plan(&variables, &PARTITION), []);
        }
        let file = utf16("\\EFI\\BOOT\\BOOTX64.NEW");
        let mut windows = variables["Boot0005"].windows(file.len());
        assert!(windows.any(|window| window == file));
        let changes = started_once(&variables);
        apply(&mut variables, changes);
        assert!(!variables.contains_key("Boot0005"));
        assert_eq!(started_once(&variables), []);
    }

    #[test]
    fn those_of_another_partition_go() {
        let mut variables = BTreeMap::new();
        let old = Partition {
            guid: [9; 16],
            ..PARTITION
        };
        let changes = plan(&variables, &old);
        apply(&mut variables, changes);
        let changes = plan(&variables, &PARTITION);
        assert_eq!(changes.last().unwrap().value, None);
        apply(&mut variables, changes);
        assert_eq!(order(&variables), [4, 5, 6, 7]);
        assert_eq!(variables.len(), ENTRIES + 1);
    }
}
