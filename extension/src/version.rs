//! Versions of extensions, in the order of the UAPI group's version format specification, which systemd compares by.

use std::cmp::Ordering;
use std::fmt;

/// A version as its publisher writes it: `1.36.3`, `2.1.4~rc1`, `1.33.1+k3s1`.
#[derive(Debug, Clone)]
pub struct ExtensionVersion(String);

impl ExtensionVersion {
    /// A version of letters, digits and `.-_+~^`, at least one of them a digit; `None` for others.
    pub fn new(text: &str) -> Option<Self> {
        let is_right = |byte: u8| byte.is_ascii_alphanumeric() || b".-_+~^".contains(&byte);
        let is_version = text.len() <= 64
            && text.bytes().all(is_right)
            && text.bytes().any(|byte| byte.is_ascii_digit());
        is_version.then(|| ExtensionVersion(text.to_owned()))
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ExtensionVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Separators, from what sorts lowest: a text that ends sorts above `~` and below the others.
const SEPARATORS: [u8; 4] = *b"~-^.";

impl Ord for ExtensionVersion {
    fn cmp(&self, other: &Self) -> Ordering {
        compare(self.0.as_bytes(), other.0.as_bytes())
    }
}

impl PartialOrd for ExtensionVersion {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for ExtensionVersion {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for ExtensionVersion {}

fn compare<'a>(mut left: &'a [u8], mut right: &'a [u8]) -> Ordering {
    loop {
        // Characters that are neither separators nor parts of words are passed over.
        left = skip(left);
        right = skip(right);
        let by_separator = rank(left).cmp(&rank(right));
        if by_separator.is_ne() {
            return by_separator;
        }
        match (left.first(), right.first()) {
            (None, _) | (_, None) => return Ordering::Equal,
            (Some(first), _) if SEPARATORS.contains(first) => {
                (left, right) = (&left[1..], &right[1..]);
            }
            _ => {
                let (order, rest) = compare_words(left, right);
                if order.is_ne() {
                    return order;
                }
                (left, right) = rest;
            }
        }
    }
}

fn skip(text: &[u8]) -> &[u8] {
    let is_read = |byte: &u8| byte.is_ascii_alphanumeric() || SEPARATORS.contains(byte);
    let at = text.iter().position(is_read).unwrap_or(text.len());
    &text[at..]
}

/// The rank of what a text begins with: `~`, its end, `-`, `^`, `.`, a word.
fn rank(text: &[u8]) -> u8 {
    match text.first() {
        Some(b'~') => 0,
        None => 1,
        Some(b'-') => 2,
        Some(b'^') => 3,
        Some(b'.') => 4,
        Some(_) => 5,
    }
}

/// Compares the words of digits that both texts begin with, or else of letters; returns what follows them.
fn compare_words<'a>(left: &'a [u8], right: &'a [u8]) -> (Ordering, (&'a [u8], &'a [u8])) {
    let is_number = |text: &[u8]| text.first().is_some_and(u8::is_ascii_digit);
    let split = |text: &'a [u8], belongs: fn(&u8) -> bool| {
        let end = text.iter().position(|byte| !belongs(byte));
        text.split_at(end.unwrap_or(text.len()))
    };
    if is_number(left) || is_number(right) {
        // A number is above a word.
        let ((one, left), (other, right)) = (
            split(left, u8::is_ascii_digit),
            split(right, u8::is_ascii_digit),
        );
        let (one, other) = (
            without_zeros(one, is_number(one)),
            without_zeros(other, is_number(other)),
        );
        return (one.cmp(&other), (left, right));
    }
    let ((one, left), (other, right)) = (
        split(left, u8::is_ascii_alphabetic),
        split(right, u8::is_ascii_alphabetic),
    );
    (one.cmp(other), (left, right))
}

/// The key of a number: whether it is one, the count of its digits, its digits.
fn without_zeros(digits: &[u8], is_number: bool) -> (bool, usize, &[u8]) {
    let zeros = digits.iter().take_while(|digit| **digit == b'0').count();
    let digits = &digits[zeros..];
    (is_number, digits.len(), digits)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// The specification's own examples of order, and versions that are published.
    #[test]
    fn versions_are_in_order() {
        let rising = [
            "1~rc1",
            "1",
            "1-1",
            "1^patch",
            "1.0",
            "1.0.1",
            "1.1",
            "1.9.10",
            "1.10~beta",
            "1.10",
            "1.10.0",
            "2",
            "12",
            "122.1",
            "123~rc1-1",
            "123",
            "123-a",
            "123-a.1",
            "123-1",
            "123-1.1",
            "123^post1",
            "123.a-1",
            "123.1-1",
            "123a-1",
            "124-1",
        ];
        let versions = rising.map(|text| ExtensionVersion::new(text).unwrap());
        for (number, lower) in versions.iter().enumerate() {
            for higher in &versions[number + 1..] {
                assert!(lower < higher, "{lower} < {higher}");
                assert!(higher > lower, "{higher} > {lower}");
            }
        }
        let of = |text| ExtensionVersion::new(text).unwrap();
        assert_eq!(of("1.02"), of("1.2"));
        assert!(of("1.33.1+k3s1") < of("1.33.1+k3s2"));
        assert!(of("1.36.9") < of("1.36.10"));
    }

    #[test]
    fn other_texts_are_no_versions() {
        for text in ["", "latest", "1/2", "1 2", "../1", &"1".repeat(65)] {
            assert!(ExtensionVersion::new(text).is_none(), "{text}");
        }
    }
}
