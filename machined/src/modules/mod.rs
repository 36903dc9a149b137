//! Kernel drivers for the hardware that is present.
//!
//! The `modalias` file of a device under /sys/devices identifies the device; `modules.alias` lists the modules for it, and `modules.dep`
//! the modules that those need first. Both tables are text as `depmod` writes them. The modules to load are computed as a
//! [`LoadPlan`], then loaded with `finit_module`; the kernel unpacks .ko.xz itself.
//!
//! Each signed module costs about 0.1 s of a boot, so callers load a [`Class`] at a time: first the drivers that the boot waits for,
//! and the rest in the background.
//!
//! ```no_run
//! # async fn boot() -> Result<(), machined::modules::ModuleError> {
//! use machined::modules::{Class, Drivers};
//! let drivers = Drivers::of_running_kernel()?;
//! drivers.load_for(Class::Network).await?;
//! drivers.load_for(Class::Block).await?;
//! drivers.load_named("overlay").await?;
//! # Ok(())
//! # }
//! ```

mod alias;
mod coldplug;
mod dep;
mod load;
mod plan;
mod unload;

use std::{
    collections::HashSet,
    ffi::CString,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

pub use alias::{AliasTable, glob};
pub use coldplug::modaliases;
pub use dep::{Class, DependencyTable, ModuleName};
pub use load::{Loaded, is_loaded};
pub use plan::{LoadPlan, Step, plan_devices, plan_named};
pub use unload::Unloaded;

use crate::base::blocking_io::{self, NoAnswer};

/// Timeout for loading: some drivers look for disks while they are loaded, and the disks may have to spin up one after the other.
const LOAD: Duration = Duration::from_secs(180);

/// Why drivers could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum ModuleError {
    /// A table of the module directory is missing or unreadable.
    #[error("cannot read {path}; the image must hold the modules of the running kernel")]
    Table {
        /// The table.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// No module of this name is in modules.dep or modules.builtin.
    #[error(
        "no module named {name} in {directory}, and none built into the kernel; is it missing from the image?"
    )]
    Unknown {
        /// The requested name.
        name: String,
        /// The module directory.
        directory: PathBuf,
    },
    /// The kernel refused to load a module.
    #[error("cannot load the module {name} from {path}; the kernel log says more")]
    Refused {
        /// The module.
        name: ModuleName,
        /// Its file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The kernel refused to unload a module.
    #[error(
        "cannot unload the module {name}; something that still uses it may be named in the kernel log, or in /sys/module/{name}/holders"
    )]
    InUse {
        /// The module.
        name: ModuleName,
        /// Why.
        source: io::Error,
    },
    /// A parameter holds a zero byte, which no kernel takes.
    #[error("the parameters of the module {name} hold a zero byte")]
    ZeroByte {
        /// The module, or its alias.
        name: String,
    },
    /// A driver waits for its device, which does not answer.
    #[error("load drivers; the kernel log may say which device is meant")]
    NoAnswer(#[from] NoAnswer),
}

/// The module directory of one kernel, read once.
#[derive(Debug, Clone)]
pub struct Drivers {
    tables: Arc<Tables>,
}

#[derive(Debug)]
struct Tables {
    directory: PathBuf,
    sysfs: PathBuf,
    aliases: AliasTable,
    dependencies: DependencyTable,
    built_in: HashSet<ModuleName>,
}

impl Drivers {
    /// Reads `/usr/lib/modules/<release of the running kernel>`.
    pub fn of_running_kernel() -> Result<Self, ModuleError> {
        let release = rustix::system::uname()
            .release()
            .to_string_lossy()
            .into_owned();
        Self::read(
            &Path::new("/usr/lib/modules").join(release),
            Path::new("/sys"),
        )
    }

    /// Reads a module directory; `sysfs` is searched for devices.
    pub fn read(directory: &Path, sysfs: &Path) -> Result<Self, ModuleError> {
        let table = |name: &str| {
            let path = directory.join(name);
            std::fs::read_to_string(&path).map_err(|source| ModuleError::Table { path, source })
        };
        Ok(Self {
            tables: Arc::new(Tables {
                directory: directory.to_owned(),
                sysfs: sysfs.to_owned(),
                aliases: AliasTable::parse(&table("modules.alias")?),
                dependencies: DependencyTable::parse(&table("modules.dep")?),
                built_in: table("modules.builtin")?
                    .lines()
                    .filter_map(ModuleName::of_file)
                    .collect(),
            }),
        })
    }

    /// Returns the plan that `load_for` would carry out now (a dry run).
    pub fn plan_for(&self, class: Class) -> LoadPlan {
        let tables = &self.tables;
        let present = load::loaded_modules(&tables.sysfs);
        plan_devices(
            &modaliases(&tables.sysfs),
            &tables.aliases,
            &tables.dependencies,
            class,
            &present,
        )
    }

    /// Loads the drivers of `class` for the devices that are present.
    ///
    /// A bus driver makes new devices appear (virtio_pci, USB hosts), so the plan is made again until nothing is
    /// missing. A driver that the kernel refuses is reported in the result and does not stop the others: one broken
    /// device must not keep the machine from its network.
    pub async fn load_for(&self, class: Class) -> Result<Loaded, ModuleError> {
        let drivers = self.clone();
        run_blocking(move || {
            let mut loaded = Loaded::default();
            loop {
                let mut plan = drivers.plan_for(class);
                plan.retain(|step| !loaded.was_tried(&step.name));
                if plan.is_empty() {
                    return loaded;
                }
                loaded.merge(load::apply(&plan, &drivers.tables.directory, c""));
            }
        })
        .await
    }

    /// Returns the plan for loading a module by its name or by an alias. The plan is empty if the module is loaded already or
    /// built into the kernel.
    ///
    /// # Errors
    /// No module or alias has this name.
    pub fn plan_named(&self, name: &str) -> Result<LoadPlan, ModuleError> {
        let tables = &self.tables;
        let mut present = load::loaded_modules(&tables.sysfs);
        present.extend(tables.built_in.iter().cloned());
        self.resolve(name, &present)
            .into_iter()
            .find_map(|name| plan_named(&name, &tables.dependencies, &present))
            .ok_or_else(|| ModuleError::Unknown {
                name: name.to_owned(),
                directory: tables.directory.clone(),
            })
    }

    /// Returns the module of this name, or else the modules that it is an alias of.
    pub fn modules_named(&self, name: &str) -> Vec<ModuleName> {
        let mut present = load::loaded_modules(&self.tables.sysfs);
        present.extend(self.tables.built_in.iter().cloned());
        self.resolve(name, &present)
    }

    fn resolve(&self, name: &str, present: &HashSet<ModuleName>) -> Vec<ModuleName> {
        let module = ModuleName::new(name);
        if self.tables.dependencies.file(&module).is_some() || present.contains(&module) {
            return vec![module];
        }
        let aliases = self.tables.aliases.modules_for(name);
        aliases.into_iter().cloned().collect()
    }

    /// Loads the modules of a plan. `parameters` are those of its last module, in the format of finit_module(2).
    ///
    /// # Errors
    /// The kernel refused a module.
    pub async fn load(&self, plan: LoadPlan, parameters: &str) -> Result<Loaded, ModuleError> {
        let parameters = CString::new(parameters).map_err(|_| ModuleError::ZeroByte {
            name: plan.to_string(),
        })?;
        let drivers = self.clone();
        let load = move || load::apply(&plan, &drivers.tables.directory, &parameters);
        run_blocking(load).await?.into_first_refusal()
    }

    /// Loads one module and the modules that it needs. A module that is loaded already or built into the kernel is no error.
    pub async fn load_named(&self, name: &str) -> Result<Loaded, ModuleError> {
        self.load(self.plan_named(name)?, "").await
    }

    /// Loads every module of the directory. One that the kernel refuses is reported in the result, and does not stop the others.
    ///
    /// # Errors
    /// A module waits for its device, which does not answer.
    pub async fn load_all(&self) -> Result<Loaded, ModuleError> {
        let drivers = self.clone();
        run_blocking(move || {
            let mut loaded = Loaded::default();
            for name in drivers.tables.dependencies.names() {
                if let Ok(plan) = drivers.plan_named(name.as_str()) {
                    loaded.merge(load::apply(&plan, &drivers.tables.directory, c""));
                }
            }
            loaded
        })
        .await
    }

    /// Unloads a module, unless it drives a device.
    ///
    /// # Errors
    /// It is in use.
    pub async fn unload(&self, name: &ModuleName) -> Result<Unloaded, ModuleError> {
        let (drivers, module) = (self.clone(), name.clone());
        let unloaded = run_blocking(move || unload::unload(&drivers.tables.sysfs, &module)).await?;
        unloaded.map_err(|source| ModuleError::InUse {
            name: name.clone(),
            source,
        })
    }

    /// Returns the current value of a loaded module's parameter; none if it cannot be read.
    pub fn parameter(&self, module: &ModuleName, parameter: &str) -> Option<String> {
        let value = std::fs::read_to_string(self.parameter_file(module, parameter)).ok()?;
        Some(value.trim_end().to_owned())
    }

    /// Path of the file of a loaded module's parameter.
    pub fn parameter_file(&self, module: &ModuleName, parameter: &str) -> PathBuf {
        let module = self.tables.sysfs.join("module").join(module);
        module.join("parameters").join(parameter.replace('-', "_"))
    }
}

/// Runs work on another thread: `finit_module` takes 0.1 s and more, which must not hold up the runtime's only thread.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ModuleError> {
    Ok(blocking_io::within(LOAD, work).await?)
}
