//! Licences of a package, from its machine-readable copyright file (<https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/>).

use std::{collections::BTreeSet, fs, path::Path};

/// The short names of all licences in `usr/share/doc/NAME/copyright` below `root`; none when the file is missing or free text.
#[must_use]
pub fn licences(root: &Path, name: &str) -> BTreeSet<String> {
    let file = root.join("usr/share/doc").join(name).join("copyright");
    fs::read_to_string(file)
        .map(|text| licences_in(&text))
        .unwrap_or_default()
}

fn licences_in(text: &str) -> BTreeSet<String> {
    if !text.trim_start().starts_with("Format:") {
        return BTreeSet::new();
    }
    text.lines()
        .filter_map(|line| line.strip_prefix("License:"))
        .map(|name| name.split_whitespace().collect::<Vec<_>>().join(" "))
        .filter(|name| !name.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_readable_files_name_their_licences() {
        let text = "Format: https://example/copyright-format/1.0/\nFiles: *\nLicense: GPL-2+\n text\n\nFiles: lib/*\nLicense: LGPL-2.1+ or  MIT\nLicense:\n";
        let names: Vec<_> = licences_in(text).into_iter().collect();
        assert_eq!(names, ["GPL-2+", "LGPL-2.1+ or MIT"]);
    }

    #[test]
    fn free_text_names_none() {
        assert!(licences_in("This package was debianized by someone.\nLicense: GPL\n").is_empty());
    }
}
