//! The Rust crates in our programs, as cargo reports them.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    process::Command,
};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// The packages of the workspace whose programs go into the image.
const PROGRAMS: [&str; 3] = ["instar-init", "machined", "installer"];
/// The platform of the programs in the image.
pub(crate) const PLATFORM: &str = "x86_64-unknown-linux-musl";

/// A crate that is linked into one of the programs, or that generates code for one during its build.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub struct Crate {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// An SPDX licence expression, in most crates.
    pub license: Option<String>,
    id: String,
    /// The source of the crate; none for crates of this workspace.
    pub source: Option<String>,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Crate>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    pkg: String,
    dep_kinds: Vec<Kind>,
}

#[derive(Deserialize)]
struct Kind {
    /// `None` for a normal dependency, else `dev` or `build`.
    kind: Option<String>,
}

/// Returns the crates of the programs in the image, for the workspace in this folder.
///
/// # Errors
/// cargo fails, as it does when Cargo.lock is not up to date.
pub fn of_workspace(folder: &Path) -> Result<Vec<Crate>> {
    of_programs(folder, &PROGRAMS, PLATFORM)
}

/// Returns the crates of these packages of the workspace in this folder, built for this platform.
///
/// # Errors
/// cargo fails, as it does when Cargo.lock is not up to date.
pub fn of_programs(folder: &Path, programs: &[&str], platform: &str) -> Result<Vec<Crate>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args([
            "metadata",
            "--format-version",
            "1",
            "--locked",
            "--filter-platform",
            platform,
        ])
        .current_dir(folder)
        .output()
        .context("cannot start cargo, which lists the crates")?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "cargo metadata failed in {}: {}",
        folder.display(),
        complaint.trim()
    );
    linked(&output.stdout, programs)
}

fn linked(metadata: &[u8], programs: &[&str]) -> Result<Vec<Crate>> {
    let metadata: Metadata =
        serde_json::from_slice(metadata).context("cannot read cargo's list of crates")?;
    let nodes: BTreeMap<&str, &Node> = metadata
        .resolve
        .nodes
        .iter()
        .map(|node| (node.id.as_str(), node))
        .collect();
    let mut open: Vec<&str> = Vec::new();
    for program in programs {
        let package = metadata
            .packages
            .iter()
            .find(|package| package.name == *program && package.source.is_none());
        open.push(
            &package
                .with_context(|| format!("the workspace has no package {program}"))?
                .id,
        );
    }
    let mut seen = BTreeSet::new();
    while let Some(id) = open.pop() {
        if seen.insert(id) {
            let dependencies = nodes
                .get(id)
                .map(|node| node.deps.as_slice())
                .unwrap_or_default();
            let normal = dependencies
                .iter()
                .filter(|one| one.dep_kinds.iter().any(|kind| kind.kind.is_none()));
            open.extend(normal.map(|one| one.pkg.as_str()));
        }
    }
    let mut crates: Vec<Crate> = metadata
        .packages
        .iter()
        .filter(|package| seen.contains(package.id.as_str()))
        .cloned()
        .collect();
    crates.sort();
    Ok(crates)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn only_normal_dependencies_of_the_programs_count() {
        let package = |name: &str, source: &str| {
            format!(
                r#"{{"name":"{name}","version":"1.0.0","license":"MIT","id":"{name}","source":{source}}}"#
            )
        };
        let text = format!(
            r#"{{"packages":[{},{},{},{},{}],"resolve":{{"nodes":[
                {{"id":"init","deps":[{{"pkg":"rustix","dep_kinds":[{{"kind":null}}]}},{{"pkg":"proptest","dep_kinds":[{{"kind":"dev"}}]}}]}},
                {{"id":"rustix","deps":[{{"pkg":"cc","dep_kinds":[{{"kind":"build"}}]}}]}},
                {{"id":"other","deps":[]}}]}}}}"#,
            package("init", "null"),
            package("rustix", "\"registry\""),
            package("proptest", "\"registry\""),
            package("cc", "\"registry\""),
            package("other", "null")
        );
        let names: Vec<_> = linked(text.as_bytes(), &["init"])
            .unwrap()
            .into_iter()
            .map(|one| one.name)
            .collect();
        assert_eq!(names, ["init", "rustix"]);
        linked(text.as_bytes(), &["machined"]).unwrap_err();
    }
}
