//! Applies a plan: `finit_module` on each file.

use std::{collections::HashSet, ffi::CStr, fs, io, path::Path};

use rustix::io::Errno;
use tracing::{debug, warn};

use super::{LoadPlan, ModuleError, ModuleName};

/// `MODULE_INIT_COMPRESSED_FILE` of linux/module.h: the kernel unpacks the file (Linux 5.17, MODULE_DECOMPRESS).
const COMPRESSED_FILE: i32 = 4;

/// The outcome of applied plans.
#[derive(Debug, Default)]
pub struct Loaded {
    /// Modules that are in the kernel now, in the order of loading.
    pub names: Vec<ModuleName>,
    /// Modules that the kernel refused.
    pub refused: Vec<ModuleError>,
    tried: HashSet<ModuleName>,
}

impl Loaded {
    pub(super) fn was_tried(&self, name: &ModuleName) -> bool {
        self.tried.contains(name)
    }

    pub(super) fn merge(&mut self, other: Self) {
        self.names.extend(other.names);
        self.refused.extend(other.refused);
        self.tried.extend(other.tried);
    }

    pub(super) fn into_first_refusal(mut self) -> Result<Self, ModuleError> {
        match self.refused.is_empty() {
            true => Ok(self),
            false => Err(self.refused.remove(0)),
        }
    }
}

/// Lists the names in /sys/module: loaded modules, and built-in ones that have parameters.
pub(super) fn loaded_modules(sysfs: &Path) -> HashSet<ModuleName> {
    let entries = fs::read_dir(sysfs.join("module"));
    entries
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| ModuleName::new(&entry.file_name().to_string_lossy()))
        .collect()
}

/// Whether a module is in the kernel, by one of its spellings.
pub fn is_loaded(sysfs: &Path, name: &str) -> bool {
    loaded_modules(sysfs).contains(&ModuleName::new(name))
}

/// Loads the modules of the plan. A refused module does not stop the following ones, which may not need it. `parameters` go to
/// the last module, for which the others are loaded.
pub(super) fn apply(plan: &LoadPlan, directory: &Path, parameters: &CStr) -> Loaded {
    let mut loaded = Loaded::default();
    let last = plan.steps.last();
    for step in &plan.steps {
        loaded.tried.insert(step.name.clone());
        let path = directory.join(&step.file);
        let parameters = match last {
            Some(last) if last == step => parameters,
            _ => c"",
        };
        match load_file(&path, parameters) {
            Ok(()) => {
                debug!(module = %step.name, "loaded");
                loaded.names.push(step.name.clone());
            }
            Err(source) => {
                warn!(module = %step.name, error = %source, "the kernel refused a module");
                loaded.refused.push(ModuleError::Refused {
                    name: step.name.clone(),
                    path,
                    source,
                });
            }
        }
    }
    loaded
}

fn load_file(path: &Path, parameters: &CStr) -> io::Result<()> {
    let file = fs::File::open(path)?;
    let flags = match path.extension().is_some_and(|extension| extension == "ko") {
        true => 0,
        false => COMPRESSED_FILE,
    };
    match rustix::system::finit_module(&file, parameters, flags) {
        // EEXIST: another process was quicker, or the module is built in. Either way it is in the kernel.
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::modules::Step;

    #[test]
    fn a_loaded_module_is_known_by_both_spellings() {
        let sysfs = tempfile::tempdir().unwrap();
        assert!(!is_loaded(sysfs.path(), "br_netfilter"));
        fs::create_dir_all(sysfs.path().join("module/br_netfilter")).unwrap();
        for name in ["br_netfilter", "br-netfilter"] {
            assert!(is_loaded(sysfs.path(), name), "{name}");
        }
        assert!(!is_loaded(sysfs.path(), "bridge"));
    }

    #[test]
    fn a_refused_module_is_reported_with_its_file() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("bad.ko"), b"not an ELF file").unwrap();
        let step = |name: &str, file: &str| Step {
            name: ModuleName::new(name),
            file: file.into(),
        };
        let plan = LoadPlan {
            steps: vec![step("bad", "bad.ko"), step("gone", "gone.ko.xz")],
        };
        let loaded = apply(&plan, directory.path(), c"");
        assert!(loaded.names.is_empty());
        assert_eq!(loaded.refused.len(), 2);
        assert!(loaded.was_tried(&ModuleName::new("gone")));
        let message = loaded.refused[1].to_string();
        assert!(message.contains("gone.ko.xz"), "{message}");
        assert!(loaded.into_first_refusal().is_err());
    }
}
