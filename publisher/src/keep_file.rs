//! The file of what media have and machines run: a version or a digest on each line; `#` begins a comment.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, bail};
use instar_channel::change::Keep;

/// Reads the file.
pub(crate) fn read(file: Option<&Path>, newest: usize) -> anyhow::Result<Keep> {
    let mut keep = Keep {
        newest,
        ..Keep::default()
    };
    let Some(file) = file else {
        return Ok(keep);
    };
    let text = fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    for (number, line) in text.lines().enumerate() {
        let word = line.split('#').next().unwrap_or_default().trim();
        if let Ok(version) = word.parse() {
            keep.versions.insert(version);
        } else if let Ok(digest) = word.parse() {
            keep.digests.insert(digest);
        } else if !word.is_empty() {
            // A line that is not understood may name what a machine needs.
            let (name, number) = (file.display(), number + 1);
            bail!("{name}, line {number}: {word:?} is neither a version nor a digest");
        }
    }
    Ok(keep)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn versions_and_digests_are_kept_and_nothing_is_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("keep");
        let digest = format!("sha256:{}", "a".repeat(64));
        fs::write(&file, format!("# media\nv0.1.0  # the stick\n\n{digest}\n")).unwrap();
        let keep = read(Some(&file), 2).unwrap();
        assert_eq!((keep.versions.len(), keep.digests.len()), (1, 1));
        fs::write(&file, "v0.1.0\nlatest\n").unwrap();
        let error = read(Some(&file), 2).unwrap_err().to_string();
        assert!(error.contains("line 2: \"latest\""), "{error}");
        assert_eq!(read(None, 2).unwrap().newest, 2);
    }
}
