//! Kernel modules that no device asks for. The kernel would run a program of the root filesystem to load them, but there is none.

use anyhow::Context as _;

use crate::machine::Machine;
use crate::modules::Class;

/// The modules of STATE's and EPHEMERAL's filesystem, for kernels without them built in.
const FILESYSTEM: [&str; 2] = ["crc32c_generic", "ext4"];

/// Loads these modules and their dependencies.
pub(in crate::sequences) async fn load_modules(
    machine: &Machine,
    names: &[&str],
) -> anyhow::Result<()> {
    let drivers = machine.drivers()?;
    for name in names {
        let loaded = drivers.load_named(name).await;
        loaded.with_context(|| format!("load the module {name}"))?;
    }
    Ok(())
}

/// Loads the drivers of disks, so that the kernel finds the disks and reads their partitions.
pub(in crate::sequences) async fn load_disk_drivers(machine: &Machine) -> anyhow::Result<()> {
    let loaded = machine.drivers()?.load_for(Class::Block).await;
    loaded.context("load the drivers of disks")?;
    load_modules(machine, &FILESYSTEM).await
}
