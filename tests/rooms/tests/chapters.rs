//! Checks that the tests in machines are stories in short chapters: no function of `tests/e2e` and `tests/kubernetes` is
//! longer than the limit.

#![allow(clippy::panic)]

use std::fs;
use std::path::{Path, PathBuf};

use instar_rooms::root;

/// Limit on the lines of a function's body that are neither blank nor a comment.
const MOST: usize = 15;

#[test]
fn functions_of_stories_are_short() {
    let tests = root().join("tests");
    let folders = ["e2e", "kubernetes"].map(|folder| tests.join(folder));
    let files: Vec<PathBuf> = folders
        .iter()
        .flat_map(|folder| {
            let files = sources_below(folder);
            assert!(!files.is_empty(), "{} has no sources", folder.display());
            files
        })
        .collect();
    assert!(files.len() > 60, "only {} files", files.len());
    let longer: Vec<String> = files
        .iter()
        .flat_map(|file| {
            let name = file.strip_prefix(&tests).unwrap_or(file).display();
            let source = fs::read_to_string(file).unwrap_or_default();
            longer_functions(&source)
                .into_iter()
                .map(|function| format!("{name}: {} has {} lines", function.name, function.lines))
                .collect::<Vec<_>>()
        })
        .collect();
    assert!(
        longer.is_empty(),
        "make chapters of at most {MOST} lines of code:\n{}",
        longer.join("\n")
    );
}

#[derive(Debug, PartialEq, Eq)]
struct Function {
    name: String,
    lines: usize,
}

fn longer_functions(source: &str) -> Vec<Function> {
    let mut all = functions(source);
    all.retain(|function| function.lines > MOST);
    all
}

/// Returns all functions of a source as rustfmt lays it out: a body begins after the line that ends with `{`, and its
/// end has the indentation of its beginning.
fn functions(source: &str) -> Vec<Function> {
    let lines: Vec<&str> = source.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let Some(name) = declared(line) else { continue };
        let signature = lines[at..]
            .iter()
            .position(|line| line.ends_with(['{', '}', ';']));
        let Some(body) = signature.map(|lines| at + lines) else {
            continue;
        };
        let lines = match lines[body].ends_with('{') {
            true => code_lines(&lines[body + 1..], indentation(line)),
            false => 0,
        };
        found.push(Function { name, lines });
    }
    found
}

/// Returns the name of the function that a line declares.
fn declared(line: &str) -> Option<String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let at = words.iter().position(|word| *word == "fn")?;
    let before = ["pub", "pub(crate)", "pub(super)", "const", "async"];
    let is_declaration = words[..at].iter().all(|word| before.contains(word));
    let name = words.get(at + 1)?.split(['(', '<']).next()?;
    is_declaration.then(|| name.to_owned())
}

fn indentation(line: &str) -> &str {
    &line[..line.len() - line.trim_start().len()]
}

/// Counts the lines of code up to the end of the block.
fn code_lines(behind: &[&str], indentation: &str) -> usize {
    let end = format!("{indentation}}}");
    let body = behind.iter().take_while(|line| **line != end);
    let code = body.filter(|line| !line.trim().is_empty() && !line.trim().starts_with("//"));
    code.count()
}

fn sources_below(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(sources_below(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

#[test]
fn bodies_are_counted_without_comments_and_blank_lines() {
    let source = "\
/// A function fn of nothing.
fn empty() {}

pub(crate) async fn two_lines<T>(
    argument: T,
) -> T
where
    T: Copy,
{
    // Why.
    let copy = argument;

    copy
}

impl Story {
    const fn of(self) -> Self {
        match self {
            other => other,
        }
    }
}

trait Told {
    fn told(&self) -> String;
}
";
    let counted: Vec<_> = functions(source)
        .into_iter()
        .map(|function| (function.name, function.lines))
        .collect();
    let expected = [("empty", 0), ("two_lines", 2), ("of", 3), ("told", 0)];
    assert_eq!(
        counted,
        expected.map(|(name, lines)| (name.to_owned(), lines))
    );
}

#[test]
fn a_longer_function_is_named() {
    let body = "    step();\n".repeat(MOST + 1);
    let source = format!("fn short() {{\n    step();\n}}\n\nfn long() {{\n{body}}}\n");
    let longer = longer_functions(&source);
    let (name, lines) = ("long".to_owned(), MOST + 1);
    assert_eq!(longer, [Function { name, lines }]);
}
