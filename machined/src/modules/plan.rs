//! The modules to load, in their order: a value that can be inspected before anything is loaded.

use std::{
    collections::{BTreeSet, HashSet},
    fmt,
    path::PathBuf,
};

use super::{AliasTable, Class, DependencyTable, ModuleName};

/// One module to load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Its name.
    pub name: ModuleName,
    /// Its file, below the module directory.
    pub file: PathBuf,
}

/// Modules in the order of loading.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoadPlan {
    /// The modules; each comes after the modules that it needs.
    pub steps: Vec<Step>,
}

impl LoadPlan {
    /// Returns whether there is nothing to load.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    pub(super) fn retain(&mut self, keep: impl FnMut(&Step) -> bool) {
        self.steps.retain(keep);
    }
}

impl fmt::Display for LoadPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("no modules to load");
        }
        f.write_str("load")?;
        self.steps
            .iter()
            .try_for_each(|step| write!(f, " {}", step.name))
    }
}

/// Plans the modules of `class` that the devices with these modaliases need and that are not in `present`.
pub fn plan_devices(
    modaliases: &BTreeSet<String>,
    aliases: &AliasTable,
    dependencies: &DependencyTable,
    class: Class,
    present: &HashSet<ModuleName>,
) -> LoadPlan {
    let mut builder = Builder::new(dependencies, present);
    for modalias in modaliases {
        for name in aliases.modules_for(modalias) {
            let wanted = dependencies
                .file(name)
                .is_some_and(|file| class.includes(&file.to_string_lossy()));
            if wanted {
                builder.add(name);
            }
        }
    }
    builder.plan
}

/// Plans the loading of `name`; none if modules.dep does not list it and it is not loaded either.
pub fn plan_named(
    name: &ModuleName,
    dependencies: &DependencyTable,
    present: &HashSet<ModuleName>,
) -> Option<LoadPlan> {
    if dependencies.file(name).is_none() && !present.contains(name) {
        return None;
    }
    let mut builder = Builder::new(dependencies, present);
    builder.add(name);
    Some(builder.plan)
}

struct Builder<'a> {
    dependencies: &'a DependencyTable,
    done: HashSet<ModuleName>,
    plan: LoadPlan,
}

impl<'a> Builder<'a> {
    fn new(dependencies: &'a DependencyTable, present: &HashSet<ModuleName>) -> Self {
        Self {
            dependencies,
            done: present.clone(),
            plan: LoadPlan::default(),
        }
    }

    /// Adds a module after its needs. The needs of a loaded module are loaded too, so a module that is done is skipped with its needs.
    fn add(&mut self, name: &ModuleName) {
        if self.done.contains(name) {
            return;
        }
        for need in self.dependencies.needs(name) {
            self.push(need);
        }
        self.push(name);
    }

    fn push(&mut self, name: &ModuleName) {
        if let Some(file) = self.dependencies.file(name)
            && self.done.insert(name.clone())
        {
            self.plan.steps.push(Step {
                name: name.clone(),
                file: file.to_owned(),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const ALIAS: &str = "\
alias virtio:d00000001v* virtio_net
alias virtio:d00000002v* virtio_blk
alias pci:v00001AF4d* virtio_pci
alias pci:v00001234d* bochs
";
    const DEP: &str = "\
kernel/drivers/virtio/virtio_pci.ko.xz: kernel/drivers/virtio/virtio_pci_legacy_dev.ko.xz
kernel/drivers/virtio/virtio_pci_legacy_dev.ko.xz:
kernel/drivers/net/virtio_net.ko.xz: kernel/drivers/net/net_failover.ko.xz kernel/net/core/failover.ko.xz
kernel/drivers/net/net_failover.ko.xz: kernel/net/core/failover.ko.xz
kernel/net/core/failover.ko.xz:
kernel/drivers/block/virtio_blk.ko.xz:
kernel/drivers/gpu/bochs.ko.xz:
kernel/fs/overlayfs/overlay.ko.xz:
";

    fn plan(class: Class, present: &[&str]) -> String {
        let devices = [
            "pci:v00001AF4d00001000",
            "pci:v00001234d00001111",
            "virtio:d00000001v00001AF4",
            "virtio:d00000002v00001AF4",
            "acpi:UNKNOWN",
        ]
        .map(str::to_owned)
        .into();
        let present = present.iter().map(|name| ModuleName::new(name)).collect();
        plan_devices(
            &devices,
            &AliasTable::parse(ALIAS),
            &DependencyTable::parse(DEP),
            class,
            &present,
        )
        .to_string()
    }

    #[test]
    fn a_class_takes_its_buses_and_needs_along() {
        assert_eq!(
            plan(Class::Network, &[]),
            "load virtio_pci_legacy_dev virtio_pci failover net_failover virtio_net"
        );
        assert_eq!(
            plan(Class::Block, &[]),
            "load virtio_pci_legacy_dev virtio_pci virtio_blk"
        );
    }

    #[test]
    fn what_is_there_is_not_loaded_again() {
        let after_network = [
            "virtio_pci_legacy_dev",
            "virtio_pci",
            "failover",
            "net_failover",
            "virtio_net",
        ];
        assert_eq!(plan(Class::Network, &after_network), "no modules to load");
        assert_eq!(plan(Class::Block, &after_network), "load virtio_blk");
        assert_eq!(plan(Class::All, &after_network), "load bochs virtio_blk");
    }

    #[test]
    fn modules_load_by_name() {
        let table = DependencyTable::parse(DEP);
        let named = |name: &str, present: &[&str]| {
            let present = present.iter().map(|name| ModuleName::new(name)).collect();
            plan_named(&ModuleName::new(name), &table, &present).map(|plan| plan.to_string())
        };
        assert_eq!(named("overlay", &[]).unwrap(), "load overlay");
        assert_eq!(
            named("overlay", &["overlay"]).unwrap(),
            "no modules to load"
        );
        assert_eq!(
            named("virtio-net", &["failover"]).unwrap(),
            "load net_failover virtio_net"
        );
        assert_eq!(named("nope", &[]), None);
        assert_eq!(
            named("builtin_thing", &["builtin_thing"]).unwrap(),
            "no modules to load"
        );
    }
}
