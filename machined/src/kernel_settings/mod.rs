//! What a machine config asks of the running kernel: modules, and parameters below /proc/sys and /sys.
//!
//! The kernel outlives a generation, and what is set here must not. So what was there before is noted in [`Undo`], which is kept with init
//! *before* anything is changed: the end of the generation, the next machined, or a generation after one that died brings it back.
//!
//! init compares what of /proc/sys belongs to the whole machine (kernel, vm, fs) with the fresh boot by itself, also what a container has
//! set. It does not compare /proc/sys/net and /sys: files there come and go with links and devices, and writing one changes others, so
//! a difference says nothing. What a config sets there is in [`Undo`]; each value that goes back is read again, and one that was not taken
//! stays in the record, where the next machined finds it and tries it again.

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

/// Taking a processor or a disk's queue away takes the kernel seconds.
const WRITE: Duration = Duration::from_secs(60);
/// The name of [`Undo`] in errors.
const WHAT: &str = "the record of kernel settings";
/// A config of 1 MiB, and as much for what was there before.
const LARGEST: u64 = 4 << 20;

/// What is asked of the kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KernelSpec {
    /// Parameters and their values.
    pub parameters: BTreeMap<KernelParameter, String>,
    /// Modules, in the order of loading.
    pub modules: Vec<KernelModule>,
}

/// What it takes to have the kernel as it was.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Undo {
    /// What each parameter that was set had before.
    parameters: Values,
    /// In the order of loading.
    modules: Vec<LoadedModule>,
}

impl Undo {
    /// The name that init keeps it under.
    pub const NAME: &'static str = "kernel-settings";

    /// Writes it to a sealed memfd.
    pub fn to_memfd(&self) -> anyhow::Result<OwnedFd> {
        sealed_json::to_memfd(Self::NAME, WHAT, self)
    }

    /// Reads it back.
    pub fn from_memfd(memfd: &OwnedFd) -> anyhow::Result<Self> {
        sealed_json::from_memfd(memfd, WHAT, LARGEST)
    }
}

/// Why the kernel is not as its spec says.
#[derive(Debug, thiserror::Error)]
pub enum KernelSettingError {
    /// A parameter is not set.
    #[error(
        "cannot set {parameter} to {value:?}; does this kernel have the parameter, and take the value?"
    )]
    Set {
        /// The parameter.
        parameter: KernelParameter,
        /// What it was to have.
        value: String,
        /// Why.
        source: io::Error,
    },
    /// A parameter keeps a value that the spec no longer has.
    #[error("cannot give {parameter} its value of before back, {value:?}; a reboot does")]
    Restore {
        /// The parameter.
        parameter: KernelParameter,
        /// What it had.
        value: String,
        /// Why.
        source: io::Error,
    },
    /// A module is not loaded, or not unloaded.
    #[error("the module {name}")]
    Module {
        /// As in the spec.
        name: String,
        /// Why.
        source: ModuleError,
    },
    /// A parameter of a module that is there already has a name that no file can have.
    #[error("{parameter:?} is no parameter of the module {module}")]
    ModuleParameter {
        /// The module.
        module: String,
        /// As in the spec.
        parameter: String,
        /// Why.
        source: NotAParameter,
    },
    /// The kernel takes too long.
    #[error("set kernel parameters")]
    NoAnswer(#[from] NoAnswer),
}

/// A parameter as it is, and as it was before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParameterStatus {
    /// The parameter.
    pub parameter: KernelParameter,
    /// What it has; none where it cannot be read.
    pub current: Option<String>,
    /// What it had.
    pub before: String,
}

/// Whoever keeps [`Undo`] should this machined die.
pub trait UndoKeeper: Sync {
    /// Keeps it, in the place of an earlier one.
    fn keep(&self, undo: Undo) -> impl Future<Output = ()> + Send;
}

/// The running kernel's settings.
pub struct KernelSettings {
    root: PathBuf,
    undo: Mutex<Undo>,
}

impl KernelSettings {
    /// Of this machine. `left` is what an earlier machined left undone.
    pub fn new(left: Undo) -> Self {
        Self::at(PathBuf::from("/"), left)
    }

    fn at(root: PathBuf, left: Undo) -> Self {
        let undo = Mutex::new(left);
        Self { root, undo }
    }

    /// Has the kernel be as the spec says: what only the last spec had goes back first. `keeper` is given what it takes to undo
    /// everything before anything of it is done. To be called by one caller at a time.
    ///
    /// What fails does not stop the rest; all failures are returned.
    pub async fn apply(
        &self,
        drivers: &Drivers,
        spec: &KernelSpec,
        keeper: &impl UndoKeeper,
    ) -> Vec<KernelSettingError> {
        let mut failures = Vec::new();
        let before = self.lock().clone();
        let modules = modules::plan(&spec.modules, &before.modules);
        // Parameters of modules that were there before are parameters like others.
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
        // What went back is not to be undone again.
        let undo = self.lock().clone();
        if undo != before {
            keeper.keep(undo).await;
        }
        failures
    }

    /// Unloads the modules that were wished, and leaves parameters as they are: whoever has this undo goes on from there.
    ///
    /// What fails does not stop the rest; all failures are returned.
    pub async fn unload_modules(
        &self,
        drivers: &Drivers,
        keeper: &impl UndoKeeper,
    ) -> Vec<KernelSettingError> {
        let mut failures = Vec::new();
        let before = self.lock().clone();
        for module in modules::plan(&[], &before.modules).unload {
            failures.extend(self.unload(drivers, module).await);
        }
        let undo = self.lock().clone();
        if undo != before {
            keeper.keep(undo).await;
        }
        failures
    }

    /// Parameters that are set now.
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

    /// What the parameters have now is kept before any of them is set.
    async fn set(&self, values: Values, keeper: &impl UndoKeeper) -> Vec<KernelSettingError> {
        let (root, known) = (self.root.clone(), self.lock().parameters.clone());
        let parameters: Vec<_> = values
            .keys()
            .filter(|it| !known.contains_key(it))
            .cloned()
            .collect();
        let read = move || -> Values {
            let read = |parameter: KernelParameter| {
                // One that can only be written sets something off, which nothing undoes.
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

    /// What would come into the kernel is kept before it does.
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
        // The next spec is to try it again.
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
            // What it needed, others need as well: it goes with the last of them.
            undo.modules.remove(at);
            undo.modules[0].unload.extend(left);
            return None;
        } else {
            undo.modules[at].unload = left;
        }
        failure
    }

    /// Of modules that were in the kernel before, or are built into it.
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

/// A parameter that is gone went with its device or its module.
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
