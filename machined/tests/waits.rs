//! Every wait is in docs/waits.md, with its limit and the consequence: this test searches the sources for calls that wait.
//!
//! A row of the table names a file and the functions in it that wait. A function that waits and is in no row fails this test, and so does
//! a row whose function does not wait any more.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Each of these calls waits, or limits or begins a wait.
const WAITS: [&str; 37] = [
    "timeout(",
    "timeout_at(",
    "sleep(",
    "sleep_until(",
    "interval(",
    "pending()",
    "spawn_blocking(",
    "blocking_io::within(",
    "blocking_io::to_its_end(",
    "blocking_recv(",
    "blocking_lock(",
    "blocking_lock_owned(",
    ".wait_for(",
    ".wait_while(",
    ".wait_timeout_while(",
    ".wait_locked(",
    ".changed()",
    ".closed()",
    ".notified()",
    ".recv()",
    ".recv_timeout(",
    ".accept()",
    ".wait()",
    ".wait(Some(",
    ".join()",
    ".output()",
    ".readable()",
    "poll(",
    "waitpid(",
    "waitid(",
    "recvmsg(",
    "recv_from(",
    "flock(",
    "async_io(",
    "lookup_host(",
    "to_socket_addrs(",
    "::connect(",
];

/// Each of these calls waits only with `.await`; other functions have the same names.
const AWAITED: [&str; 28] = [
    ".lock()",
    ".lock_owned()",
    ".acquire()",
    ".acquire_owned()",
    ".next()",
    ".frame()",
    ".status()",
    ".read(",
    ".read_exact(",
    ".read_until(",
    ".next_line()",
    ".read_to_end(",
    ".read_u32(",
    ".write_all(",
    ".send(",
    ".reserve()",
    ".ready()",
    ".tick()",
    ".message()",
    ".fill_buf()",
    ".write_u32(",
    ".handshake(",
    ".send_request(",
    ".execute()",
    ".try_collect()",
    ".init()",
    "join_all(",
    "get_time(",
];

/// The names of a file and of a function in it.
type Place = (String, String);

#[test]
fn every_wait_is_in_the_table() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let table = fs::read_to_string(root.join("docs/waits.md")).unwrap();
    let (folders, rows) = read_table(&table);
    assert!(
        folders.len() >= 3,
        "the table has lost a program: {folders:?}"
    );
    let waits: BTreeSet<Place> = folders
        .iter()
        .flat_map(|folder| files(&root.join(folder)))
        .flat_map(|file| {
            let name = file.strip_prefix(&root).unwrap().display().to_string();
            let functions = waits_in(&fs::read_to_string(&file).unwrap());
            functions
                .into_iter()
                .map(move |function| (name.clone(), function))
        })
        .collect();
    let missing: Vec<_> = waits.difference(&rows).collect();
    assert!(
        missing.is_empty(),
        "these functions wait, and docs/waits.md does not say how long and what comes after that: {missing:#?}"
    );
    let stale: Vec<_> = rows.difference(&waits).collect();
    assert!(
        stale.is_empty(),
        "docs/waits.md names functions that do not wait any more: {stale:#?}"
    );
}

#[test]
fn there_is_one_way_to_a_thread_for_blocking_work() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let table = fs::read_to_string(root.join("docs/waits.md")).unwrap();
    let (folders, _) = read_table(&table);
    let files = folders.iter().flat_map(|folder| files(&root.join(folder)));
    let users: Vec<_> = files
        .filter(|file| {
            fs::read_to_string(file)
                .unwrap()
                .contains("spawn_blocking(")
        })
        .map(|file| file.strip_prefix(&root).unwrap().display().to_string())
        .collect();
    assert_eq!(
        users,
        ["base/src/blocking_io.rs"],
        "use base::blocking_io instead"
    );
}

/// Parses the folders that the table covers, and its rows: `| file | functions | what for | limit | what then |` below a heading
/// with the folder of the files.
fn read_table(text: &str) -> (Vec<String>, BTreeSet<Place>) {
    let (mut folders, mut rows) = (Vec::new(), BTreeSet::new());
    for line in text.lines() {
        if line.starts_with("## ") {
            folders.extend(quoted(line).into_iter().take(1));
        }
        let Some(cells) = line.strip_prefix("| `") else {
            continue;
        };
        let cells: Vec<&str> = cells
            .trim_end_matches('|')
            .split('|')
            .map(str::trim)
            .collect();
        assert!(
            cells.len() == 5 && cells.iter().all(|cell| !cell.is_empty()),
            "not a file, functions, what for, a limit and what comes then: {line}"
        );
        let folder = folders.last().unwrap();
        let file = format!("{folder}/{}", cells[0].trim_end_matches('`'));
        for function in quoted(cells[1]) {
            let is_new = rows.insert((file.clone(), function.clone()));
            assert!(is_new, "{function} of {file} is there twice");
        }
    }
    (folders, rows)
}

/// Returns the texts between backticks.
fn quoted(text: &str) -> Vec<String> {
    let words = text.split('`').skip(1).step_by(2);
    words
        .map(|word| word.trim_end_matches('/').to_owned())
        .collect()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && !name.ends_with("tests") {
            found.extend(files(&path));
        } else if name.ends_with(".rs") && !name.ends_with("tests.rs") {
            found.push(path);
        }
    }
    found
}

/// Returns the functions of a file that wait, without its tests.
fn waits_in(source: &str) -> BTreeSet<String> {
    // A module of tests in a file of its own may be named anywhere.
    let tests = source
        .match_indices("#[cfg(test)]\nmod ")
        .find(|(at, mark)| {
            source[at + mark.len()..]
                .lines()
                .next()
                .unwrap()
                .ends_with('{')
        });
    let product = &source[..tests.map_or(source.len(), |(at, _)| at)];
    // The code without spaces, so that it does not matter how a call is broken into lines; and for each byte the function that it is in.
    let (mut code, mut functions, mut names) = (String::new(), Vec::new(), vec![String::new()]);
    for line in product.lines() {
        let line = line.split("//").next().unwrap();
        if let Some(name) = name_of_function(line) {
            names.push(name);
        }
        for part in line.split_whitespace() {
            // `match within(…)` calls `within`, and `fn within(…)` does not.
            if code.ends_with(is_of_a_name) && part.starts_with(is_of_a_name) {
                code.push(' ');
            }
            code.push_str(part);
        }
        functions.resize(code.len(), names.len() - 1);
    }
    let calls =
        |needle: &str| -> Vec<usize> { code.match_indices(needle).map(|(at, _)| at).collect() };
    let bare = WAITS
        .iter()
        .flat_map(|needle| calls(needle))
        .filter(|at| is_call(&code, *at));
    let awaited = AWAITED.iter().flat_map(|needle| {
        calls(needle).into_iter().filter(|at| {
            let opened = at + needle.find('(').unwrap();
            after_parenthesis(&code[opened..]).starts_with(".await")
        })
    });
    bare.chain(awaited)
        .map(|at| names[functions[at]].clone())
        .collect()
}

fn is_of_a_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn name_of_function(line: &str) -> Option<String> {
    let (before, after) = line.split_once("fn ")?;
    let is_word = before.is_empty() || before.ends_with(' ');
    let end = after.find(|c: char| !is_of_a_name(c))?;
    (is_word && end > 0).then(|| after[..end].to_owned())
}

/// Returns whether a name begins here and is called.
fn is_call(code: &str, at: usize) -> bool {
    let before = &code[..at];
    let is_definition = before.ends_with("fn ");
    let is_longer_name = before.ends_with(is_of_a_name);
    let has_own_start = code[at..].starts_with(['.', ':']);
    has_own_start || !(is_definition || is_longer_name)
}

/// Returns the text after a call's closing parenthesis; `code` begins at the opening one.
fn after_parenthesis(code: &str) -> &str {
    let mut depth = 0_usize;
    for (at, c) in code.char_indices() {
        match c {
            '(' => depth += 1,
            ')' if depth == 1 => return &code[at + 1..],
            ')' => depth -= 1,
            _ => {}
        }
    }
    ""
}

#[test]
fn the_ways_to_wait_are_found() {
    let source = "
        async fn one() {
            // sleep(1) in words
            set_read_timeout(2);
            socket
                .read(&mut chunk(3))
                .await;
        }
        pub(super) fn two(file: &mut File) {
            file.read(&mut buffer)?;
        }
        fn three() {
            tokio::select! {
                changed = news.changed() => {}
            }
        }
        fn sleep(time: Duration) {}
#[cfg(test)]
mod tests {
        fn four() { sleep(1) }
}
";
    let found: Vec<String> = waits_in(source).into_iter().collect();
    assert_eq!(found, ["one", "three"]);
}

#[test]
fn a_row_names_functions() {
    let text = "## machined (`machined/src/`)\n| file | functions |\n| `a/b.rs` | `one`, `two` | x | 1 s | y |\n";
    let (folders, rows) = read_table(text);
    assert_eq!(folders, ["machined/src"]);
    let place = |function: &str| ("machined/src/a/b.rs".to_owned(), function.to_owned());
    assert_eq!(rows, BTreeSet::from([place("one"), place("two")]));
}
