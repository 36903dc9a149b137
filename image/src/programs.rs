//! Programs of Debian packages in an image, each with all libraries that it needs, directly or not, and the loader.

use std::{collections::BTreeSet, fs, path::PathBuf};

use anyhow::{Context, Result, ensure};

use crate::{debian::Fetched, elf, stand_in, tree::Tree};

/// The folder in which Debian's dynamic loader looks without a cache file.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
/// The folders with libraries in packages; Debian moved from the first to the second.
const PLACES: [&str; 3] = ["lib/x86_64-linux-gnu", LIBRARIES, "usr/lib64"];

/// Puts programs of the packages into a tree.
#[derive(Debug)]
pub struct Programs<'a> {
    packages: &'a [Fetched],
    used: BTreeSet<&'a str>,
    stand_ins: BTreeSet<&'a str>,
}

impl<'a> Programs<'a> {
    /// Returns an empty set; programs and libraries come from these packages.
    #[must_use]
    pub fn new(packages: &'a [Fetched]) -> Self {
        Self {
            packages,
            used: BTreeSet::new(),
            stand_ins: BTreeSet::new(),
        }
    }

    /// Replaces this library by a stand-in ([`stand_in`]) when a program needs it.
    #[must_use]
    pub fn standing_in_for(mut self, library: &'a str) -> Self {
        self.stand_ins.insert(library);
        self
    }

    /// The packages with a file in the tree.
    #[must_use]
    pub fn used(&self) -> &BTreeSet<&'a str> {
        &self.used
    }

    /// Adds the program at `path` of its package to the tree at the same path, with all that it needs to start.
    ///
    /// # Errors
    /// The package has no such program, or a library is in none of the packages.
    pub fn add(&mut self, tree: &mut Tree, package: &str, path: &str) -> Result<()> {
        let bytes = self.read(package, path)?;
        let dynamic =
            elf::read(&bytes).with_context(|| format!("cannot read {path} of {package}"))?;
        for library in &dynamic.needed {
            if self.stand_ins.contains(library.as_str()) {
                add_stand_in(tree, library, &bytes)
                    .with_context(|| format!("{path} cannot start without {library}"))?;
            }
        }
        tree.file(path, 0o755, bytes)?;
        if let Some(interpreter) = dynamic.interpreter {
            self.add_interpreter(tree, &interpreter)?;
        }
        for library in dynamic.needed {
            self.add_library(tree, &library)
                .with_context(|| format!("{path} cannot start without it"))?;
        }
        Ok(())
    }

    /// Adds all libraries of a folder of the package, which programs load by their paths, at the same paths, with all that they need.
    ///
    /// # Errors
    /// The package has no such folder, or a library is in none of the packages.
    pub fn add_plugins(&mut self, tree: &mut Tree, package: &str, folder: &str) -> Result<()> {
        let place = self.fetched(package)?.root.join(folder);
        let failed = || format!("cannot list {folder} of {package}");
        for entry in fs::read_dir(&place).with_context(failed)? {
            let entry = entry.with_context(failed)?;
            let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
            if entry.file_type().with_context(failed)?.is_symlink() {
                let target = fs::read_link(entry.path()).with_context(failed)?;
                tree.symlink(&path, &target.to_string_lossy())?;
                continue;
            }
            let bytes = self.read(package, &path)?;
            let dynamic =
                elf::read(&bytes).with_context(|| format!("cannot read {path} of {package}"))?;
            tree.file(&path, 0o644, bytes)?;
            for library in dynamic.needed {
                self.add_library(tree, &library)
                    .with_context(|| format!("{path} cannot be loaded without it"))?;
            }
        }
        Ok(())
    }

    /// Reads a file of a package that is no program.
    ///
    /// # Errors
    /// The package is not there or has no such file.
    pub fn read(&mut self, package: &str, path: &str) -> Result<Vec<u8>> {
        let found = self.fetched(package)?;
        self.used.insert(&found.package.name);
        let file = found.root.join(path);
        fs::read(&file)
            .with_context(|| format!("cannot read {path} of {package} {}", found.package.version))
    }

    fn fetched(&self, package: &str) -> Result<&'a Fetched> {
        let found = self
            .packages
            .iter()
            .find(|fetched| fetched.package.name == package);
        found.with_context(|| format!("the package {package} was not fetched"))
    }

    /// Adds the loader among the libraries, as they may name it too; its well-known path is a link.
    fn add_interpreter(&mut self, tree: &mut Tree, path: &str) -> Result<()> {
        let name = path.rsplit('/').next().unwrap_or(path);
        self.add_library(tree, name)?;
        // /lib64 is a link to /usr/lib64.
        let link = format!(
            "usr/{}",
            path.trim_start_matches("/usr").trim_start_matches('/')
        );
        tree.symlink(&link, &format!("/{LIBRARIES}/{name}"))
    }

    fn add_library(&mut self, tree: &mut Tree, name: &str) -> Result<()> {
        let path = format!("{LIBRARIES}/{name}");
        if tree.get(&path).is_some() {
            return Ok(());
        }
        let (package, file) = self
            .find(name)
            .with_context(|| format!("the library {name} is in none of the packages"))?;
        self.used.insert(package);
        let bytes = fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let dynamic =
            elf::read(&bytes).with_context(|| format!("cannot read the library {name}"))?;
        let mode = if name.starts_with("ld-linux") {
            0o755
        } else {
            0o644
        };
        tree.file(&path, mode, bytes)?;
        for needed in dynamic.needed {
            self.add_library(tree, &needed)
                .with_context(|| format!("{name} cannot be loaded without it"))?;
        }
        Ok(())
    }

    fn find(&self, name: &str) -> Option<(&'a str, PathBuf)> {
        self.packages.iter().find_map(|fetched| {
            let file = PLACES
                .iter()
                .map(|place| fetched.root.join(place).join(name))
                .find(|file| file.is_file())?;
            Some((fetched.package.name.as_str(), file))
        })
    }
}

/// Adds a stand-in. It has only this program's imports from the library: no other program that needs the library can
/// have it.
fn add_stand_in(tree: &mut Tree, library: &str, program: &[u8]) -> Result<()> {
    let imports = elf::imports(program, library).context("cannot read what it takes from it")?;
    ensure!(
        !imports.is_empty(),
        "nothing in the program says what it takes from it"
    );
    let path = format!("{LIBRARIES}/{library}");
    let stand_in = stand_in::library(library, &imports).context("cannot make its stand-in")?;
    tree.file(&path, 0o644, stand_in)
}
