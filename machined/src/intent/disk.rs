//! The disk that the machine may write.

use anyhow::Context as _;

use crate::command_line;
use crate::config::MachineConfig;
use crate::config_source::source;
use crate::disk::{DiskSpec, Takeover, check_selector};
use crate::values::DiskSelector;

/// Returns the disk that the config gives to the machine.
pub(super) fn disk(config: &MachineConfig) -> anyhow::Result<DiskSpec> {
    let Some(install) = &config.install else {
        return Ok(DiskSpec {
            disk: None,
            takeover: Takeover::Refuse,
        });
    };
    check_selector(&install.selector).context("the disk selector of the install section")?;
    Ok(DiskSpec {
        disk: Some(install.selector.clone()),
        takeover: if install.wipe {
            Takeover::Wipe
        } else {
            Takeover::Refuse
        },
    })
}

/// Returns the disk that the config gives to the machine, or else the kernel's command line.
pub fn disk_to_own(config: &MachineConfig) -> anyhow::Result<DiskSpec> {
    let spec = disk(config)?;
    match (&spec.disk, disk_on_command_line()) {
        (None, Some(named)) => Ok(named),
        _ => Ok(spec),
    }
}

/// Returns the disk that `instar.install.disk=` gives to the machine. An operator who boots a medium may have forgotten the data on the
/// disk, so a disk with other data is refused.
pub fn disk_on_command_line() -> Option<DiskSpec> {
    let arguments = command_line::read().ok()?;
    let disk = source::install_disk(&arguments)?;
    Some(DiskSpec {
        disk: Some(DiskSelector::Path(disk)),
        takeover: Takeover::Refuse,
    })
}
