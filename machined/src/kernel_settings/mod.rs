//! Settings of the running kernel that a machine config asks for: modules, and parameters below /proc/sys and /sys.
//!
//! The kernel outlives a generation, but these settings must not. So the earlier values are noted in [`Undo`], which init keeps *before*
//! anything is changed: the end of the generation, the next machined, or the generation after a crashed one restores them.
//!
//! init itself compares the parts of /proc/sys that belong to the whole machine (kernel, vm, fs) with the fresh boot, including values that
//! a container has set. It does not compare /proc/sys/net and /sys: files there come and go with links and devices, and writing one changes
//! others, so a difference proves nothing. Values that a config sets there are in [`Undo`]. Each restored value is read back; a value that
//! the kernel did not take stays in the record, and the next machined tries it again.

mod modules;
mod parameters;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use self::modules::LoadedModule;
use self::parameters::Values;
use crate::base::blocking_io::{self, NoAnswer};
use crate::base::lock::Lock as _;
use crate::base::sealed_json;
use crate::modules::{Drivers, ModuleError, ModuleName, Unloaded};
use crate::values::{KernelModule, KernelParameter, NotAParameter};

/// Time limit for a write: to take a processor or a disk's queue away, the kernel needs seconds.
const WRITE: Duration = Duration::from_secs(60);
/// The name of [`Undo`] in errors.
const WHAT: &str = "the record of kernel settings";
/// Size limit of the record: a config of 1 MiB, and as much for the earlier values.
const LARGEST: u64 = 4 << 20;

/// The settings that a config asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KernelSpec {
    /// Parameters and their values.
    pub parameters: BTreeMap<KernelParameter, String>,
    /// Modules, in the order of loading.
    pub modules: Vec<KernelModule>,
}

/// The changes that have to be undone to get the kernel's earlier settings back.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Undo {
    /// The earlier value of each parameter that was set.
    parameters: Values,
    /// The loaded modules, in the order of loading.
    modules: Vec<LoadedModule>,
}

impl Undo {
    /// The name under which init keeps the record.
    pub const NAME: &'static str = "kernel-settings";

    /// Writes the record to a sealed memfd.
    pub fn to_memfd(&self) -> anyhow::Result<OwnedFd> {
        sealed_json::to_memfd(Self::NAME, WHAT, self)
    }

    /// Reads the record from a memfd.
    pub fn from_memfd(memfd: &OwnedFd) -> anyhow::Result<Self> {
        sealed_json::from_memfd(memfd, WHAT, LARGEST)
    }
}

/// Why the kernel is not as its spec says.
#[derive(Debug, thiserror::Error)]
pub enum KernelSettingError {
    /// A parameter cannot be set.
    #[error(
        "cannot set {parameter} to {value:?}; does this kernel have the parameter, and take the value?"
    )]
    Set {
        /// The parameter.
        parameter: KernelParameter,
        /// The value that it should have.
        value: String,
        /// Why.
        source: io::Error,
    },
    /// A parameter cannot be restored: it keeps a value that the spec no longer contains.
    #[error("cannot give {parameter} its previous value back, {value:?}; a reboot does")]
    Restore {
        /// The parameter.
        parameter: KernelParameter,
        /// Its earlier value.
        value: String,
        /// Why.
        source: io::Error,
    },
    /// A module cannot be loaded or unloaded.
    #[error("the module {name}")]
    Module {
        /// Its name in the spec.
        name: String,
        /// Why.
        source: ModuleError,
    },
    /// A module that is already in the kernel has a parameter in the spec whose name no file can have.
    #[error("{parameter:?} is no parameter of the module {module}")]
    ModuleParameter {
        /// The module.
        module: String,
        /// The parameter's name in the spec.
        parameter: String,
        /// Why.
        source: NotAParameter,
    },
    /// The kernel did not answer in time.
    #[error("set kernel parameters")]
    NoAnswer(#[from] NoAnswer),
}

/// A parameter's current value and its earlier one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParameterStatus {
    /// The parameter.
    pub parameter: KernelParameter,
    /// The current value; None if it cannot be read.
    pub current: Option<String>,
    /// The value before it was set.
    pub before: String,
}

/// Keeps [`Undo`] for the case that this machined dies.
pub trait UndoKeeper: Sync {
    /// Keeps the record in place of the earlier one.
    fn keep(&self, undo: Undo) -> impl Future<Output = ()> + Send;
}

/// The running kernel's settings.
pub struct KernelSettings {
    root: PathBuf,
    undo: Mutex<Undo>,
}

impl KernelSettings {
    /// Returns the settings of this machine. `left`: changes that an earlier machined did not undo.
    pub fn new(left: Undo) -> Self {
        Self::at(PathBuf::from("/"), left)
    }

    fn at(root: PathBuf, left: Undo) -> Self {
        let undo = Mutex::new(left);
        Self { root, undo }
    }

    /// Makes the kernel's settings match the spec: settings that only the last spec had are restored first. `keeper` gets the record for
    /// the undo before each change. To be called by one caller at a time.
    ///
    /// A failure does not stop the rest; all failures are returned.
    pub async fn apply(
        &self,
        drivers: &Drivers,
        spec: &KernelSpec,
        keeper: &impl UndoKeeper,
    ) -> Vec<KernelSettingError> {
        let mut failures = Vec::new();
        let before = self.lock().clone();
        let modules = modules::plan(&spec.modules, &before.modules);
        // Parameters of modules that were already in the kernel are set like other parameters.
        let mut wanted = spec.parameters.clone();
        failures.extend(self.add_parameters_of_present(drivers, spec, &mut wanted));
        let parameters = parameters::plan(&wanted, &before.parameters);

        failures.extend(self.restore(parameters.restore).await);
        for module in modules.unload {
            failures.extend(self.unload(drivers, module).await);
        }
        for module in modules.load {
            failures.extend(self.load(drivers, module, keeper).await);
        }
        failures.extend(self.set(parameters.set, keeper).await);
        // Settings that were restored leave the record.
        let undo = self.lock().clone();
        if undo != before {
            keeper.keep(undo).await;
        }
        failures
    }

    /// Returns the parameters that are set now.
    pub fn statuses(&self) -> Vec<ParameterStatus> {
        let before = self.lock().parameters.clone();
        let status = |(parameter, before): (KernelParameter, String)| ParameterStatus {
            current: parameters::read(&self.root, &parameter).ok(),
            parameter,
            before,
        };
        before.into_iter().map(status).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Undo> {
        self.undo.locked()
    }

    async fn restore(&self, values: Values) -> Vec<KernelSettingError> {
        let root = self.root.clone();
        let restored = move || {
            values
                .into_iter()
                .map(|(parameter, value)| restore(&root, parameter, value))
                .collect::<Vec<_>>()
        };
        let restored = match blocking_io::within(WRITE, restored).await {
            Ok(restored) => restored,
            Err(late) => return vec![late.into()],
        };
        let mut failures = Vec::new();
        for outcome in restored {
            match outcome {
                Ok(parameter) => drop(self.lock().parameters.remove(&parameter)),
                Err(failure) => failures.push(failure),
            }
        }
        failures
    }

    /// Sets parameters. Their current values are kept before any of them changes.
    async fn set(&self, values: Values, keeper: &impl UndoKeeper) -> Vec<KernelSettingError> {
        let (root, known) = (self.root.clone(), self.lock().parameters.clone());
        let parameters: Vec<_> = values
            .keys()
            .filter(|it| !known.contains_key(it))
            .cloned()
            .collect();
        let read = move || -> Values {
            let read = |parameter: KernelParameter| {
                // A parameter that can only be written triggers an action, which cannot be undone.
                let value = parameters::read(&root, &parameter).ok()?;
                Some((parameter, value))
            };
            parameters.into_iter().filter_map(read).collect()
        };
        let root = self.root.clone();
        let set = move || {
            values
                .into_iter()
                .filter_map(|(parameter, value)| set(&root, parameter, value).err())
                .collect()
        };
        match blocking_io::within(WRITE, read).await {
            Ok(before) if before.is_empty() => {}
            Ok(before) => {
                self.lock().parameters.extend(before);
                let undo = self.lock().clone();
                keeper.keep(undo).await;
            }
            Err(late) => return vec![late.into()],
        }
        match blocking_io::within(WRITE, set).await {
            Ok(failures) => failures,
            Err(late) => vec![late.into()],
        }
    }

    /// Loads a module. The record names it before it is in the kernel.
    async fn load(
        &self,
        drivers: &Drivers,
        spec: KernelModule,
        keeper: &impl UndoKeeper,
    ) -> Option<KernelSettingError> {
        let failed = |source| KernelSettingError::Module {
            name: spec.name.clone(),
            source,
        };
        let plan = match drivers.plan_named(&spec.name) {
            Ok(plan) if plan.is_empty() => return None,
            Ok(plan) => plan,
            Err(unknown) => return Some(failed(unknown)),
        };
        let unload = plan.steps.iter().rev().map(|step| step.name.to_string());
        let module = LoadedModule {
            spec: spec.clone(),
            unload: unload.collect(),
        };
        self.lock().modules.push(module);
        let undo = self.lock().clone();
        keeper.keep(undo).await;
        let loaded = drivers.load(plan, &spec.parameters.join(" ")).await;
        let failure = failed(loaded.err()?);
        // The next spec has to try it again.
        self.lock().modules.retain(|it| it.spec != spec);
        Some(failure)
    }

    async fn unload(&self, drivers: &Drivers, module: LoadedModule) -> Option<KernelSettingError> {
        let mut failure = None;
        let mut left = Vec::new();
        for name in module.unload {
            match drivers.unload(&ModuleName::new(&name)).await {
                Ok(Unloaded::Gone | Unloaded::Drives) => {}
                Err(source) => {
                    left.push(name.clone());
                    failure.get_or_insert(KernelSettingError::Module { name, source });
                }
            }
        }
        let mut undo = self.lock();
        let Some(at) = undo.modules.iter().position(|it| it.spec == module.spec) else {
            return failure;
        };
        if left.is_empty() {
            undo.modules.remove(at);
        } else if !left.contains(&ModuleName::new(&module.spec.name).to_string())
            && undo.modules.len() > 1
        {
            // Other modules need its dependencies as well: these are unloaded with the last of them.
            undo.modules.remove(at);
            undo.modules[0].unload.extend(left);
            return None;
        } else {
            undo.modules[at].unload = left;
        }
        failure
    }

    /// Adds the parameters of modules that are built in, or were already in the kernel.
    fn add_parameters_of_present(
        &self,
        drivers: &Drivers,
        spec: &KernelSpec,
        wanted: &mut Values,
    ) -> Vec<KernelSettingError> {
        let mut failures = Vec::new();
        let ours = self.lock().modules.clone();
        for module in &spec.modules {
            let is_ours = ours.iter().any(|it| it.spec.name == module.name);
            let is_present = drivers
                .plan_named(&module.name)
                .is_ok_and(|plan| plan.is_empty());
            let Some(name) = drivers.modules_named(&module.name).into_iter().next() else {
                continue;
            };
            if is_ours || !is_present {
                continue;
            }
            for parameter in &module.parameters {
                let (key, value) = parameter.split_once('=').unwrap_or((parameter, "1"));
                let path = format!("module/{name}/parameters/{}", key.replace('-', "_"));
                match KernelParameter::sysfs(&path) {
                    Ok(parameter) => drop(wanted.insert(parameter, value.to_owned())),
                    Err(source) => failures.push(KernelSettingError::ModuleParameter {
                        module: name.to_string(),
                        parameter: parameter.clone(),
                        source,
                    }),
                }
            }
        }
        failures
    }
}

fn set(root: &Path, parameter: KernelParameter, value: String) -> Result<(), KernelSettingError> {
    parameters::write(root, &parameter, &value).map_err(|source| KernelSettingError::Set {
        parameter,
        value,
        source,
    })
}

/// Restores a parameter. One that no longer exists went with its device or its module: no error.
fn restore(
    root: &Path,
    parameter: KernelParameter,
    value: String,
) -> Result<KernelParameter, KernelSettingError> {
    let restored = parameters::write(root, &parameter, &value)
        .and_then(|()| parameters::expect(root, &parameter, &value));
    match restored {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(KernelSettingError::Restore {
                parameter,
                value,
                source,
            })
        }
        _ => Ok(parameter),
    }
}

#[cfg(test)]
mod tests;
