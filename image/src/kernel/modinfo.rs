//! A module's description of itself: the `.modinfo` section of a `.ko` file, `key=value` strings separated by NUL.

use thiserror::Error;

use crate::elf;

/// The facts that the module index needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModuleInfo {
    /// Names of the modules that must be loaded before this one.
    pub depends: Vec<String>,
    /// Patterns of the devices and names that the module serves.
    pub aliases: Vec<String>,
}

/// Why a module could not be read.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum Error {
    /// Not an object file.
    #[error("cannot read the module's sections")]
    Elf(#[from] elf::Error),
    /// An object file, but no module.
    #[error("the file has no .modinfo section: not a kernel module")]
    NoInfo,
}

/// Reads an uncompressed module.
///
/// # Errors
/// See [`Error`].
pub fn read(module: &[u8]) -> Result<ModuleInfo, Error> {
    let section = elf::section(module, ".modinfo")?.ok_or(Error::NoInfo)?;
    let mut info = ModuleInfo::default();
    for entry in section.split(|byte| *byte == 0) {
        let entry = String::from_utf8_lossy(entry);
        match entry.split_once('=') {
            Some(("depends", names)) => {
                info.depends = names
                    .split(',')
                    .filter(|name| !name.is_empty())
                    .map(str::to_owned)
                    .collect();
            }
            Some(("alias", pattern)) => info.aliases.push(pattern.to_owned()),
            _ => {}
        }
    }
    Ok(info)
}

/// Returns a module's name with `_` for every `-`, as the kernel compares names.
#[must_use]
pub fn normal_name(name: &str) -> String {
    name.replace('-', "_")
}
