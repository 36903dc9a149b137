//! Kernel modules that no device asks for. The kernel would have a program of the root filesystem load them, which there is none of.

use anyhow::Context as _;

use crate::machine::Machine;
use crate::modules::Class;

/// The modules of STATE's and EPHEMERAL's filesystem, where the kernel does not have them built in.
const FILESYSTEM: [&str; 2] = ["crc32c_generic", "ext4"];

/// Loads these and what they need.
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

/// Has the kernel find the disks, and read what is on them.
pub(in crate::sequences) async fn load_disk_drivers(machine: &Machine) -> anyhow::Result<()> {
    let loaded = machine.drivers()?.load_for(Class::Block).await;
    loaded.context("load the drivers of disks")?;
    load_modules(machine, &FILESYSTEM).await
}
