//! Kernel drivers for the hardware that is present.
//!
//! Every device says in its `modalias` file under /sys/devices which driver it wants; `modules.alias` says which
//! module that is, and `modules.dep` which modules that one needs first. Both files are text as `depmod` writes them.
//! What to load is computed as a [`LoadPlan`], then applied with `finit_module`; the kernel unpacks .ko.xz itself.
//!
//! Each signed module costs about 0.1 s of a boot, so callers load a [`Class`] at a time: what the boot waits for
//! first, the rest in the background.
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

use std::{
    collections::HashSet,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

pub use alias::{AliasTable, glob};
pub use coldplug::modaliases;
pub use dep::{Class, DependencyTable, ModuleName};
pub use load::Loaded;
pub use plan::{LoadPlan, Step, plan_devices, plan_named};

use crate::base::blocking_io::{self, NoAnswer};

/// Some drivers look for disks while they are loaded, and those may have to spin up one after the other.
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
        /// The name asked for.
        name: String,
        /// The module directory.
        directory: PathBuf,
    },
    /// The kernel refused a module.
    #[error("cannot load the module {name} from {path}; the kernel log says more")]
    Refused {
        /// The module.
        name: ModuleName,
        /// Its file.
        path: PathBuf,
        /// Why.
        source: io::Error,
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

    /// Reads a module directory; devices are looked for in `sysfs`.
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

    /// What `load_for` would load right now: the dry run.
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
                loaded.merge(load::apply(&plan, &drivers.tables.directory));
            }
        })
        .await
    }

    /// Loads one module and what it needs; one that is there already, or built into the kernel, is fine.
    pub async fn load_named(&self, name: &str) -> Result<Loaded, ModuleError> {
        let tables = &self.tables;
        let mut present = load::loaded_modules(&tables.sysfs);
        present.extend(tables.built_in.iter().cloned());
        let plan = plan_named(&ModuleName::new(name), &tables.dependencies, &present).ok_or_else(
            || ModuleError::Unknown {
                name: name.to_owned(),
                directory: tables.directory.clone(),
            },
        )?;
        let drivers = self.clone();
        let loaded = run_blocking(move || load::apply(&plan, &drivers.tables.directory)).await?;
        loaded.into_first_refusal()
    }
}

/// `finit_module` takes 0.1 s and more, which must not hold up the runtime's only thread.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ModuleError> {
    Ok(blocking_io::within(LOAD, work).await?)
}
