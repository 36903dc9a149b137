//! "Did you mean …?" for a misspelt name.

/// The candidate that `written` most likely meant: the same but for case, or at most two edits away.
pub(super) fn closest<'a>(
    written: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    // Names are short. A long one is not a typo, and comparing is quadratic.
    if written.len() > 64 {
        return None;
    }
    let written = written.to_ascii_lowercase();
    candidates
        .into_iter()
        .map(|candidate| {
            (
                distance(&written, &candidate.to_ascii_lowercase()),
                candidate,
            )
        })
        .filter(|&(distance, candidate)| distance <= 2 && distance * 2 < candidate.len())
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, candidate)| candidate)
}

/// Levenshtein distance in bytes.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        if let Some(first) = row.first_mut() {
            *first = left;
        }
        for (cell, y) in row.iter_mut().skip(1).zip(b.bytes()) {
            let substituted = diagonal + usize::from(x != y);
            diagonal = *cell;
            left = substituted.min(left + 1).min(*cell + 1);
            *cell = left;
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_edits() {
        for (a, b, edits) in [
            ("", "", 0),
            ("", "abc", 3),
            ("kitten", "sitting", 3),
            ("mtu", "mut", 2),
            ("disk", "disk", 0),
        ] {
            assert_eq!(distance(a, b), edits, "{a} {b}");
        }
    }

    #[test]
    fn suggests_only_what_is_close() {
        let fields = ["hostname", "auto", "image"];
        assert_eq!(closest("hostName", fields), Some("hostname"));
        assert_eq!(closest("imgae", fields), Some("image"));
        assert_eq!(closest("xy", fields), None);
        assert_eq!(closest(&"h".repeat(1000), fields), None);
    }
}
