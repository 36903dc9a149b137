//! The list of a publisher's files: lines of `SHA-256  FILE`, as sha256sum(1) writes them.

use instar_values::Digest;

use crate::{Architecture, ExtensionVersion, Pattern};

/// A published file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    /// The digest of its content.
    pub digest: Digest,
    /// Its name, without a directory.
    pub file: String,
}

/// The list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sums(Vec<Published>);

/// A line that is no entry of a list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the list of sums is no \"SHA-256  FILE\": {text:?}")]
pub struct NotASum {
    line: usize,
    text: String,
}

impl Sums {
    /// Reads a list.
    ///
    /// # Errors
    /// A line is no entry: then no line is believed.
    pub fn parse(text: &str) -> Result<Self, NotASum> {
        let entries = text
            .lines()
            .enumerate()
            .filter(|(_, line)| !line.is_empty());
        let entries = entries.map(|(number, line)| {
            published(line).ok_or_else(|| NotASum {
                line: number + 1,
                text: line.chars().take(120).collect(),
            })
        });
        Ok(Sums(entries.collect::<Result<_, _>>()?))
    }

    /// The digest of a file.
    pub fn digest_of(&self, file: &str) -> Option<Digest> {
        let entry = self.0.iter().find(|entry| entry.file == file)?;
        Some(entry.digest)
    }

    /// The newest file that a pattern matches on an architecture, and its version.
    pub fn newest(
        &self,
        pattern: &Pattern,
        architecture: Architecture,
    ) -> Option<(ExtensionVersion, &Published)> {
        let matching = self
            .0
            .iter()
            .filter_map(|entry| Some((pattern.version_of(&entry.file, architecture)?, entry)));
        matching.max_by(|(one, _), (other, _)| one.cmp(other))
    }
}

/// Reads a line: the digest, a blank, a blank or an asterisk (text or binary), the name.
fn published(line: &str) -> Option<Published> {
    let (hex, rest) = line.split_once(' ')?;
    let file = rest.strip_prefix([' ', '*'])?;
    // As of `sha256sum ./*`.
    let file = file.strip_prefix("./").unwrap_or(file);
    let is_plain = !file.is_empty() && !file.contains('/') && !file.starts_with('.');
    is_plain.then_some(())?;
    Some(Published {
        digest: Digest::from_hex(hex).ok()?,
        file: file.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn line(file: &str) -> String {
        format!("{}  {file}\n", Digest::of(file.as_bytes()).hex())
    }

    #[test]
    fn the_newest_file_of_a_pattern_is_found() {
        let text: String = [
            "kubernetes-v1.35.9-x86-64.raw",
            "kubernetes-v1.36.9-x86-64.raw",
            "kubernetes-v1.36.10-x86-64.raw",
            "kubernetes-v1.36.11-arm64.raw",
            "kubernetes-v1.37.0-x86-64.raw",
            "containerd-v2.1.4-x86-64.raw",
        ]
        .map(line)
        .concat();
        let sums = Sums::parse(&text).unwrap();
        let pattern: Pattern = "kubernetes-v1.36.@v-%a.raw".parse().unwrap();
        let newest = |architecture| sums.newest(&pattern, architecture).unwrap().1.file.clone();
        assert_eq!(
            newest(Architecture::X86_64),
            "kubernetes-v1.36.10-x86-64.raw"
        );
        assert_eq!(newest(Architecture::Arm64), "kubernetes-v1.36.11-arm64.raw");
        let file = "containerd-v2.1.4-x86-64.raw";
        assert_eq!(sums.digest_of(file), Some(Digest::of(file.as_bytes())));
        assert_eq!(sums.digest_of("other"), None);
    }

    #[test]
    fn a_list_with_another_line_is_not_believed() {
        let good = line("a.raw");
        for bad in [
            "a.raw",
            "00  a.raw",
            "<html>",
            &line("../a.raw"),
            &line("a/b.raw"),
            &line("./"),
            &line("././a.raw"),
        ] {
            let text = format!("{good}{bad}\n");
            let refused = Sums::parse(&text).unwrap_err();
            assert!(refused.to_string().contains("line 2"), "{refused}");
        }
        for as_good in [good.replace("  ", " *"), good.replace("  ", "  ./")] {
            let sums = Sums::parse(&as_good).unwrap();
            assert_eq!(sums.digest_of("a.raw"), Some(Digest::of(b"a.raw")));
        }
    }
}
