//! A new systemd-boot: started once by the firmware, beside the one that is there, and put in its place only by a machine that it
//! has started. One that the firmware refuses, or that hangs, costs one start: the firmware asks for it no more.

use std::path::Path;

use instar_esp::{boot_order, paths};

use super::boot_order::{carry_out, partition};
use super::efi_variables::{self as variables, EfiError};
use super::kexec;
use super::partition::{EspError, MountedEsp};
use crate::disk::EfiPartition;

/// Has the firmware start it at the next boot, and only then.
pub fn start_next_loader_once(efi: &EfiPartition) -> Result<(), EfiError> {
    let present = variables::all_boot()?;
    carry_out(&boot_order::start_once(&present, &partition(efi)))
}

/// Whether this kernel was started by it.
pub fn was_started_by_next_loader() -> Result<bool, EfiError> {
    // Past the loader, its variables tell of the boot before.
    if kexec::entry().is_some() {
        return Ok(false);
    }
    let Some(path) = variables::loader_path()? else {
        return Ok(false);
    };
    let path = path.trim_start_matches('\\').replace('\\', "/");
    Ok(path.eq_ignore_ascii_case(paths::NEW_LOADER))
}

/// Lets it take the other's place on this partition.
pub fn take_next_loader(device: &Path) -> Result<(), EspError> {
    let mut esp = MountedEsp::of(device)?;
    let plan = instar_esp::take_loader(&esp.state()?)?;
    esp.perform(&plan)
}

/// The firmware need not know of it any more.
pub fn forget_next_loader() -> Result<(), EfiError> {
    carry_out(&boot_order::started_once(&variables::all_boot()?))
}
