//! "Did you mean …?" for a misspelt name.

/// The candidate that `written` probably means: the same but for case, or at most two edits away.
pub(super) fn closest<'a>(
    written: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    // Names are short. A long text is not a typo, and the comparison is quadratic.
    if written.len() > 64 {
        return None;
    }
    let written = written.to_ascii_lowercase();
    candidates
        .into_iter()
        .map(|candidate| {
            let edits = strsim::levenshtein(&written, &candidate.to_ascii_lowercase());
            (edits, candidate)
        })
        .filter(|&(edits, candidate)| edits <= 2 && edits * 2 < candidate.len())
        .min_by_key(|&(edits, _)| edits)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggests_only_what_is_close() {
        let fields = ["hostname", "auto", "image"];
        assert_eq!(closest("hostName", fields), Some("hostname"));
        assert_eq!(closest("imgae", fields), Some("image"));
        assert_eq!(closest("xy", fields), None);
        assert_eq!(closest(&"h".repeat(1000), fields), None);
    }
}
