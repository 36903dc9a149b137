//! Kernel modules of the config: which ones go and which ones come, as a [`Plan`].

use serde::{Deserialize, Serialize};

use crate::values::KernelModule;

/// A module that was loaded because the spec has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LoadedModule {
    /// Its entry in the spec. The record's field name is the one that the versions before and after this one use.
    #[serde(rename = "wish")]
    pub(super) spec: KernelModule,
    /// The modules that were loaded for it, itself among them, in the order of unloading.
    pub(super) unload: Vec<String>,
}

/// The steps: first unload, then load.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) unload: Vec<LoadedModule>,
    pub(super) load: Vec<KernelModule>,
}

/// Compares the spec with the modules that were loaded for the last one. A module with changed parameters is unloaded and loaded.
pub(super) fn plan(wanted: &[KernelModule], loaded: &[LoadedModule]) -> Plan {
    let is_loaded = |spec: &&KernelModule| loaded.iter().any(|it| it.spec == **spec);
    let is_wanted = |module: &&LoadedModule| wanted.contains(&module.spec);
    Plan {
        // The modules that were loaded last may need the others.
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
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_record_is_that_of_the_versions_before() {
        let record = r#"{"wish":{"name":"a","parameters":["b=1"]},"unload":["a"]}"#;
        let loaded: LoadedModule = serde_json::from_str(record).unwrap();
        assert_eq!(loaded.spec, spec("a", &["b=1"]));
        assert_eq!(serde_json::to_string(&loaded).unwrap(), record);
    }

    fn spec(name: &str, parameters: &[&str]) -> KernelModule {
        KernelModule {
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
