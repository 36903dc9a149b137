//! The imports of a crate's files from each other: every path that begins with `crate::` or enough `super::`, in a `use` or in the
//! code.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::tokens::{Token, test_modules, tokens};

/// A name that one file of the crate imports from another.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Import {
    /// The file that imports, below the crate's `src`.
    pub importer: PathBuf,
    /// The file that the path leads to; with a re-export, the one that re-exports.
    pub imported: PathBuf,
    /// The rest of the path; empty where the module itself is imported.
    pub name: String,
}

/// Returns all imports between the files below `src`. The library's name `library` counts as well: a binary beside it
/// uses that for `crate`.
pub fn imports(src: &Path, library: &str) -> io::Result<BTreeSet<Import>> {
    let mut sources = BTreeMap::new();
    read_sources(src, Path::new(""), &mut sources)?;
    drop_tests(&mut sources);
    let modules: BTreeMap<Vec<String>, &Path> = sources
        .keys()
        .map(|file| (module_of(file), file.as_path()))
        .collect();
    let mut found = BTreeSet::new();
    for (file, source) in &sources {
        let own = module_of(file);
        for path in paths(&tokens(source), &own, library) {
            let Some((imported, length)) = resolve(&path, &modules) else {
                continue;
            };
            if imported != file {
                found.insert(Import {
                    importer: file.clone(),
                    imported: imported.to_owned(),
                    name: path[length..].join("::"),
                });
            }
        }
    }
    Ok(found)
}

fn read_sources(
    src: &Path,
    below: &Path,
    sources: &mut BTreeMap<PathBuf, String>,
) -> io::Result<()> {
    for entry in fs::read_dir(src.join(below))? {
        let entry = entry?;
        let path = below.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            read_sources(src, &path, sources)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            sources.insert(path, fs::read_to_string(entry.path())?);
        }
    }
    Ok(())
}

/// Drops files that are declared for tests, and the files below them.
fn drop_tests(sources: &mut BTreeMap<PathBuf, String>) {
    let mut tests = Vec::new();
    for (file, source) in &*sources {
        for name in test_modules(source) {
            let mut module = module_of(file);
            module.push(name);
            tests.push(module);
        }
    }
    sources.retain(|file, _| {
        let module = module_of(file);
        !tests.iter().any(|test| module.starts_with(test))
    });
}

/// Returns the path of a file's module, empty for the crate's root.
fn module_of(file: &Path) -> Vec<String> {
    let mut path: Vec<String> = file
        .with_extension("")
        .iter()
        .map(|part| part.to_string_lossy().into_owned())
        .collect();
    let is_named_by_its_directory = path.last().is_some_and(|last| last == "mod");
    if is_named_by_its_directory || path == ["lib"] {
        path.pop();
    }
    path
}

/// Returns the file of the longest module that `path` leads through, and the number of names that lead there.
fn resolve<'a>(
    path: &[String],
    modules: &BTreeMap<Vec<String>, &'a Path>,
) -> Option<(&'a Path, usize)> {
    (0..=path.len())
        .rev()
        .find_map(|length| Some((*modules.get(&path[..length])?, length)))
}

/// Returns the absolute paths in a file of the module `own`.
fn paths(tokens: &[Token], own: &[String], library: &str) -> Vec<Vec<String>> {
    let mut paths = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let is_inside_of_path = at > 0 && tokens[at - 1] == Token::PathSeparator;
        if !is_inside_of_path && let Some((base, length)) = base(&tokens[at..], own, library) {
            at += length;
            at += read_tree(&tokens[at..], &base, &mut paths);
        } else {
            at += 1;
        }
    }
    paths
}

/// Returns the module that a path starts from, and the number of tokens for it, with the separator.
fn base(tokens: &[Token], own: &[String], library: &str) -> Option<(Vec<String>, usize)> {
    let [Token::Word(first), Token::PathSeparator, ..] = tokens else {
        return None;
    };
    if first == "crate" || first == library {
        return Some((Vec::new(), 2));
    }
    if first != "super" {
        return None;
    }
    let (mut base, mut length) = (own.to_vec(), 0);
    while let [Token::Word(word), Token::PathSeparator, ..] = &tokens[length..]
        && word == "super"
    {
        base.pop();
        length += 2;
    }
    Some((base, length))
}

/// Reads the rest of a path after `base::`: a name, a path, or a group of them. Returns the number of tokens.
fn read_tree(tokens: &[Token], base: &[String], paths: &mut Vec<Vec<String>>) -> usize {
    let mut path = base.to_vec();
    let mut at = 0;
    loop {
        match tokens.get(at) {
            Some(Token::Word(word)) => {
                if word != "self" {
                    path.push(word.clone());
                }
                at += 1;
            }
            Some(Token::Other('{')) => {
                at += 1;
                while at < tokens.len() && tokens[at] != Token::Other('}') {
                    at += match &tokens[at] {
                        Token::Word(word) if word == "as" => 2,
                        Token::Word(_) | Token::Other('*') => {
                            read_tree(&tokens[at..], &path, paths)
                        }
                        _ => 1,
                    };
                }
                return at + 1;
            }
            Some(Token::Other('*')) => {
                path.push("*".to_owned());
                at += 1;
            }
            _ => {}
        }
        if tokens.get(at) != Some(&Token::PathSeparator) {
            paths.push(path);
            return at;
        }
        at += 1;
        if !matches!(
            tokens.get(at),
            Some(Token::Word(_) | Token::Other('{' | '*'))
        ) {
            // Types after a turbofish are paths of their own.
            paths.push(path);
            return at;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(source: &str) -> Vec<String> {
        let own = ["a", "b"].map(str::to_owned);
        let paths = paths(&tokens(source), &own, "lib");
        paths.iter().map(|path| path.join("::")).collect()
    }

    #[test]
    fn of_every_form_are_found() {
        assert_eq!(found("use crate::c::D;"), ["c::D"]);
        assert_eq!(
            found("use super::super::c::{self, D, e::{F as G, *}};"),
            ["c", "c::D", "c::e::F", "c::e::*"]
        );
        assert_eq!(found("use crate::{c, d::E};"), ["c", "d::E"]);
        assert_eq!(
            found("pub(crate) fn x(y: &lib::c::D) { crate::e::f::<crate::g::H>() }"),
            ["c::D", "e::f", "g::H"]
        );
        assert_eq!(found("use other::crate_name; other::super_name()"), [""; 0]);
    }

    #[test]
    fn lead_to_the_file_that_holds_the_module() {
        let files = ["lib.rs", "c/mod.rs", "c/d.rs"].map(Path::new);
        let modules = files.map(|file| (module_of(file), file)).into();
        let path = |path: &str| path.split("::").map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(resolve(&path("c::d::E"), &modules), Some((files[2], 2)));
        assert_eq!(resolve(&path("c::E"), &modules), Some((files[1], 1)));
        assert_eq!(resolve(&path("E"), &modules), Some((files[0], 0)));
    }
}
