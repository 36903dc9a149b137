//! A program's length in lines of code, so that comments and blank lines cost nothing.

use std::path::Path;

use anyhow::{Context, Result};

/// Counts the lines of code in all files below a folder. Unit tests are left out: they are in files named `tests.rs`.
pub fn code_lines_below(folder: &Path) -> Result<usize> {
    let mut lines = 0;
    let entries =
        std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            lines += code_lines_below(&path)?;
        } else if path.file_name().is_some_and(|name| name != "tests.rs") {
            let text = std::fs::read_to_string(&path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            lines += code_lines(&text);
        }
    }
    Ok(lines)
}

/// Counts the lines of Rust that are neither blank nor only comment.
///
/// A block comment at the start of a line counts as a comment. One after code counts as code: telling it from a string
/// would take a parser, and the count errs on the strict side.
fn code_lines(text: &str) -> usize {
    let mut open_blocks = 0;
    text.lines()
        .filter(|line| has_code(line.trim(), &mut open_blocks))
        .count()
}

/// Whether a line holds code. Updates the number of open block comments, which nest.
fn has_code(mut line: &str, open_blocks: &mut usize) -> bool {
    loop {
        if *open_blocks == 0 {
            match line.strip_prefix("/*") {
                Some(comment) => (*open_blocks, line) = (1, comment),
                None => return !line.is_empty() && !line.starts_with("//"),
            }
        }
        let ends = line.find("*/").unwrap_or(line.len());
        let begins = line.find("/*").unwrap_or(line.len());
        match ends.cmp(&begins) {
            std::cmp::Ordering::Equal => return false,
            std::cmp::Ordering::Less => {
                (*open_blocks, line) = (*open_blocks - 1, &line[ends + 2..])
            }
            std::cmp::Ordering::Greater => {
                (*open_blocks, line) = (*open_blocks + 1, &line[begins + 2..])
            }
        }
        line = line.trim_start();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn comments_and_blank_lines_cost_nothing() {
        for (text, lines) in [
            ("", 0),
            ("\n  \n\t\n", 0),
            ("let a = 1;\n", 1),
            ("let a = 1; // why\n", 1),
            ("// why\n    // and why not\n", 0),
            ("//! A module.\n/// A function.\nfn f() {}\n", 1),
            ("/* one */\nlet a = 1;\n", 1),
            ("/* one\n   two\n   three */\nlet a = 1;\n", 1),
            ("/* outer /* inner */ still */ let a = 1;\n", 1),
            ("/* outer /* inner */ still\nstill */\n", 0),
            ("/** A function. */ fn f() {}\n", 1),
            ("/* one */ // two\n", 0),
            ("/* one */ /* two\n*/\n", 0),
            // Strict: this comment begins after code.
            ("let a = 1; /* one\n two */\n", 2),
            // No comments: a string, and a product with a dereferenced value.
            ("let a = \"/*\";\nlet b = 2;\n", 2),
            ("let a = b*/c;\n", 1),
        ] {
            assert_eq!(code_lines(text), lines, "{text:?}");
        }
    }

    #[test]
    fn tests_in_a_file_of_their_own_do_not_count() {
        let text = "fn f() {}\n\n#[cfg(test)]\nmod tests;\n";
        assert_eq!(code_lines(text), 3);
        let folder = tempfile::tempdir().unwrap();
        let below = folder.path().join("f");
        std::fs::create_dir(&below).unwrap();
        std::fs::write(folder.path().join("f.rs"), text).unwrap();
        std::fs::write(below.join("tests.rs"), "#[test]\nfn works() {}\n").unwrap();
        std::fs::write(below.join("g.rs"), "fn g() {}\n").unwrap();
        assert_eq!(code_lines_below(folder.path()).unwrap(), 4);
    }
}
