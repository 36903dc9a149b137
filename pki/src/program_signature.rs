//! The certificates in the signature of a program (PKCS#7, RFC 2315, 9.1): the firmware's list of revocations may name one of them.

/// Tags of DER.
const INTEGER: u8 = 0x02;
const OBJECT_ID: u8 = 0x06;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
/// `[0]` around a value, or in place of a set's own tag.
const FIRST: u8 = 0xa0;

/// A value of DER.
struct Value<'a> {
    /// With its tag and length.
    whole: &'a [u8],
    /// Without them.
    content: &'a [u8],
}

/// Returns the certificates (DER) that a signature carries; none if it is damaged.
pub fn certificates_of_signature(signature: &[u8]) -> Option<Vec<&[u8]>> {
    let mut rest = signature;
    let mut info = take(&mut rest, SEQUENCE)?.content;
    take(&mut info, OBJECT_ID)?;
    let mut data = take(&mut info, FIRST)?.content;
    let mut signed = take(&mut data, SEQUENCE)?.content;
    // The version, the algorithms of digests, and what is signed.
    for tag in [INTEGER, SET, SEQUENCE] {
        take(&mut signed, tag)?;
    }
    let Some(certificates) = take(&mut signed, FIRST) else {
        return Some(Vec::new());
    };
    let (mut rest, mut found) = (certificates.content, Vec::new());
    while !rest.is_empty() {
        found.push(take(&mut rest, SEQUENCE)?.whole);
    }
    Some(found)
}

/// Takes a value with this tag off these bytes; none if they begin with another one, or end in it.
fn take<'a>(bytes: &mut &'a [u8], tag: u8) -> Option<Value<'a>> {
    let all: &'a [u8] = bytes;
    let first = *all.get(1)?;
    let (start, length) = match first {
        0..=0x7f => (2, usize::from(first)),
        0x81..=0x84 => {
            let start = 2 + usize::from(first & 0x7f);
            let digits = all.get(2..start)?.iter();
            let length = digits.fold(0_usize, |sum, digit| (sum << 8) | usize::from(*digit));
            (start, length)
        }
        _ => return None,
    };
    let end = start.checked_add(length)?;
    let whole = all.get(..end)?;
    if whole[0] != tag {
        return None;
    }
    *bytes = &all[end..];
    Some(Value {
        whole,
        content: &whole[start..],
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::der::{explicit, implicit_set_of, null, object_id, sequence, set_of, unsigned};

    /// A signature with these certificates.
    fn signature(certificates: &[Vec<u8>]) -> Vec<u8> {
        let kind = object_id(&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x07, 0x02]);
        let certificates = match certificates.is_empty() {
            true => Vec::new(),
            false => implicit_set_of(0, certificates),
        };
        let data = sequence(&[
            &unsigned(&[1]),
            &set_of(&[sequence(&[&null()])]),
            &sequence(&[&kind]),
            &certificates,
            &set_of(&[sequence(&[&unsigned(&[1])])]),
        ]);
        sequence(&[&kind, &explicit(0, &data)])
    }

    #[test]
    fn all_certificates_are_found_whatever_their_length() {
        let certificates = [1, 200, 300, 70_000].map(|length| sequence(&[&vec![5; length]]));
        let signed = signature(&certificates);
        let found = certificates_of_signature(&signed).unwrap();
        assert_eq!(found, certificates);
        // Signatures are padded.
        let padded = [&signed[..], &[0; 7]].concat();
        assert_eq!(certificates_of_signature(&padded).unwrap().len(), 4);
        assert_eq!(certificates_of_signature(&signature(&[])), Some(Vec::new()));
    }

    #[test]
    fn no_part_of_a_signature_is_one() {
        let signed = signature(&[sequence(&[&null()])]);
        for end in 0..signed.len() {
            assert_eq!(certificates_of_signature(&signed[..end]), None, "{end}");
        }
        for at in [0, 2] {
            let mut other = signed.clone();
            other[at] ^= 1;
            assert_eq!(certificates_of_signature(&other), None, "{at}");
        }
    }
}
