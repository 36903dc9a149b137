//! Secure Boot: whether the firmware has checked this boot, and the keys whose programs it starts (UEFI specification 2.10, 32.4).

use std::fs;
use std::io;
use std::path::Path;

use instar_pki::{Sha, SignedPart, certificates_of_signature};

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
/// EFI_CERT_X509_SHA256_GUID as it is stored: a list of digests of the signed part of certificates, each with a time. The other two are as it,
/// with longer digests.
const X509_SHA256: [u8; 16] = [
    0x92, 0xA4, 0xD2, 0x3B, 0xC0, 0x96, 0x79, 0x40, 0xB4, 0x20, 0xFC, 0xF9, 0x8E, 0xF1, 0x03, 0xED,
];
/// EFI_CERT_X509_SHA384_GUID.
const X509_SHA384: [u8; 16] = [
    0x6E, 0x87, 0x76, 0x70, 0xC2, 0x80, 0xE6, 0x4E, 0xAA, 0xD2, 0x28, 0xB3, 0x49, 0xA6, 0x86, 0x5B,
];
/// EFI_CERT_X509_SHA512_GUID.
const X509_SHA512: [u8; 16] = [
    0x63, 0xBF, 0x6D, 0x44, 0x02, 0x25, 0xDA, 0x4C, 0xBC, 0xFA, 0x24, 0x65, 0xD2, 0xB0, 0xFE, 0x9D,
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
    /// The variable dbx cannot be read. Without it, a key that was revoked would count.
    #[error(
        "the firmware checks signatures, but its list of revocations, dbx, cannot be read; reboot, and if that does not help, write dbx anew in \
         the firmware's setup"
    )]
    Revocations(#[source] io::Error),
    /// The variable dbx is damaged.
    #[error(
        "the firmware checks signatures, but its list of revocations, dbx, is damaged; write it anew in the firmware's setup"
    )]
    DamagedRevocations,
}

/// Reads the state of this boot.
pub fn secure_boot() -> Result<SecureBoot, SecureBootError> {
    if !is_on()? {
        return Ok(SecureBoot::Off);
    }
    let allowed = variables::read("db", DATABASE).ok_or(SecureBootError::Database)?;
    let dbx = revocations(variables::try_read("dbx", DATABASE))?;
    let revoked = revoked_programs(&dbx).ok_or(SecureBootError::DamagedRevocations)?;
    let keys = trusted(&allowed, &dbx).ok_or(SecureBootError::Database)?;
    Ok(SecureBoot::On { keys, revoked })
}

/// Whether the firmware has checked this boot; its variables can be read then.
fn is_on() -> Result<bool, SecureBootError> {
    let parameters = fs::read(Path::new(BOOT_PARAMETERS));
    let parameters = parameters.map_err(SecureBootError::Parameters)?;
    let is_on = parameters.get(SECURE_BOOT) == Some(&ENABLED);
    if is_on {
        variables::mount()?;
    }
    Ok(is_on)
}

/// The firmware's list of revocations, dbx: it starts none of the programs that the list names, nor those of its certificates.
#[derive(Debug, Clone)]
pub struct Revocations(Vec<u8>);

impl Revocations {
    /// Reads the list; none if the firmware checks nothing. With UEFI, the module efivarfs must be loaded.
    ///
    /// # Errors
    /// The list cannot be read, or is damaged.
    pub fn of_this_machine() -> Result<Option<Self>, SecureBootError> {
        if !is_on()? {
            return Ok(None);
        }
        let dbx = revocations(variables::try_read("dbx", DATABASE))?;
        match entries(&dbx) {
            Some(_) => Ok(Some(Revocations(dbx))),
            None => Err(SecureBootError::DamagedRevocations),
        }
    }

    /// Whether it names a program, by the digest by which firmware knows it.
    pub(super) fn name_program(&self, program: Digest) -> bool {
        revoked_programs(&self.0).is_some_and(|revoked| revoked.contains(&program))
    }

    /// Returns the digest of the first certificate of a program's signature (PKCS#7) that it names.
    pub(super) fn named_signer(&self, signature: &[u8]) -> Option<Digest> {
        let revoked = entries(&self.0)?;
        let mut certificates = certificates_of_signature(signature)?.into_iter();
        let named = certificates.find(|certificate| is_revoked(&revoked, certificate))?;
        Some(Digest::of(named))
    }
}

/// Returns the content of dbx. Firmware without revocations has none.
fn revocations(read: io::Result<Vec<u8>>) -> Result<Vec<u8>, SecureBootError> {
    match read {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        read => read.map_err(SecureBootError::Revocations),
    }
}

/// Returns the keys of the certificates in db that dbx does not name; none if either is damaged.
fn trusted(allowed: &[u8], revoked: &[u8]) -> Option<Vec<PublicKey>> {
    let revoked = entries(revoked)?;
    let certificates = entries(allowed)?.into_iter();
    let certificates = certificates.filter(|(kind, it)| *kind == X509 && !is_revoked(&revoked, it));
    let keys = certificates.filter_map(|(_, it)| PublicKey::from_certificate(it).ok());
    Some(keys.collect())
}

/// Whether one of these entries of dbx names a certificate.
fn is_revoked(revoked: &[Entry<'_>], certificate: &[u8]) -> bool {
    let signed_part = SignedPart::of(certificate);
    // The digest is followed by the time of the revocation, which does not matter here: signatures have no time.
    let begins_with = |entry: &[u8], sha| {
        let part = signed_part.as_ref();
        part.is_some_and(|part| part.begins(entry, sha))
    };
    revoked.iter().any(|(kind, entry)| match *kind {
        X509 => *entry == certificate,
        X509_SHA256 => begins_with(entry, Sha::Sha256),
        X509_SHA384 => begins_with(entry, Sha::Sha384),
        X509_SHA512 => begins_with(entry, Sha::Sha512),
        _ => false,
    })
}

/// Returns the programs that dbx names by their digests; none if it is damaged.
fn revoked_programs(dbx: &[u8]) -> Option<Vec<Digest>> {
    let digests = entries(dbx)?.into_iter();
    let digests = digests.filter(|(kind, _)| *kind == SHA256);
    let digests = digests.map(|(_, entry)| Some(Digest::from_bytes(entry.try_into().ok()?)));
    digests.collect()
}

/// The kind and the content of an entry.
type Entry<'a> = ([u8; 16], &'a [u8]);

/// Returns the kind and content of all entries of a row of `EFI_SIGNATURE_LIST`s; none if the row is damaged.
fn entries(mut row: &[u8]) -> Option<Vec<Entry<'_>>> {
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
pub(super) mod lists_for_tests {
    #![allow(clippy::unwrap_used)]
    use instar_pki::der;

    use super::*;

    /// A list of entries of one size.
    pub(super) fn list(kind: [u8; 16], entries: &[&[u8]]) -> Vec<u8> {
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

    /// A signature that carries these certificates.
    pub(super) fn signature(certificates: &[&[u8]]) -> Vec<u8> {
        let kind = der::object_id(&[0x2a]);
        let data = der::sequence(&[
            &der::unsigned(&[1]),
            &der::set_of::<&[u8]>(&[]),
            &der::sequence(&[&kind]),
            &der::implicit_set_of(0, certificates),
        ]);
        der::sequence(&[&kind, &der::explicit(0, &data)])
    }

    /// Revocations of this program.
    pub(in crate::boot_loader) fn naming_program(program: Digest) -> Revocations {
        Revocations(list(SHA256, &[program.bytes()]))
    }

    /// A signature, and revocations of the certificate that it carries.
    pub(in crate::boot_loader) fn naming_certificate() -> (Vec<u8>, Revocations) {
        let certificate = der::sequence(&[&der::null()]);
        let revocations = Revocations(list(X509, &[&certificate]));
        (signature(&[&certificate]), revocations)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rcgen::{CertificateParams, KeyPair};

    use super::lists_for_tests::{list, signature};
    use super::*;

    fn certificate() -> (Vec<u8>, PublicKey) {
        let pair = KeyPair::generate().unwrap();
        let certificate = CertificateParams::default().self_signed(&pair).unwrap();
        let der = certificate.der().to_vec();
        let key = PublicKey::from_certificate(&der).unwrap();
        (der, key)
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
        let part = SignedPart::of(&one).unwrap();
        for (kind, sha, length) in [
            (X509_SHA256, Sha::Sha256, 32),
            (X509_SHA384, Sha::Sha384, 48),
            (X509_SHA512, Sha::Sha512, 64),
        ] {
            let digest = part.digest(sha);
            assert_eq!(digest.as_ref().len(), length);
            let revoked = [digest.as_ref(), &[0; 16]].concat();
            let dbx = list(kind, &[&revoked]);
            assert_eq!(trusted(&db, &dbx), Some(vec![second.clone()]), "{sha:?}");
            let mut another = revoked.clone();
            another[length - 1] ^= 1;
            let dbx = list(kind, &[&another]);
            assert_eq!(trusted(&db, &dbx), both, "{sha:?}");
        }
        assert_eq!(trusted(&[], &[]), Some(Vec::new()));
    }

    #[test]
    fn only_firmware_without_a_dbx_has_no_revocations() {
        let missing = io::Error::from(io::ErrorKind::NotFound);
        assert_eq!(revocations(Err(missing)).unwrap(), Vec::<u8>::new());
        assert_eq!(revocations(Ok(vec![7])).unwrap(), [7]);
        let broken = io::Error::from_raw_os_error(libc::EIO);
        let refused = revocations(Err(broken)).unwrap_err();
        assert!(matches!(refused, SecureBootError::Revocations(_)));
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
    fn a_signature_by_a_revoked_certificate_is_named() {
        let ((one, _), (two, _)) = (certificate(), certificate());
        let dbx = [
            list(X509, &[&two]),
            list(SHA256, &[Digest::of(b"p").bytes()]),
        ];
        let revocations = Revocations(dbx.concat());
        let named = |certificates: &[&[u8]]| revocations.named_signer(&signature(certificates));
        assert_eq!(named(&[&one]), None);
        assert_eq!(named(&[&two]), Some(Digest::of(&two)));
        assert_eq!(named(&[&one, &two]), Some(Digest::of(&two)));
        assert_eq!(revocations.named_signer(b"no signature"), None);
        assert!(revocations.name_program(Digest::of(b"p")));
        assert!(!revocations.name_program(Digest::of(b"q")));
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
