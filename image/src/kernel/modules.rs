//! Chooses kernel modules and writes the kernel's index of them: `modules.dep` and `modules.alias`, in depmod's format
//! (modules.dep(5)).

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};

use super::modinfo::{self, ModuleInfo, normal_name};

/// The names of modules that an image gets, per section of `modules.txt`.
const WANTED: &str = include_str!("modules.txt");

/// The modules of one kernel, from its package.
#[derive(Debug)]
pub struct Available {
    root: PathBuf,
    /// Path below the root (`kernel/drivers/block/loop.ko.xz`) by normal name.
    paths: BTreeMap<String, String>,
    built_in: BTreeSet<String>,
}

/// One chosen module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// Path below `/usr/lib/modules/<release>/`.
    pub path: String,
    /// The module's own description.
    pub info: ModuleInfo,
    /// The file as the package has it: compressed and signed.
    pub file: Vec<u8>,
}

/// Chosen modules by normal name, closed under dependency.
pub type Selection = BTreeMap<String, Module>;

/// The folder of the modules of the kernel `release` in its unpacked package; Debian moved it from /lib to /usr/lib.
///
/// # Errors
/// The package has none.
pub fn folder(package: &Path, release: &str) -> Result<PathBuf> {
    let places = ["usr/lib/modules", "lib/modules"].map(|place| package.join(place).join(release));
    let found = places.into_iter().find(|place| place.is_dir());
    found.with_context(|| format!("{} has no modules for {release}", package.display()))
}

impl Available {
    /// Reads the names below `root`, the package's `lib/modules/<release>`.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn read(root: &Path) -> Result<Self> {
        let mut paths = BTreeMap::new();
        collect(root, root, &mut paths)?;
        let list = root.join("modules.builtin");
        let built_in =
            fs::read_to_string(&list).with_context(|| format!("cannot read {}", list.display()))?;
        let built_in = built_in.lines().filter_map(module_name).collect();
        Ok(Self {
            root: root.to_owned(),
            paths,
            built_in,
        })
    }

    /// The modules with these names and all that they depend on.
    ///
    /// # Errors
    /// A name that is neither a module nor built in, or a module that cannot be read.
    pub fn select<'name>(&self, names: impl IntoIterator<Item = &'name str>) -> Result<Selection> {
        let mut selection = Selection::new();
        let mut open: Vec<String> = names.into_iter().map(normal_name).collect();
        while let Some(name) = open.pop() {
            if self.built_in.contains(&name) || selection.contains_key(&name) {
                continue;
            }
            let path = self
                .paths
                .get(&name)
                .with_context(|| format!("this kernel has no module {name}"))?;
            let file = self.root.join(path);
            let info = modinfo::read(&decompressed(&file)?)
                .with_context(|| format!("cannot read {}", file.display()))?;
            open.extend(info.depends.iter().map(|name| normal_name(name)));
            let bytes =
                fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
            selection.insert(
                name,
                Module {
                    path: path.clone(),
                    info,
                    file: bytes,
                },
            );
        }
        Ok(selection)
    }
}

/// The names in one section of the list of wanted modules, in its order.
///
/// # Errors
/// The section is missing.
pub fn wanted(section: &str) -> Result<Vec<&'static str>> {
    let header = format!("[{section}]");
    ensure!(
        WANTED.lines().any(|line| line == header),
        "the list of modules has no section {header}"
    );
    let names = WANTED.lines().skip_while(|line| *line != header).skip(1);
    Ok(names
        .take_while(|line| !line.starts_with('['))
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .collect())
}

/// Returns `name` and its dependencies in the order of loading, `name` last. A dependency outside the selection is
/// built in.
///
/// # Errors
/// The dependencies run in a circle.
pub fn load_order<'a>(selection: &'a Selection, name: &str) -> Result<Vec<&'a str>> {
    fn visit<'a>(
        selection: &'a Selection,
        name: &str,
        path: &mut Vec<String>,
        order: &mut Vec<&'a str>,
    ) -> Result<()> {
        let Some((name, module)) = selection.get_key_value(name) else {
            return Ok(());
        };
        if order.contains(&name.as_str()) {
            return Ok(());
        }
        if path.contains(name) {
            bail!(
                "modules depend on each other in a circle: {} and {name}",
                path.join(", ")
            );
        }
        path.push(name.clone());
        for dependency in &module.info.depends {
            visit(selection, &normal_name(dependency), path, order)?;
        }
        path.pop();
        order.push(name);
        Ok(())
    }
    let mut order = Vec::new();
    visit(selection, &normal_name(name), &mut Vec::new(), &mut order)?;
    Ok(order)
}

/// Returns the text of `modules.dep`: each module, then its dependencies, to be loaded from right to left.
///
/// # Errors
/// The dependencies run in a circle.
pub fn dependency_index(selection: &Selection) -> Result<String> {
    let mut lines = Vec::new();
    for (name, module) in selection {
        let mut line = format!("{}:", module.path);
        for needed in load_order(selection, name)?.iter().rev().skip(1) {
            line.push(' ');
            line.push_str(&selection[*needed].path);
        }
        lines.push(line + "\n");
    }
    lines.sort();
    Ok(lines.concat())
}

/// Returns the text of `modules.alias`: `alias PATTERN MODULE`.
#[must_use]
pub fn alias_index(selection: &Selection) -> String {
    let lines: BTreeSet<String> = selection
        .iter()
        .flat_map(|(name, module)| {
            module
                .info
                .aliases
                .iter()
                .map(move |alias| format!("alias {alias} {name}\n"))
        })
        .collect();
    lines.into_iter().collect()
}

fn collect(root: &Path, folder: &Path, paths: &mut BTreeMap<String, String>) -> Result<()> {
    let entries =
        fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    for entry in entries {
        let entry = entry.with_context(|| format!("cannot list {}", folder.display()))?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            collect(root, &path, paths)?;
        } else if let Some(below) = path.strip_prefix(root)?.to_str()
            && let Some(name) = module_name(below)
        {
            paths.insert(name, below.to_owned());
        }
    }
    Ok(())
}

/// Returns the normal name of the module in this file; none for a file that is no module.
fn module_name(path: &str) -> Option<String> {
    let file = path.rsplit('/').next()?;
    let name = file
        .strip_suffix(".ko.xz")
        .or_else(|| file.strip_suffix(".ko"))?;
    Some(normal_name(name))
}

fn decompressed(file: &Path) -> Result<Vec<u8>> {
    if file.extension().is_none_or(|extension| extension != "xz") {
        return fs::read(file).with_context(|| format!("cannot read {}", file.display()));
    }
    let output = Command::new("xz")
        .arg("-dc")
        .arg(file)
        .output()
        .context("cannot start xz (Debian: xz-utils)")?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "xz cannot decompress {}: {}",
        file.display(),
        complaint.trim()
    );
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn selection(modules: &[(&str, &[&str], &[&str])]) -> Selection {
        let strings = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect();
        modules
            .iter()
            .map(|(name, depends, aliases)| {
                let info = ModuleInfo {
                    depends: strings(depends),
                    aliases: strings(aliases),
                };
                (
                    normal_name(name),
                    Module {
                        path: format!("kernel/{name}.ko.xz"),
                        info,
                        file: Vec::new(),
                    },
                )
            })
            .collect()
    }

    #[test]
    fn dependencies_are_loaded_from_right_to_left() {
        let chosen = selection(&[
            ("virtio_net", &["net_failover"], &["virtio:d00000001v*"]),
            ("net_failover", &["failover"], &[]),
            ("failover", &[], &[]),
        ]);
        assert_eq!(
            dependency_index(&chosen).unwrap(),
            "kernel/failover.ko.xz:\n\
             kernel/net_failover.ko.xz: kernel/failover.ko.xz\n\
             kernel/virtio_net.ko.xz: kernel/net_failover.ko.xz kernel/failover.ko.xz\n"
        );
        assert_eq!(
            alias_index(&chosen),
            "alias virtio:d00000001v* virtio_net\n"
        );
    }

    #[test]
    fn a_diamond_loads_each_module_once_and_after_its_needs() {
        let chosen = selection(&[
            ("top", &["left", "right"], &[]),
            ("left", &["low-er"], &[]),
            ("right", &["low_er"], &[]),
            ("low-er", &[], &[]),
        ]);
        assert_eq!(
            load_order(&chosen, "top").unwrap(),
            ["low_er", "left", "right", "top"]
        );
    }

    #[test]
    fn a_circle_is_an_error() {
        let chosen = selection(&[("a", &["b"], &[]), ("b", &["a"], &[])]);
        dependency_index(&chosen).unwrap_err();
    }

    #[test]
    fn unknown_names_are_errors_and_built_in_ones_are_not() {
        let root = tempfile::tempdir().unwrap();
        fs::write(
            root.path().join("modules.builtin"),
            "kernel/fs/ext4/ext4.ko\n",
        )
        .unwrap();
        let available = Available::read(root.path()).unwrap();
        assert!(available.select(["ext4"]).unwrap().is_empty());
        let error = available.select(["no-such-module"]).unwrap_err();
        assert!(error.to_string().contains("no_such_module"), "{error}");
        fs::write(root.path().join("fake.ko"), "text").unwrap();
        Available::read(root.path())
            .unwrap()
            .select(["fake"])
            .unwrap_err();
    }

    #[test]
    fn the_list_has_its_sections() {
        assert_eq!(wanted("init").unwrap(), ["loop", "squashfs"]);
        assert!(wanted("all").unwrap().contains(&"virtio_net"));
        assert!(wanted("kubernetes").unwrap().contains(&"br_netfilter"));
        wanted("nothing").unwrap_err();
    }
}
