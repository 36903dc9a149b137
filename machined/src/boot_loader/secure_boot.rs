//! Secure Boot: whether the firmware has checked this boot, and the keys whose programs it starts (UEFI specification 2.10, 32.4).

use std::fs;
use std::io;
use std::path::Path;

use super::efi_variables::{self as variables, EfiError};
use crate::values::{Digest, PublicKey};

/// The kernel's copy of its boot parameters.
const BOOT_PARAMETERS: &str = "/sys/kernel/boot_params/data";
/// Offset of `secure_boot` in them (the kernel's Documentation/arch/x86/zero-page.rst). The kernel's EFI stub fills it in before the system
/// starts, so nothing that runs later can change it, as it could an EFI variable.
const SECURE_BOOT: usize = 0x1EC;
/// Its value if the firmware checks signatures (`enum efi_secureboot_mode`).
const ENABLED: u8 = 3;
/// Vendor GUID of the variables db and dbx: EFI_IMAGE_SECURITY_DATABASE_GUID.
const DATABASE: &str = "d719b2cb-3d3a-4596-a3bc-dad00e67656f";
/// EFI_CERT_X509_GUID as it is stored: a list of certificates.
const X509: [u8; 16] = [
    0xA1, 0x59, 0xC0, 0xA5, 0xE4, 0x94, 0xA7, 0x4A, 0x87, 0xB5, 0xAB, 0x15, 0x5C, 0x2B, 0xF0, 0x72,
];
/// EFI_CERT_SHA256_GUID as it is stored: a list of digests of programs.
const SHA256: [u8; 16] = [
    0x26, 0x16, 0xC4, 0xC1, 0x4C, 0x50, 0x92, 0x40, 0xAC, 0xA9, 0x41, 0xF9, 0x36, 0x93, 0x43, 0x28,
];
/// EFI_CERT_X509_SHA256_GUID as it is stored: a list of digests of the signed part of certificates, each with a time.
const X509_SHA256: [u8; 16] = [
    0x92, 0xA4, 0xD2, 0x3B, 0xC0, 0x96, 0x79, 0x40, 0xB4, 0x20, 0xFC, 0xF9, 0x8E, 0xF1, 0x03, 0xED,
];
/// Size of a list's head, and of the owner's GUID before each entry.
const HEAD: usize = 28;
const OWNER: usize = 16;

/// The firmware's part in this boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecureBoot {
    /// The firmware has checked nothing.
    Off,
    /// The firmware has checked the UKI against these keys: the certificates of db that dbx does not revoke. A certificate with a key of a
    /// kind that is not supported is left out.
    On {
        /// The keys.
        keys: Vec<PublicKey>,
        /// Programs that it does not start although one of these keys has signed them, by their digests.
        revoked: Vec<Digest>,
    },
}

/// Why the state of Secure Boot is unknown.
#[derive(Debug, thiserror::Error)]
pub enum SecureBootError {
    /// The kernel's boot parameters cannot be read.
    #[error("cannot read {BOOT_PARAMETERS}")]
    Parameters(#[source] io::Error),
    /// The firmware's variables cannot be reached.
    #[error("the firmware checks signatures, but its keys cannot be read")]
    Variables(#[from] EfiError),
    /// The variable db cannot be read.
    #[error("the firmware checks signatures, but its list of keys, db, is missing or damaged")]
    Database,
}

/// Reads the state of this boot.
pub fn secure_boot() -> Result<SecureBoot, SecureBootError> {
    let parameters = fs::read(Path::new(BOOT_PARAMETERS));
    let parameters = parameters.map_err(SecureBootError::Parameters)?;
    if parameters.get(SECURE_BOOT) != Some(&ENABLED) {
        return Ok(SecureBoot::Off);
    }
    variables::mount()?;
    let allowed = variables::read("db", DATABASE).ok_or(SecureBootError::Database)?;
    // Firmware without revocations has no dbx.
    let dbx = variables::read("dbx", DATABASE).unwrap_or_default();
    let keys = trusted(&allowed, &dbx).ok_or(SecureBootError::Database)?;
    let revoked = revoked_programs(&dbx).ok_or(SecureBootError::Database)?;
    Ok(SecureBoot::On { keys, revoked })
}

/// Returns the keys of the certificates in db that dbx does not name; none if either is damaged.
fn trusted(allowed: &[u8], revoked: &[u8]) -> Option<Vec<PublicKey>> {
    let revoked = entries(revoked)?;
    let is_revoked = |certificate: &[u8]| {
        let signed_part = signed_part(certificate);
        revoked.iter().any(|(kind, entry)| match *kind {
            X509 => *entry == certificate,
            // The digest is followed by the time of the revocation, which does not matter here: signatures have no time.
            X509_SHA256 => {
                signed_part.is_some_and(|digest| entry.get(..32) == Some(digest.bytes().as_slice()))
            }
            _ => false,
        })
    };
    let certificates = entries(allowed)?.into_iter();
    let certificates = certificates.filter(|(kind, it)| *kind == X509 && !is_revoked(it));
    let keys = certificates.filter_map(|(_, it)| PublicKey::from_certificate(it).ok());
    Some(keys.collect())
}

/// Returns the programs that dbx names by their digests; none if it is damaged.
fn revoked_programs(dbx: &[u8]) -> Option<Vec<Digest>> {
    let digests = entries(dbx)?.into_iter();
    let digests = digests.filter(|(kind, _)| *kind == SHA256);
    let digests = digests.map(|(_, entry)| Some(Digest::from_bytes(entry.try_into().ok()?)));
    digests.collect()
}

/// Returns the digest of the part of a certificate that its issuer signed.
fn signed_part(certificate: &[u8]) -> Option<Digest> {
    let (_, certificate) = x509_parser::parse_x509_certificate(certificate).ok()?;
    Some(Digest::of(certificate.tbs_certificate.as_ref()))
}

/// Returns the kind and content of all entries of a row of `EFI_SIGNATURE_LIST`s; none if the row is damaged.
fn entries(mut row: &[u8]) -> Option<Vec<([u8; 16], &[u8])>> {
    let mut entries = Vec::new();
    while !row.is_empty() {
        let kind: [u8; 16] = row.get(..16)?.try_into().ok()?;
        let number = |at: usize| {
            let bytes: [u8; 4] = row.get(at..at + 4)?.try_into().ok()?;
            usize::try_from(u32::from_le_bytes(bytes)).ok()
        };
        let (length, header, size) = (number(16)?, number(20)?, number(24)?);
        let list = row.get(HEAD.checked_add(header)?..length)?;
        if size <= OWNER || list.len() % size != 0 {
            return None;
        }
        entries.extend(list.chunks_exact(size).map(|entry| (kind, &entry[OWNER..])));
        row = &row[length..];
    }
    Some(entries)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    fn certificate() -> (Vec<u8>, PublicKey) {
        let pair = KeyPair::generate().unwrap();
        let certificate = CertificateParams::default().self_signed(&pair).unwrap();
        let der = certificate.der().to_vec();
        let key = PublicKey::from_certificate(&der).unwrap();
        (der, key)
    }

    /// A list of entries of one size.
    fn list(kind: [u8; 16], entries: &[&[u8]]) -> Vec<u8> {
        let size = OWNER + entries.first().map_or(1, |entry| entry.len());
        let mut list = kind.to_vec();
        list.extend(
            u32::try_from(HEAD + size * entries.len())
                .unwrap()
                .to_le_bytes(),
        );
        list.extend(0_u32.to_le_bytes());
        list.extend(u32::try_from(size).unwrap().to_le_bytes());
        for entry in entries {
            list.extend([7; OWNER]);
            list.extend(*entry);
        }
        list
    }

    #[test]
    fn the_keys_of_db_are_trusted_but_those_of_dbx() {
        let ((one, first), (two, second)) = (certificate(), certificate());
        let sha256 = list([1; 16], &[&[9; 32]]);
        let db = [list(X509, &[&one]), sha256, list(X509, &[&two])].concat();
        let both = Some(vec![first.clone(), second.clone()]);
        assert_eq!(trusted(&db, &[]), both);
        assert_eq!(
            trusted(&db, &list(X509, &[&two])),
            Some(vec![first.clone()])
        );
        let digest = signed_part(&one).unwrap();
        let revoked = [digest.bytes().as_slice(), &[0; 16]].concat();
        let dbx = list(X509_SHA256, &[&revoked]);
        assert_eq!(trusted(&db, &dbx), Some(vec![second]));
        assert_eq!(trusted(&[], &[]), Some(Vec::new()));
    }

    #[test]
    fn programs_are_revoked_by_their_digests() {
        let (certificate, _) = certificate();
        let (one, two) = (Digest::of(b"one"), Digest::of(b"two"));
        let digests = [one.bytes().as_slice(), two.bytes().as_slice()];
        let dbx = [list(X509, &[&certificate]), list(SHA256, &digests)].concat();
        assert_eq!(revoked_programs(&dbx), Some(vec![one, two]));
        assert_eq!(revoked_programs(&[]), Some(Vec::new()));
        assert_eq!(revoked_programs(&dbx[..dbx.len() - 1]), None);
        assert_eq!(revoked_programs(&list(SHA256, &[b"short"])), None);
    }

    #[test]
    fn a_damaged_list_is_no_list() {
        let (one, _) = certificate();
        let good = list(X509, &[&one]);
        for length in 1..good.len() {
            assert!(trusted(&good[..length], &[]).is_none(), "{length} bytes");
            assert!(trusted(&good, &good[..length]).is_none(), "{length} bytes");
        }
        // A size of entries that would never end, and a list that claims to be shorter than its head.
        for (at, value) in [(24, 0_u32), (24, 16), (16, 0), (20, u32::MAX)] {
            let mut bad = good.clone();
            bad[at..at + 4].copy_from_slice(&value.to_le_bytes());
            assert!(trusted(&bad, &[]).is_none(), "{value} at {at}");
        }
    }

    #[test]
    fn a_certificate_that_cannot_be_read_is_left_out() {
        let (one, key) = certificate();
        let db = [list(X509, &[b"no certificate"]), list(X509, &[&one])].concat();
        assert_eq!(trusted(&db, &[]), Some(vec![key]));
    }
}
