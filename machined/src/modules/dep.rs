//! `modules.dep`: the file of each module, and the modules that it depends on.

use std::{
    collections::HashMap,
    fmt,
    path::{Path, PathBuf},
};

/// A module's name as the kernel shows it: underscores, no path, no suffix.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModuleName(String);

impl ModuleName {
    /// Creates a name from any spelling (`virtio-net`, `virtio_net`).
    pub fn new(name: &str) -> Self {
        Self(name.replace('-', "_"))
    }

    /// Returns the name of a module file (`kernel/drivers/net/virtio_net.ko.xz`); none if the path is no module.
    pub fn of_file(path: &str) -> Option<Self> {
        let file = path.rsplit('/').next()?;
        let stem = [".ko", ".ko.xz", ".ko.gz", ".ko.zst"]
            .iter()
            .find_map(|suffix| file.strip_suffix(suffix))?;
        (!stem.is_empty()).then(|| Self::new(stem))
    }
}

impl ModuleName {
    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ModuleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl AsRef<Path> for ModuleName {
    fn as_ref(&self) -> &Path {
        Path::new(&self.0)
    }
}

/// The kind of drivers that a caller waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Network cards, and the buses that they are attached to.
    Network,
    /// Disks and their controllers, and the buses that they are attached to.
    Block,
    /// Watchdogs, which init feeds as soon as one exists.
    Watchdog,
    /// Every driver that a device asks for.
    All,
}

impl Class {
    /// Returns whether the module in this file belongs to the class, by its place in the kernel's tree.
    ///
    /// The tables tell nothing else about a driver's kind than the directory that the kernel's vendor puts it in.
    pub fn includes(self, file: &str) -> bool {
        /// Directories of bus drivers, which make the devices behind the bus visible.
        const BUSES: &[&str] = &["bus", "hv", "pci", "vhost", "virtio", "xen"];
        const NETWORK: &[&str] = &["net"];
        const BLOCK: &[&str] = &[
            "ata", "block", "md", "message", "mmc", "nvme", "scsi", "ufs",
        ];
        let Some((_, drivers)) = file.split_once("drivers/") else {
            return self == Self::All;
        };
        let folder = drivers.split('/').next().unwrap_or_default();
        let usb_storage = drivers.starts_with("usb/host/") || drivers.starts_with("usb/storage/");
        match self {
            Self::All => true,
            Self::Network => BUSES.contains(&folder) || NETWORK.contains(&folder),
            Self::Block => BUSES.contains(&folder) || BLOCK.contains(&folder) || usb_storage,
            Self::Watchdog => folder == "watchdog",
        }
    }
}

#[derive(Debug)]
struct Entry {
    file: PathBuf,
    /// The modules to load first, in the order of loading.
    needs: Vec<ModuleName>,
}

/// The parsed lines of `modules.dep`.
#[derive(Debug, Default)]
pub struct DependencyTable {
    entries: HashMap<ModuleName, Entry>,
}

impl DependencyTable {
    /// Lists all modules, in the order of their names.
    pub fn names(&self) -> Vec<&ModuleName> {
        let mut names: Vec<_> = self.entries.keys().collect();
        names.sort();
        names
    }

    /// Parses lines of the form `FILE: NEED NEED …`.
    ///
    /// depmod lists all needs of a module, indirect ones too; the module to load first is the last in the line.
    pub fn parse(text: &str) -> Self {
        let mut entries = HashMap::new();
        for line in text.lines() {
            let Some((file, needs)) = line.split_once(':') else {
                continue;
            };
            let Some(name) = ModuleName::of_file(file) else {
                continue;
            };
            let needs = needs
                .split_ascii_whitespace()
                .rev()
                .filter_map(ModuleName::of_file)
                .collect();
            entries.insert(
                name,
                Entry {
                    file: PathBuf::from(file),
                    needs,
                },
            );
        }
        Self { entries }
    }

    /// Returns the file of a module, below the module directory.
    pub fn file(&self, name: &ModuleName) -> Option<&Path> {
        self.entries.get(name).map(|entry| entry.file.as_path())
    }

    /// Returns the modules that `name` needs, in the order of loading, without itself.
    pub fn needs(&self, name: &ModuleName) -> &[ModuleName] {
        self.entries.get(name).map_or(&[], |entry| &entry.needs)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn needs_come_in_loading_order() {
        let table = DependencyTable::parse(
            "kernel/drivers/net/virtio_net.ko.xz: kernel/drivers/net/net_failover.ko.xz kernel/net/core/failover.ko.xz\n\
             kernel/net/core/failover.ko.xz:\n\
             no colon here\n\
             modules.order: x.ko\n",
        );
        let needs: Vec<String> = table
            .needs(&ModuleName::new("virtio-net"))
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(needs, ["failover", "net_failover"]);
        assert!(table.needs(&ModuleName::new("failover")).is_empty());
        assert_eq!(table.file(&ModuleName::new("order")), None);
        assert_eq!(
            table.file(&ModuleName::new("failover")).unwrap(),
            Path::new("kernel/net/core/failover.ko.xz")
        );
    }

    #[test]
    fn names_come_from_files_in_every_packing() {
        for file in ["a/b-c.ko", "b-c.ko.xz", "x/b_c.ko.zst", "b-c.ko.gz"] {
            assert_eq!(ModuleName::of_file(file).unwrap().to_string(), "b_c");
        }
        for file in ["a/b.txt", "", ".ko", "ko"] {
            assert_eq!(ModuleName::of_file(file), None, "{file}");
        }
    }

    #[test]
    fn classes_follow_the_tree() {
        let net = "kernel/drivers/net/ethernet/intel/e1000e/e1000e.ko.xz";
        let scsi = "kernel/drivers/scsi/virtio_scsi.ko.xz";
        let bus = "kernel/drivers/virtio/virtio_pci.ko";
        let gpu = "kernel/drivers/gpu/drm/bochs.ko.xz";
        let crypto = "kernel/arch/x86/crypto/aesni-intel.ko.xz";
        assert!(Class::Network.includes(net) && !Class::Block.includes(net));
        assert!(Class::Block.includes(scsi) && !Class::Network.includes(scsi));
        assert!(Class::Block.includes(bus) && Class::Network.includes(bus));
        let watchdog = "kernel/drivers/watchdog/i6300esb.ko.xz";
        assert!(Class::Watchdog.includes(watchdog) && !Class::Watchdog.includes(bus));
        for other in [gpu, crypto, watchdog] {
            assert!(
                !Class::Block.includes(other)
                    && !Class::Network.includes(other)
                    && Class::All.includes(other)
            );
        }
    }
}
