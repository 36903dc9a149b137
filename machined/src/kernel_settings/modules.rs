//! Kernel modules of the config: which ones go and which ones come, as a [`Plan`].

use serde::{Deserialize, Serialize};

/// A module that is to be in the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModuleSpec {
    /// Its name, or an alias of it.
    pub name: String,
    /// `parameter=value`.
    pub parameters: Vec<String>,
}

/// A module that was loaded because the spec has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LoadedModule {
    /// As in the spec.
    pub(super) spec: ModuleSpec,
    /// The modules that came into the kernel for it, itself among them, in the order of unloading.
    pub(super) unload: Vec<String>,
}

/// What is to be done, the first part first.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) unload: Vec<LoadedModule>,
    pub(super) load: Vec<ModuleSpec>,
}

/// From the spec, and from what was loaded for that. A module with other parameters goes and comes.
pub(super) fn plan(wanted: &[ModuleSpec], loaded: &[LoadedModule]) -> Plan {
    let is_loaded = |spec: &&ModuleSpec| loaded.iter().any(|it| it.spec == **spec);
    let is_wanted = |module: &&LoadedModule| wanted.contains(&module.spec);
    Plan {
        // Those that came last may need the others.
        unload: loaded
            .iter()
            .rev()
            .filter(|it| !is_wanted(it))
            .cloned()
            .collect(),
        load: wanted.iter().filter(|it| !is_loaded(it)).cloned().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(name: &str, parameters: &[&str]) -> ModuleSpec {
        ModuleSpec {
            name: name.to_owned(),
            parameters: parameters
                .iter()
                .map(|&parameter| parameter.to_owned())
                .collect(),
        }
    }

    fn loaded(name: &str, parameters: &[&str]) -> LoadedModule {
        LoadedModule {
            spec: spec(name, parameters),
            unload: vec![name.to_owned()],
        }
    }

    #[test]
    fn modules_come_go_and_stay() {
        let plan = plan(
            &[
                spec("stays", &[]),
                spec("changes", &["a=2"]),
                spec("comes", &[]),
            ],
            &[
                loaded("stays", &[]),
                loaded("changes", &["a=1"]),
                loaded("goes", &[]),
            ],
        );
        assert_eq!(
            plan.unload,
            [loaded("goes", &[]), loaded("changes", &["a=1"])]
        );
        assert_eq!(plan.load, [spec("changes", &["a=2"]), spec("comes", &[])]);
    }
}
