//! Kernel modules of the config: which ones go and which ones come, as a [`Plan`].

use serde::{Deserialize, Serialize};

/// A module that is to be in the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModuleWish {
    /// Its name, or an alias of it.
    pub name: String,
    /// `parameter=value`.
    pub parameters: Vec<String>,
}

/// A module that was loaded because it was wished.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LoadedModule {
    /// As it was wished.
    pub(super) wish: ModuleWish,
    /// The modules that came into the kernel for it, itself among them, in the order of unloading.
    pub(super) unload: Vec<String>,
}

/// What is to be done, the first part first.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) unload: Vec<LoadedModule>,
    pub(super) load: Vec<ModuleWish>,
}

/// From what is wished, and from what was loaded for that. A module with other parameters goes and comes.
pub(super) fn plan(wished: &[ModuleWish], loaded: &[LoadedModule]) -> Plan {
    let is_loaded = |wish: &&ModuleWish| loaded.iter().any(|it| it.wish == **wish);
    let is_wished = |module: &&LoadedModule| wished.contains(&module.wish);
    Plan {
        // Those that came last may need the others.
        unload: loaded
            .iter()
            .rev()
            .filter(|it| !is_wished(it))
            .cloned()
            .collect(),
        load: wished.iter().filter(|it| !is_loaded(it)).cloned().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(name: &str, parameters: &[&str]) -> ModuleWish {
        ModuleWish {
            name: name.to_owned(),
            parameters: parameters
                .iter()
                .map(|&parameter| parameter.to_owned())
                .collect(),
        }
    }

    fn loaded(name: &str, parameters: &[&str]) -> LoadedModule {
        LoadedModule {
            wish: wish(name, parameters),
            unload: vec![name.to_owned()],
        }
    }

    #[test]
    fn modules_come_go_and_stay() {
        let plan = plan(
            &[
                wish("stays", &[]),
                wish("changes", &["a=2"]),
                wish("comes", &[]),
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
        assert_eq!(plan.load, [wish("changes", &["a=2"]), wish("comes", &[])]);
    }
}
