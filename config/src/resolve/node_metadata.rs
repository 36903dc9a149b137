//! Labels, annotations and taints of a node, checked as its cluster checks them. For a single wrong one the API refuses the whole node, or each
//! later change of it; and kubelet takes labels from its command line, which ends at the first one with white space.

use std::collections::BTreeMap;

use super::super::{model::Taint, section::Scalar};

/// Limit on a name without its prefix, and on the value of a label.
const LONGEST_WORD: usize = 63;
/// Limit on the prefix of a name.
const LONGEST_PREFIX: usize = 253;
const NAME: &str = "the name has at most 63 letters, digits, `-`, `_` and `.`, with a letter or a digit at both ends, such as `disk`; before that, \
     there may be a domain in small letters and `/`, as in `example.org/rack`";
const VALUE: &str = "the value has at most 63 letters, digits, `-`, `_` and `.`, with a letter or a digit at both ends";

/// Reads labels.
pub(super) fn labels<'a>(
    given: impl Iterator<Item = (&'a str, Scalar<'a>)>,
) -> BTreeMap<String, String> {
    let label = |(name, value): (&'a str, Scalar<'a>)| {
        demand(&value, is_name(name), NAME)?;
        demand(&value, is_value(value.text), VALUE)?;
        Some((name.to_owned(), value.text.to_owned()))
    };
    given.filter_map(label).collect()
}

/// Reads annotations, whose names may have large letters in their domains, and whose values are free.
pub(super) fn annotations<'a>(
    given: impl Iterator<Item = (&'a str, Scalar<'a>)>,
) -> BTreeMap<String, String> {
    let annotation = |(name, value): (&'a str, Scalar<'a>)| {
        demand(&value, is_name(&name.to_lowercase()), NAME)?;
        Some((name.to_owned(), value.text.to_owned()))
    };
    given.filter_map(annotation).collect()
}

/// Reads taints.
pub(super) fn taints<'a>(
    given: impl Iterator<Item = (&'a str, Scalar<'a>)>,
) -> BTreeMap<String, Taint> {
    let taint = |(name, text): (&'a str, Scalar<'a>)| {
        demand(&text, is_name(name), NAME)?;
        let taint = text.parsed::<Taint>()?;
        demand(&text, is_value(&taint.value), VALUE)?;
        Some((name.to_owned(), taint))
    };
    given.filter_map(taint).collect()
}

/// Reports what does not hold. A machine that has such a config already goes on without it, and so does its node.
fn demand(of: &Scalar<'_>, holds: bool, message: &str) -> Option<()> {
    if !holds {
        of.wrong_if_new(message);
    }
    holds.then_some(())
}

fn is_name(text: &str) -> bool {
    match text.split_once('/') {
        Some((prefix, name)) => is_domain(prefix) && is_word(name),
        None => is_word(text),
    }
}

fn is_value(text: &str) -> bool {
    text.is_empty() || is_word(text)
}

fn is_word(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    text.len() <= LONGEST_WORD && text.bytes().all(is_inner) && ends_well(text)
}

fn is_domain(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let mut parts = text.split('.');
    text.len() <= LONGEST_PREFIX && parts.all(|part| part.bytes().all(is_inner) && ends_well(part))
}

/// Whether a text has a letter or a digit at both ends.
fn ends_well(text: &str) -> bool {
    let ends = [text.bytes().next(), text.bytes().next_back()];
    let is_good = |end: Option<u8>| end.is_some_and(|end| end.is_ascii_alphanumeric());
    ends.into_iter().all(is_good)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_values_are_those_that_a_cluster_takes() {
        let long = "x".repeat(64);
        for (text, name, value) in [
            ("disk", true, true),
            ("Rack_7.b", true, true),
            ("example.org/rack", true, false),
            ("node-role.kubernetes.io/worker", true, false),
            ("", false, true),
            ("7 b", false, false),
            ("a,b", false, false),
            ("-a", false, false),
            ("a.", false, false),
            ("ä", false, false),
            ("Example.org/rack", false, false),
            ("example..org/rack", false, false),
            ("/rack", false, false),
            ("a/b/c", false, false),
            ("a/", false, false),
            (long.as_str(), false, false),
            (&long[..63], true, true),
        ] {
            assert_eq!((is_name(text), is_value(text)), (name, value), "{text:?}");
        }
    }
}
