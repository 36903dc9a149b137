//! A new systemd-boot. The firmware starts it once, beside the installed one, and only a machine that it has started puts it in
//! the installed one's place. A new loader that the firmware refuses, or that hangs, costs one start: the firmware does not try it again.

use std::path::Path;

use instar_esp::{boot_order, paths};

use super::boot_order::{carry_out, partition};
use super::efi_variables::{self as variables, EfiError};
use super::kexec;
use super::partition::{EspError, MountedEsp};
use crate::disk::EfiPartition;

/// Makes the firmware start the new loader at the next boot, and only then.
pub fn start_next_loader_once(efi: &EfiPartition) -> Result<(), EfiError> {
    let present = variables::all_boot()?;
    carry_out(&boot_order::start_once(&present, &partition(efi)))
}

/// Returns whether the new loader started this kernel.
pub fn was_started_by_next_loader() -> Result<bool, EfiError> {
    // After a kexec, the loader's variables describe the boot before.
    if kexec::entry().is_some() {
        return Ok(false);
    }
    let Some(path) = variables::loader_path()? else {
        return Ok(false);
    };
    let path = path.trim_start_matches('\\').replace('\\', "/");
    Ok(path.eq_ignore_ascii_case(paths::NEW_LOADER))
}

/// Replaces the installed loader on this partition by the new one.
pub fn take_next_loader(device: &Path) -> Result<(), EspError> {
    let mut esp = MountedEsp::of(device)?;
    let plan = instar_esp::take_loader(&esp.state()?)?;
    esp.perform(&plan)
}

/// Removes the firmware's entry for the new loader.
pub fn forget_next_loader() -> Result<(), EfiError> {
    carry_out(&boot_order::started_once(&variables::all_boot()?))
}
