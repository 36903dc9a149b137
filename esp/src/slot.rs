//! Slots: the places of versions.

use std::fmt;

/// The default number of versions on an EFI system partition: the running one, the one before, and one that is being written.
pub const DEFAULT_SLOTS: Slots = Slots(3);

/// The place of one version's UKI: a letter from `a`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(u8);

impl Slot {
    /// The first one.
    pub const FIRST: Self = Self(b'a');

    /// The slot of a letter; `None` for anything but `a` to `z`.
    #[must_use]
    pub fn from_letter(letter: char) -> Option<Self> {
        letter
            .is_ascii_lowercase()
            .then(|| u8::try_from(letter).ok().map(Self))
            .flatten()
    }

    /// The slot of a path: `EFI/instar/a.efi`, with a slash before it as in entries, or without as in the volume.
    #[must_use]
    pub fn from_uki_path(path: &str) -> Option<Self> {
        let name = path.trim_start_matches('/').strip_prefix("EFI/instar/")?;
        let mut letters = name.strip_suffix(".efi")?.chars();
        let slot = Self::from_letter(letters.next()?)?;
        letters.next().is_none().then_some(slot)
    }

    /// The path of the UKI from the volume's root, without a slash before it.
    #[must_use]
    pub fn uki_path(self) -> String {
        format!("EFI/instar/{self}.efi")
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        char::from(self.0).fmt(f)
    }
}

/// A number of slots, 2 to 26: with fewer no slot could be written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots(u8);

impl Slots {
    /// This many; `None` if it is not 2 to 26.
    #[must_use]
    pub fn new(count: u8) -> Option<Self> {
        (2..=26).contains(&count).then_some(Self(count))
    }

    /// The number.
    #[must_use]
    pub fn count(self) -> u8 {
        self.0
    }

    /// The slots in order.
    pub fn iter(self) -> impl Iterator<Item = Slot> {
        (0..self.0).map(|number| Slot(b'a' + number))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_slot_is_a_letter_and_a_file() {
        let slot = Slot::from_letter('b').unwrap();
        assert_eq!(slot.uki_path(), "EFI/instar/b.efi");
        assert_eq!(Slot::from_uki_path("/EFI/instar/b.efi"), Some(slot));
        for bad in [
            "/EFI/instar/B.efi",
            "/EFI/instar/bb.efi",
            "/EFI/instar/.efi",
            "/EFI/Linux/b.efi",
            "b.efi",
            "",
        ] {
            assert_eq!(Slot::from_uki_path(bad), None, "{bad}");
        }
    }

    #[test]
    fn there_is_always_a_slot_to_write_to() {
        assert_eq!(Slots::new(1), None);
        assert_eq!(Slots::new(27), None);
        let letters: String = DEFAULT_SLOTS.iter().map(|slot| slot.to_string()).collect();
        assert_eq!(letters, "abc");
    }
}
