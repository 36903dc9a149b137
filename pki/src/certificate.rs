//! The content of a certificate (RFC 5280), and its encoding.

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use rustls_pki_types::CertificateDer;

use crate::der;
use crate::key::{KeyError, PrivateKey, random};

/// The validity of a node's or a client's certificate begins this long before it is made: the clocks of nodes and clients may be hours apart, and nobody
/// may have to wait for that. Not longer: a node of before this version asks for its next certificate at the middle of its validity, which has to come
/// well after now.
pub const CLOCK_TOLERANCE: Duration = Duration::from_secs(12 * 3600);
/// The same of an authority: a machine without a clock starts from there ([`crate::validity`]), so it has to be near to when it was made.
const AUTHORITY_TOLERANCE: Duration = Duration::from_secs(600);

/// The time range in which a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Validity {
    not_before: jiff::Timestamp,
    not_after: jiff::Timestamp,
}

/// A time is out of the range of certificates.
#[derive(Debug, thiserror::Error)]
#[error("a certificate cannot be valid for {lifetime:?} from {now:?}: years 1950 to 9999 only")]
pub struct ValidityError {
    /// The given clock.
    pub now: SystemTime,
    /// The requested lifetime.
    pub lifetime: Duration,
}

impl Validity {
    /// A validity of `lifetime` from `now`, and twelve hours before.
    pub(crate) fn starting(now: SystemTime, lifetime: Duration) -> Result<Self, ValidityError> {
        Self::around(now, CLOCK_TOLERANCE, lifetime)
    }

    /// An authority's validity of `lifetime` from `now`, and ten minutes before.
    pub(crate) fn of_authority(now: SystemTime, lifetime: Duration) -> Result<Self, ValidityError> {
        Self::around(now, AUTHORITY_TOLERANCE, lifetime)
    }

    fn around(
        now: SystemTime,
        before: Duration,
        lifetime: Duration,
    ) -> Result<Self, ValidityError> {
        let error = || ValidityError { now, lifetime };
        let timestamp = |at: SystemTime| {
            jiff::Timestamp::try_from(at)
                .ok()
                .filter(|at| (1950..=9999).contains(&at.to_zoned(jiff::tz::TimeZone::UTC).year()))
                .ok_or_else(error)
        };
        let not_before = timestamp(now.checked_sub(before).ok_or_else(error)?)?;
        let not_after = timestamp(now.checked_add(lifetime).ok_or_else(error)?)?;
        Ok(Self {
            not_before,
            not_after,
        })
    }

    fn der(&self) -> Vec<u8> {
        der::sequence(&[&der::time(self.not_before), &der::time(self.not_after)])
    }
}

/// A name of a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SubjectName {
    /// An address, as clients type it.
    Ip(IpAddr),
    /// A DNS name.
    Dns(String),
}

impl From<IpAddr> for SubjectName {
    fn from(address: IpAddr) -> Self {
        Self::Ip(address)
    }
}

impl From<&str> for SubjectName {
    /// An address if the text is one, else a DNS name.
    fn from(text: &str) -> Self {
        text.parse()
            .map_or_else(|_| Self::Dns(text.to_owned()), Self::Ip)
    }
}

/// The purpose of a certificate.
pub(crate) enum Purpose<'a> {
    Authority,
    Server(&'a [SubjectName]),
    Client,
    /// A server that is also a client of others of its kind.
    Peer(&'a [SubjectName]),
}

/// The signed content of a certificate.
pub(crate) struct Template<'a> {
    pub(crate) purpose: Purpose<'a>,
    /// The encoded name of the issuer.
    pub(crate) issuer: &'a [u8],
    /// The encoded name of the subject.
    pub(crate) subject: &'a [u8],
    pub(crate) validity: Validity,
    pub(crate) public_key_info: &'a [u8],
    /// SubjectKeyIdentifier of the certificate itself.
    pub(crate) key_id: &'a [u8],
    /// SubjectKeyIdentifier of the authority, if it has one.
    pub(crate) authority_key_id: Option<&'a [u8]>,
}

impl Template<'_> {
    /// The signed certificate.
    pub(crate) fn sign(&self, key: &PrivateKey) -> Result<CertificateDer<'static>, KeyError> {
        let algorithm = key.signature_algorithm();
        let to_be_signed = der::sequence(&[
            &der::explicit(0, &der::unsigned(&[2])),
            &der::unsigned(&random::<16>()?),
            &algorithm,
            self.issuer,
            &self.validity.der(),
            self.subject,
            self.public_key_info,
            &der::explicit(3, &der::value(0x30, &self.extensions().concat())),
        ]);
        let signature = der::bit_string(&key.sign(&to_be_signed)?);
        Ok(der::sequence(&[&to_be_signed, &algorithm, &signature]).into())
    }

    fn extensions(&self) -> Vec<Vec<u8>> {
        let usages: &[&[u8]] = match self.purpose {
            Purpose::Authority | Purpose::Peer(_) => {
                &[der::oid::SERVER_AUTH, der::oid::CLIENT_AUTH]
            }
            Purpose::Server(_) => &[der::oid::SERVER_AUTH],
            Purpose::Client => &[der::oid::CLIENT_AUTH],
        };
        let usages: Vec<u8> = usages.iter().flat_map(|oid| der::object_id(oid)).collect();
        let authority = matches!(self.purpose, Purpose::Authority);
        // Bit 0 is digitalSignature, bit 5 keyCertSign, counted from the top.
        let key_usage = if authority {
            der::bit_string_unused(&[0x84], 2)
        } else {
            der::bit_string_unused(&[0x80], 7)
        };
        let constraints = if authority {
            der::sequence(&[&der::boolean(true)])
        } else {
            der::sequence(&[])
        };
        let mut extensions = vec![
            extension(der::oid::KEY_USAGE, true, &key_usage),
            extension(der::oid::EXT_KEY_USAGE, false, &der::value(0x30, &usages)),
            extension(der::oid::BASIC_CONSTRAINTS, true, &constraints),
            extension(
                der::oid::SUBJECT_KEY_ID,
                false,
                &der::octet_string(self.key_id),
            ),
        ];
        if let Some(id) = self.authority_key_id {
            let id = der::sequence(&[&der::implicit(0, id)]);
            extensions.push(extension(der::oid::AUTHORITY_KEY_ID, false, &id));
        }
        if let Purpose::Server(names) | Purpose::Peer(names) = self.purpose {
            let names: Vec<u8> = names.iter().flat_map(general_name).collect();
            extensions.push(extension(
                der::oid::SUBJECT_ALT_NAME,
                false,
                &der::value(0x30, &names),
            ));
        }
        extensions
    }
}

/// An encoded name of Organization values and an optional common name, one attribute per RDN.
pub(crate) fn subject(organizations: &[&str], common_name: Option<&str>) -> Vec<u8> {
    let attribute =
        |oid, text| der::set_of(&[der::sequence(&[&der::object_id(oid), &der::utf8(text)])]);
    let organizations = organizations
        .iter()
        .map(|text| attribute(der::oid::ORGANIZATION, text));
    let common_name = common_name.map(|text| attribute(der::oid::COMMON_NAME, text));
    der::value(
        0x30,
        &organizations
            .chain(common_name)
            .collect::<Vec<_>>()
            .concat(),
    )
}

/// A key identifier: the first 20 bytes of the public key's SHA-256 (RFC 7093 §2, method 1).
pub(crate) fn key_id(public_key: &[u8]) -> Vec<u8> {
    ring::digest::digest(&ring::digest::SHA256, public_key).as_ref()[..20].to_vec()
}

pub(crate) fn extension(oid: &[u8], critical: bool, content: &[u8]) -> Vec<u8> {
    let critical = if critical {
        der::boolean(true)
    } else {
        Vec::new()
    };
    der::sequence(&[&der::object_id(oid), &critical, &der::octet_string(content)])
}

pub(crate) fn general_name(name: &SubjectName) -> Vec<u8> {
    match name {
        SubjectName::Dns(name) => der::implicit(2, name.as_bytes()),
        SubjectName::Ip(IpAddr::V4(address)) => der::implicit(7, &address.octets()),
        SubjectName::Ip(IpAddr::V6(address)) => der::implicit(7, &address.octets()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn dates_beyond_a_certificate_are_refused() {
        let day = Duration::from_secs(24 * 3600);
        let now = SystemTime::UNIX_EPOCH + day * 20_000;
        assert!(Validity::starting(now, Duration::from_secs(u64::MAX)).is_err());
        assert!(Validity::starting(now, day * 365 * 9000).is_err());
        // A clock that was never set still makes a certificate.
        assert!(Validity::starting(SystemTime::UNIX_EPOCH, day).is_ok());
    }
}
