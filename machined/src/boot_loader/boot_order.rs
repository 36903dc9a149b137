//! The firmware's entries for the loader: one for each try of a new version, and one more.
//!
//! A version that the loader cannot start (truncated, or its signature is not trusted) sends it back to the firmware, which
//! goes on to the next entry of `BootOrder`. With one entry that would be the end; with four that lead to the loader again,
//! the counter runs out and the version before is started.

use instar_esp::TRIES;

use super::efi_variables::{self as variables, EfiError, GLOBAL};
use crate::disk::EfiPartition;

/// How many entries lead to the loader.
const ENTRIES: usize = TRIES as usize + 1;
const ORDER: &str = "BootOrder";
const LOADER_PATH: &str = "\\EFI\\BOOT\\BOOTX64.EFI";
/// `LOAD_OPTION_ACTIVE` (UEFI specification 2.10, section 3.1.3).
const ACTIVE: u32 = 1;

/// Sees to it that the firmware has the entries for the loader on this partition, `efi`, and takes them before others that
/// are not of a person's choice: new ones go to the front, and where some are there already, their place is kept.
///
/// Gives whether something had to be written.
pub fn keep_boot_entries(efi: &EfiPartition) -> Result<bool, EfiError> {
    variables::mount()?;
    let device_path = device_path(efi);
    let order = variables::read(ORDER, GLOBAL).unwrap_or_default();
    let order: Vec<u16> = order
        .chunks_exact(2)
        .map(|pair| u16::from_le_bytes([pair[0], pair[1]]))
        .collect();
    let mut taken = Vec::new();
    let mut ours = Vec::new();
    for name in variables::names("Boot")? {
        let Some(number) = number_of(&name) else {
            continue;
        };
        taken.push(number);
        let content = variables::read(&name, GLOBAL).unwrap_or_default();
        if content.ends_with(&device_path) {
            ours.push(number);
        }
    }
    let wanted = place(&order, &ours, &taken);
    for (nth, number) in (1..).zip(&wanted.ours) {
        if !ours.contains(number) {
            variables::write(
                &format!("Boot{number:04X}"),
                &load_option(nth, &device_path),
            )?;
        }
    }
    let changed = wanted.order != order;
    if changed {
        let bytes: Vec<u8> = wanted
            .order
            .iter()
            .flat_map(|number| number.to_le_bytes())
            .collect();
        variables::write(ORDER, &bytes)?;
    }
    Ok(changed || wanted.ours.iter().any(|number| !ours.contains(number)))
}

/// What the order of the firmware shall be.
#[derive(Debug, PartialEq, Eq)]
struct Wanted {
    /// The numbers of the entries for the loader.
    ours: Vec<u16>,
    /// All of `BootOrder`.
    order: Vec<u16>,
}

/// `ours` are entries that lead to the loader, `taken` all numbers in use.
fn place(order: &[u16], ours: &[u16], taken: &[u16]) -> Wanted {
    let free = (0..=u16::MAX).filter(|number| !taken.contains(number));
    let numbers: Vec<u16> = ours
        .iter()
        .copied()
        .chain(free)
        .take(ENTRIES.max(ours.len()))
        .collect();
    let first = order
        .iter()
        .position(|number| numbers.contains(number))
        .unwrap_or(0);
    let mut others: Vec<u16> = order.to_vec();
    others.retain(|number| !numbers.contains(number));
    let at = first.min(others.len());
    others.splice(at..at, numbers.iter().copied());
    Wanted {
        ours: numbers,
        order: others,
    }
}

fn number_of(name: &str) -> Option<u16> {
    let digits = name
        .strip_prefix("Boot")
        .filter(|digits| digits.len() == 4)?;
    u16::from_str_radix(digits, 16).ok()
}

/// An `EFI_LOAD_OPTION`.
fn load_option(nth: u32, device_path: &[u8]) -> Vec<u8> {
    let mut option = ACTIVE.to_le_bytes().to_vec();
    option.extend((device_path.len() as u16).to_le_bytes());
    option.extend(utf16(&format!("Instar {nth}")));
    option.extend(device_path);
    option
}

fn utf16(text: &str) -> impl Iterator<Item = u8> {
    text.encode_utf16().chain([0]).flat_map(u16::to_le_bytes)
}

/// The hard drive's node, the file's, and the end's (UEFI specification 2.10, sections 10.3.5.1, 10.3.5.4, 10.3.1).
fn device_path(efi: &EfiPartition) -> Vec<u8> {
    let EfiPartition { partition, sector } = efi;
    let mut path = vec![4, 1, 42, 0];
    path.extend(partition.number.to_le_bytes());
    path.extend((partition.start / sector).to_le_bytes());
    path.extend((partition.length / sector).to_le_bytes());
    path.extend(partition.guid.to_bytes_le());
    // The table is a GPT, the signature a GUID.
    path.extend([2, 2]);
    let file: Vec<u8> = utf16(LOADER_PATH).collect();
    path.extend([4, 4]);
    path.extend((file.len() as u16 + 4).to_le_bytes());
    path.extend(file);
    path.extend([0x7f, 0xff, 4, 0]);
    path
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::Partition;

    #[test]
    fn new_entries_come_first_and_known_ones_keep_their_place() {
        let fresh = place(&[0, 1], &[], &[0, 1, 2]);
        assert_eq!(fresh.ours, [3, 4, 5, 6]);
        assert_eq!(fresh.order, [3, 4, 5, 6, 0, 1]);
        // A person has put another one before them.
        let chosen = place(&[0, 3, 4, 5, 6, 1], &[3, 4, 5, 6], &[0, 1, 3, 4, 5, 6]);
        assert_eq!(chosen.order, [0, 3, 4, 5, 6, 1]);
        let lost = place(&[0, 3, 1], &[3], &[0, 1, 3]);
        assert_eq!(lost.ours, [3, 2, 4, 5]);
        assert_eq!(lost.order, [0, 3, 2, 4, 5, 1]);
        // The variables are there, but the order is lost.
        let emptied = place(&[], &[3, 4, 5, 6], &[3, 4, 5, 6]);
        assert_eq!(emptied.order, [3, 4, 5, 6]);
    }

    #[test]
    fn a_device_path_is_as_the_specification_has_it() {
        let partition = Partition {
            number: 1,
            label: "EFI".to_owned(),
            kind: uuid::Uuid::nil(),
            guid: uuid::Uuid::from_u128(1),
            start: 1 << 20,
            length: 128 << 20,
        };
        let path = device_path(&EfiPartition {
            partition,
            sector: 512,
        });
        assert_eq!(path[8..16], 2048_u64.to_le_bytes());
        assert_eq!(&path[..8], [4, 1, 42, 0, 1, 0, 0, 0]);
        let file = &path[42..];
        assert_eq!(&file[..2], [4, 4]);
        let length = usize::from(u16::from_le_bytes([file[2], file[3]]));
        assert_eq!(&file[length..], [0x7f, 0xff, 4, 0]);
        let option = load_option(2, &path);
        assert_eq!(
            u16::from_le_bytes([option[4], option[5]]) as usize,
            path.len()
        );
        assert!(option.ends_with(&path));
    }
}
