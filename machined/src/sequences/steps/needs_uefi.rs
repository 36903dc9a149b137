//! Refuses installations on machines without UEFI: only UEFI starts an installed disk.

use std::fmt;

use anyhow::bail;

use crate::boot_loader;
use crate::config::MachineConfig;

/// Refuses a config that installs an image on a machine that could not start it. To be called before the disk is touched, which may hold
/// the system that the machine boots from now.
pub(in crate::sequences) fn refuse_without_uefi(config: &MachineConfig) -> anyhow::Result<()> {
    let image = config.install.as_ref().and_then(|spec| spec.image.as_ref());
    refuse(image, boot_loader::is_uefi())
}

fn refuse(image: Option<&impl fmt::Display>, is_uefi: bool) -> anyhow::Result<()> {
    match image {
        Some(image) if !is_uefi => bail!(
            "the config has {image} installed, and this machine was not started by UEFI, which alone starts an installed disk; start it by UEFI, or take the image out of the config: then the machine uses the disk for its data, and boots as it does now"
        ),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_for_machines_that_start_what_is_installed() {
        assert!(refuse(Some(&"installer:v1"), true).is_ok());
        assert!(refuse(None::<&&str>, false).is_ok(), "a disk for data");
        let refused = refuse(Some(&"installer:v1"), false);
        let said = refused.map_err(|error| error.to_string());
        assert!(said.is_err_and(|said| said.contains("installer:v1") && said.contains("UEFI")));
    }
}
