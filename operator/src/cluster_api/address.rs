//! Texts that become parts of an object's address: names, kinds, versions. Pure.
//!
//! Callers write some of them, and whoever may write Machines the others. A client puts them into the path of a request as they are: with a slash or
//! a question mark in it, the name of one object would be the path of another. So each is checked against the form that the API server has for it.

/// The longest name of an object.
const LONGEST: usize = 253;
/// The longest label of DNS.
const LONGEST_LABEL: usize = 63;

/// Whether this can be a namespace, or the plural of a kind: a label of DNS.
pub(super) fn is_label(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let ends_well = |byte: Option<&u8>| byte.is_some_and(|byte| is_inner(*byte));
    let bytes = text.as_bytes();
    bytes.len() <= LONGEST_LABEL
        && ends_well(bytes.first())
        && ends_well(bytes.last())
        && bytes.iter().all(|byte| is_inner(*byte) || *byte == b'-')
}

/// Whether this can be the name of an object, or the group of a kind: labels of DNS with dots between.
pub(super) fn is_name(text: &str) -> bool {
    text.len() <= LONGEST && text.split('.').all(is_label)
}

/// Whether this can be a kind: its plural, in small letters, is a label.
pub(super) fn is_kind(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphabetic())
        && is_label(&text.to_ascii_lowercase())
}

/// Whether this can be the version of a group: v1, v1beta2.
pub(super) fn is_version(text: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
    let Some(numbers) = text.strip_prefix('v') else {
        return false;
    };
    let mut stages = ["alpha", "beta"].into_iter();
    match stages.find_map(|stage| numbers.split_once(stage)) {
        Some((number, of_stage)) => is_number(number) && is_number(of_stage),
        None => is_number(numbers),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts that no part of an address may be.
    const BAD: [&str; 12] = [
        "",
        ".",
        "..",
        "a/b",
        "a?b",
        "a#b",
        "a%2fb",
        "a b",
        "a.",
        "-a",
        "ä",
        "v1beta2/namespaces/evil/kubeadmconfigs/x?",
    ];

    #[test]
    fn what_would_be_another_path_is_no_part_of_one() {
        for bad in BAD {
            for is_part in [is_label, is_name, is_kind, is_version] {
                assert!(!is_part(bad), "{bad:?}");
            }
        }
    }

    #[test]
    fn names_may_have_dots_and_labels_may_not() {
        assert!(is_label("default") && is_label("1-a"));
        assert!(is_name("worker-1.example") && !is_label("worker-1.example"));
        let long = "a".repeat(64);
        assert!(!is_label(&long) && is_label(&long[1..]));
        assert!(!is_name(&long) && !is_name(&"a.".repeat(127).replace("a.", "aa.")));
        assert!(!is_name("Worker"));
    }

    #[test]
    fn a_kind_is_a_word_and_a_version_has_a_number() {
        for (text, kind, version) in [
            ("KubeadmConfig", true, false),
            ("Metal3Machine", true, false),
            ("3Machine", false, false),
            ("v1", true, true),
            ("v1beta2", true, true),
            ("v12alpha34", true, true),
            ("v", true, false),
            ("1", false, false),
            ("v1beta", true, false),
            ("vbeta1", true, false),
            ("v1gamma1", true, false),
            ("v1beta1alpha1", true, false),
            ("v1alpha1beta1", true, false),
        ] {
            assert_eq!(is_kind(text), kind, "{text}");
            assert_eq!(is_version(text), version, "{text}");
        }
    }
}
