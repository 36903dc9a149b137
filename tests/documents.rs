//! The form of the documents: short cells, decisions below headings, links and paths that lead somewhere.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;

use instar_tests::workspace_root;

/// A line of a cell, in characters of the file. A browser shows the widest column of a table about as wide as this.
const LINE: usize = 100;

/// How many lines a cell of a document's tables may have.
const LONGEST_CELLS: [(&str, usize); 5] = [
    ("README.md", 2),
    ("docs/api.md", 3),
    ("docs/contracts.md", 3),
    ("docs/machine-config.md", 3),
    ("docs/promises.md", 3),
];

/// Limit on the characters of a cell of every other document: three lines of the text around it.
const LONGEST_ELSEWHERE: usize = 3 * 150;

#[test]
fn cells_of_tables_are_short() {
    let mut too_long = Vec::new();
    for file in documents() {
        let known = LONGEST_CELLS.iter().find(|(known, _)| *known == file);
        let limit = known.map_or(LONGEST_ELSEWHERE, |(_, lines)| lines * LINE);
        for cell in cells(&read(&file)) {
            let length = cell.text.chars().count();
            if length > limit {
                let begin: String = cell.text.chars().take(60).collect();
                let (row, column) = (cell.line, cell.column);
                too_long.push(format!(
                    "{file}, line {row}, column {column}: {length} characters, at most {limit}: \"{begin}…\""
                ));
            }
        }
    }
    assert!(
        too_long.is_empty(),
        "move the details of these cells into a paragraph or a table below: {too_long:#?}"
    );
}

#[test]
fn decisions_are_grouped_by_topic() {
    let text = read("docs/architecture.md");
    let decisions = text
        .split("\n## ")
        .find_map(|section| section.strip_prefix("Decisions\n"))
        .expect("docs/architecture.md has a section called Decisions");
    let mut topics = decisions.split("\n### ");
    let before_the_first = topics.next().unwrap();
    assert!(
        !before_the_first.contains("\n- "),
        "a decision in docs/architecture.md stands below no topic"
    );
    for topic in topics {
        let name = topic.lines().next().unwrap();
        let decisions = topic.matches("\n- ").count();
        assert!(
            (1..=12).contains(&decisions),
            "docs/architecture.md, \"{name}\": {decisions} decisions; divide the topic"
        );
    }
}

#[test]
fn links_and_paths_lead_somewhere() {
    let root = workspace_root();
    let mut broken = Vec::new();
    for file in documents() {
        let folder = root.join(&file).parent().unwrap().to_owned();
        let text = read(&file);
        for target in text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split([')', '#']).next())
        {
            let is_here = !target.contains("://") && !target.is_empty();
            if is_here && !folder.join(target).exists() {
                broken.push(format!("{file}: link to {target}"));
            }
        }
    }
    for file in documents() {
        for path in source_paths(&read(&file)) {
            if !root.join(&path).exists() {
                broken.push(format!("{file}: {path}"));
            }
        }
    }
    assert!(
        broken.is_empty(),
        "these lead nowhere: mend the document where the file has moved: {broken:#?}"
    );
}

/// The documents of the repository, by their path in it.
fn documents() -> Vec<String> {
    ["", "docs"]
        .into_iter()
        .flat_map(|folder| {
            let entries = fs::read_dir(workspace_root().join(folder)).unwrap();
            entries.map(move |entry| {
                let name = entry.unwrap().file_name().into_string().unwrap();
                if folder.is_empty() {
                    name
                } else {
                    format!("{folder}/{name}")
                }
            })
        })
        .filter(|path| path.ends_with(".md"))
        .collect()
}

fn read(file: &str) -> String {
    fs::read_to_string(workspace_root().join(file))
        .unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// A cell of a table: where it is in its document, counted from one, and its text.
#[derive(Debug, PartialEq, Eq)]
struct Cell {
    line: usize,
    column: usize,
    text: String,
}

/// The cells of all tables of a document. What is in code blocks is no table.
fn cells(document: &str) -> Vec<Cell> {
    let mut cells = Vec::new();
    let mut is_code = false;
    for (number, line) in document.lines().enumerate() {
        is_code ^= line.starts_with("```");
        let Some(row) = line.strip_prefix('|').filter(|_| !is_code) else {
            continue;
        };
        let row = row.trim_end().trim_end_matches('|').replace("\\|", "\u{1}");
        cells.extend(row.split('|').enumerate().map(|(column, text)| Cell {
            line: number + 1,
            column: column + 1,
            text: text.trim().replace('\u{1}', "|"),
        }));
    }
    cells
}

/// Every file or folder of sources that a document names, in its text and in its pictures. `{a,b}` and `*` name several: those are
/// left out.
fn source_paths(document: &str) -> Vec<String> {
    let words = document.split(|c: char| c.is_whitespace() || "`()|,;\"".contains(c));
    words
        .map(|word| word.trim_end_matches(['.', ':']))
        .filter(|word| {
            ["/src/", "/tests/", "/e2e/", "/proto/"]
                .iter()
                .any(|folder| word.contains(folder))
        })
        .filter(|word| !word.contains(['{', '}', '*', '<', '…']) && !word.starts_with(['/', '$']))
        .filter(|word| !word.starts_with("target/") && !word.contains("://"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn a_cell_is_told_by_line_and_column() {
    let document = "text | no cell\n\n| a | b \\| c |\n| --- | --- |\n```\n| code |\n```\n";
    let cells = cells(document);
    let found = |line, column| {
        let cell = cells
            .iter()
            .find(|cell| (cell.line, cell.column) == (line, column));
        cell.map(|cell| cell.text.as_str())
    };
    assert_eq!(found(3, 1), Some("a"));
    assert_eq!(found(3, 2), Some("b | c"));
    assert_eq!(found(4, 2), Some("---"));
    assert_eq!(cells.len(), 4);
}

#[test]
fn paths_of_sources_are_found_wherever_they_stand() {
    let text = "see (`init/src/main.rs`), tests/e2e/trust.rs. machined/src/{a,b}.rs target/e2e/x docs/api.md tests/e2e/a_*.rs";
    assert_eq!(
        source_paths(text),
        ["init/src/main.rs", "tests/e2e/trust.rs"]
    );
}
