//! The kernel's name for itself, from the header of a bzImage (Documentation/arch/x86/boot.rst).

use thiserror::Error;

const MAGIC_AT: usize = 0x202;
const VERSION_POINTER_AT: usize = 0x20E;
/// The offset that the header's pointer is relative to.
const VERSION_BASE: usize = 0x200;

/// The kernel's own description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Banner {
    /// The whole line: release, builder, build number and date.
    pub text: String,
    /// The first word, which `uname -r` shows and modules are stored under.
    pub release: String,
}

/// Why a file is no kernel.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum Error {
    /// The header's signature is missing.
    #[error("not a bzImage: no HdrS at offset 0x202")]
    NotBzImage,
    /// The header has no version, or points nowhere.
    #[error("the bzImage header points to no version string")]
    NoVersion,
}

/// Reads the banner of a bzImage.
///
/// # Errors
/// See [`Error`].
pub fn banner(file: &[u8]) -> Result<Banner, Error> {
    if file.get(MAGIC_AT..MAGIC_AT + 4) != Some(b"HdrS") {
        return Err(Error::NotBzImage);
    }
    let Some(&[low, high]) = file.get(VERSION_POINTER_AT..VERSION_POINTER_AT + 2) else {
        return Err(Error::NoVersion);
    };
    let pointer = usize::from(u16::from_le_bytes([low, high]));
    let rest = file
        .get(VERSION_BASE + pointer..)
        .filter(|_| pointer != 0)
        .ok_or(Error::NoVersion)?;
    let length = rest
        .iter()
        .take(512)
        .position(|byte| *byte == 0)
        .ok_or(Error::NoVersion)?;
    let text = String::from_utf8(rest[..length].to_vec()).map_err(|_| Error::NoVersion)?;
    let release = text
        .split_whitespace()
        .next()
        .ok_or(Error::NoVersion)?
        .to_owned();
    Ok(Banner { text, release })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn kernel() -> Vec<u8> {
        let mut file = vec![0; 0x400];
        file[MAGIC_AT..MAGIC_AT + 4].copy_from_slice(b"HdrS");
        file[VERSION_POINTER_AT..VERSION_POINTER_AT + 2].copy_from_slice(&0x100_u16.to_le_bytes());
        let text = b"6.12.41-cloud-amd64 (someone) #1 SMP\0";
        file[0x300..0x300 + text.len()].copy_from_slice(text);
        file
    }

    #[test]
    fn reads_release_and_banner() {
        let banner = banner(&kernel()).unwrap();
        assert_eq!(banner.release, "6.12.41-cloud-amd64");
        assert_eq!(banner.text, "6.12.41-cloud-amd64 (someone) #1 SMP");
    }

    #[test]
    fn refuses_what_is_no_kernel() {
        assert_eq!(banner(b"MZ"), Err(Error::NotBzImage));
        assert_eq!(banner(&kernel()[..0x30a]), Err(Error::NoVersion));
        assert_eq!(banner(&kernel()[..0x20f]), Err(Error::NoVersion));
        let mut unset = kernel();
        unset[VERSION_POINTER_AT] = 0;
        unset[VERSION_POINTER_AT + 1] = 0;
        assert_eq!(banner(&unset), Err(Error::NoVersion));
        let mut outside = kernel();
        outside[VERSION_POINTER_AT..VERSION_POINTER_AT + 2]
            .copy_from_slice(&0xffff_u16.to_le_bytes());
        assert_eq!(banner(&outside), Err(Error::NoVersion));
    }
}
