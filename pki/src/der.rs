//! The forms of DER that certificates and signatures need, each a function from content to bytes.

/// Object identifiers, already encoded (content only).
pub mod oid {
    /// The algorithm Ed25519 (RFC 8410).
    pub const ED25519: &[u8] = &[0x2b, 0x65, 0x70];
    /// A public key on an elliptic curve (RFC 5480).
    pub const EC_PUBLIC_KEY: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
    /// The curve P-256.
    pub const P256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];
    /// The curve P-384.
    pub const P384: &[u8] = &[0x2b, 0x81, 0x04, 0x00, 0x22];
    /// Signatures by ECDSA with SHA-256.
    pub const ECDSA_SHA256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02];
    /// Signatures by ECDSA with SHA-384.
    pub const ECDSA_SHA384: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x03];
    /// An RSA key (RFC 8017).
    pub const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];
    /// Signatures by RSA with SHA-256.
    pub const RSA_SHA256: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0b];
    /// A name's organization.
    pub const ORGANIZATION: &[u8] = &[0x55, 0x04, 0x0a];
    /// A name's common name.
    pub const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
    /// The attribute `extensionRequest` of a request for a certificate (RFC 2985).
    pub const EXTENSION_REQUEST: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x0e];
    /// The extension `subjectKeyIdentifier` (RFC 5280).
    pub const SUBJECT_KEY_ID: &[u8] = &[0x55, 0x1d, 0x0e];
    /// The extension `keyUsage` (RFC 5280).
    pub const KEY_USAGE: &[u8] = &[0x55, 0x1d, 0x0f];
    /// The extension `subjectAltName` (RFC 5280).
    pub const SUBJECT_ALT_NAME: &[u8] = &[0x55, 0x1d, 0x11];
    /// The extension `basicConstraints` (RFC 5280).
    pub const BASIC_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 0x13];
    /// The extension `authorityKeyIdentifier` (RFC 5280).
    pub const AUTHORITY_KEY_ID: &[u8] = &[0x55, 0x1d, 0x23];
    /// The extension `extKeyUsage` (RFC 5280).
    pub const EXT_KEY_USAGE: &[u8] = &[0x55, 0x1d, 0x25];
    /// The certificate is a server's.
    pub const SERVER_AUTH: &[u8] = &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x01];
    /// The certificate is a client's.
    pub const CLIENT_AUTH: &[u8] = &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x02];
}

/// Encodes any value: tag, length, content.
pub fn value(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len();
    let mut out = vec![tag];
    if length < 0x80 {
        out.push(length as u8);
    } else {
        let bytes = length.to_be_bytes();
        let significant = &bytes[bytes.iter().take_while(|byte| **byte == 0).count()..];
        out.push(0x80 | significant.len() as u8);
        out.extend_from_slice(significant);
    }
    out.extend_from_slice(content);
    out
}

/// A SEQUENCE of encoded values.
pub fn sequence(parts: &[&[u8]]) -> Vec<u8> {
    value(0x30, &parts.concat())
}

/// A SET of encoded values, in the order that DER demands.
pub fn set_of<Element: AsRef<[u8]>>(elements: &[Element]) -> Vec<u8> {
    value(0x31, &sorted(elements))
}

/// `[n]` in place of a SET's own tag.
pub fn implicit_set_of<Element: AsRef<[u8]>>(number: u8, elements: &[Element]) -> Vec<u8> {
    value(0xa0 | number, &sorted(elements))
}

fn sorted<Element: AsRef<[u8]>>(elements: &[Element]) -> Vec<u8> {
    let mut elements: Vec<&[u8]> = elements.iter().map(AsRef::as_ref).collect();
    elements.sort_unstable();
    elements.concat()
}

/// An OBJECT IDENTIFIER, from its encoded content: see [`oid`].
pub fn object_id(encoded: &[u8]) -> Vec<u8> {
    value(0x06, encoded)
}

/// An INTEGER that is not negative, from big-endian bytes.
pub fn unsigned(bytes: &[u8]) -> Vec<u8> {
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    let mut content = bytes[zeros..].to_vec();
    // The highest bit is the sign.
    if content.first().is_none_or(|byte| byte & 0x80 != 0) {
        content.insert(0, 0);
    }
    value(0x02, &content)
}

/// A BOOLEAN.
pub fn boolean(truth: bool) -> Vec<u8> {
    value(0x01, &[if truth { 0xff } else { 0 }])
}

/// NULL.
pub fn null() -> Vec<u8> {
    value(0x05, &[])
}

/// An OCTET STRING.
pub fn octet_string(content: &[u8]) -> Vec<u8> {
    value(0x04, content)
}

/// A BIT STRING of whole bytes.
pub fn bit_string(content: &[u8]) -> Vec<u8> {
    bit_string_unused(content, 0)
}

/// A BIT STRING whose last `unused` bits don't count.
pub fn bit_string_unused(content: &[u8], unused: u8) -> Vec<u8> {
    value(0x03, &[&[unused], content].concat())
}

/// A UTF8String.
pub fn utf8(text: &str) -> Vec<u8> {
    value(0x0c, text.as_bytes())
}

/// `[n]` in place of the value's own tag, for a primitive value.
pub fn implicit(number: u8, content: &[u8]) -> Vec<u8> {
    value(0x80 | number, content)
}

/// `[n]` around a whole value.
pub fn explicit(number: u8, inner: &[u8]) -> Vec<u8> {
    value(0xa0 | number, inner)
}

/// Whole seconds in UTC: UTCTime to 2049, GeneralizedTime after (RFC 5280 §4.1.2.5).
pub fn time(at: jiff::Timestamp) -> Vec<u8> {
    let civil = at.to_zoned(jiff::tz::TimeZone::UTC).datetime();
    let rest = format!(
        "{:02}{:02}{:02}{:02}{:02}Z",
        civil.month(),
        civil.day(),
        civil.hour(),
        civil.minute(),
        civil.second()
    );
    match civil.year() {
        year @ 1950..=2049 => value(0x17, format!("{:02}{rest}", year % 100).as_bytes()),
        year => value(0x18, format!("{year:04}{rest}").as_bytes()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn lengths_grow_where_they_must() {
        assert_eq!(value(4, &[0; 127])[..2], [4, 127]);
        assert_eq!(value(4, &[0; 128])[..3], [4, 0x81, 128]);
        assert_eq!(value(4, &[0; 256])[..4], [4, 0x82, 1, 0]);
    }

    #[test]
    fn unsigned_is_never_negative_and_never_padded() {
        assert_eq!(unsigned(&[0x80]), [2, 2, 0, 0x80]);
        assert_eq!(unsigned(&[0, 0, 0x7f]), [2, 1, 0x7f]);
        assert_eq!(unsigned(&[]), [2, 1, 0]);
    }

    #[test]
    fn sets_are_in_order() {
        let elements = [octet_string(b"b"), octet_string(b"aa"), null()];
        assert_eq!(set_of(&elements), b"\x31\x09\x04\x01b\x04\x02aa\x05\x00");
        assert_eq!(implicit_set_of(2, &[null()]), [0xa2, 2, 5, 0]);
    }

    #[test]
    fn time_changes_its_form_in_2050() {
        let at = |text: &str| text.parse::<jiff::Timestamp>().unwrap();
        assert_eq!(time(at("2049-12-31T23:59:59Z")), b"\x17\x0d491231235959Z");
        assert_eq!(time(at("2050-01-01T00:00:00Z")), b"\x18\x0f20500101000000Z");
    }
}
