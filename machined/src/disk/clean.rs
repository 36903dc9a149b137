//! Whether an ext4 filesystem says of itself that it is clean: that it was unmounted, and that the kernel found no error in it.
//!
//! `e2fsck -p` looks at nothing else in a filesystem that says so, and the kernel's mount checks the superblock's checksum. To start e2fsck costs a
//! tenth of a second of an upgrade without a reboot. Within one boot of the kernel the word of the superblock is enough: the kernel itself wrote it
//! a moment before. The first mount after a boot has e2fsck in any case: the power may have failed, and the disk may not have kept its promises.

use std::{fs::File, io, path::Path};

use super::table::read_at;

/// The superblock's place, and the length that is read of it, in bytes.
const SUPERBLOCK: (u64, u64) = (1024, 1024);

// The offsets and values are those of the kernel's documentation, filesystems/ext4/super.rst.
const MAGIC: (usize, u16) = (0x38, 0xEF53);
const STATE: usize = 0x3A;
/// The only state that needs no check: cleanly unmounted, without a seen error, and without orphans that wait for their removal.
const CLEANLY_UNMOUNTED: u16 = 1;
const INCOMPATIBLE_FEATURES: usize = 0x60;
/// The journal has to be replayed.
const NEEDS_RECOVERY: u32 = 0x4;
const READ_ONLY_COMPATIBLE_FEATURES: usize = 0x64;
/// The file of orphans is not empty.
const ORPHANS_PRESENT: u32 = 0x1_0000;
/// The number of errors since the last check.
const ERRORS: usize = 0x194;

/// Returns whether the device holds an ext4 filesystem that needs no check by its own word.
pub(super) fn is_clean(device: &Path) -> io::Result<bool> {
    let (at, length) = SUPERBLOCK;
    let superblock = read_at(&mut File::open(device)?, at, length)?;
    Ok(says_clean(&superblock).unwrap_or(false))
}

/// None if the superblock is cut off.
fn says_clean(superblock: &[u8]) -> Option<bool> {
    let short = |at: usize| {
        let bytes = superblock.get(at..)?.first_chunk()?;
        Some(u16::from_le_bytes(*bytes))
    };
    let long = |at: usize| {
        let bytes = superblock.get(at..)?.first_chunk()?;
        Some(u32::from_le_bytes(*bytes))
    };
    Some(
        short(MAGIC.0)? == MAGIC.1
            && short(STATE)? == CLEANLY_UNMOUNTED
            && long(INCOMPATIBLE_FEATURES)? & NEEDS_RECOVERY == 0
            && long(READ_ONLY_COMPATIBLE_FEATURES)? & ORPHANS_PRESENT == 0
            && long(ERRORS)? == 0,
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::FileExt as _;
    use std::process::Command;

    use super::*;

    #[test]
    fn only_a_filesystem_without_any_trouble_is_clean() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(!is_clean(file.path()).unwrap(), "nothing is not clean");
        file.as_file().set_len(24 << 20).unwrap();
        assert!(!is_clean(file.path()).unwrap(), "zeros are not clean");
        let made = Command::new("mkfs.ext4")
            .args(["-q", "-F"])
            .arg(file.path())
            .status();
        assert!(made.unwrap().success());
        assert!(is_clean(file.path()).unwrap());

        // Mounted; an error was seen; orphans wait; the journal waits; the file of orphans is in use; errors are counted; no ext4.
        let troubles: [(usize, u8, u8); 7] = [
            (STATE, 0xFF, 0x00),
            (STATE, 0xFF, 0x03),
            (STATE, 0xFF, 0x05),
            (INCOMPATIBLE_FEATURES, 0xFB, 0x04),
            (READ_ONLY_COMPATIBLE_FEATURES + 2, 0xFE, 0x01),
            (ERRORS, 0xFF, 0x01),
            (MAGIC.0, 0xFF, 0x00),
        ];
        for (at, mask, bits) in troubles {
            let place = SUPERBLOCK.0 + u64::try_from(at).unwrap();
            let mut byte = [0];
            let whole = file.as_file();
            whole.read_exact_at(&mut byte, place).unwrap();
            let changed = match mask {
                0xFF => bits,
                mask => (byte[0] & mask) | bits,
            };
            whole.write_all_at(&[changed], place).unwrap();
            assert!(
                !is_clean(file.path()).unwrap(),
                "byte {at:#x}: {changed:#x}"
            );
            whole.write_all_at(&byte, place).unwrap();
            assert!(is_clean(file.path()).unwrap());
        }
    }
}
