//! The disk that the machine may write.

use anyhow::Context as _;

use crate::config::MachineConfig;
use crate::disk::{DiskSpec, Takeover, check_selector};

/// Returns the disk that the config gives to the machine.
pub fn disk(config: &MachineConfig) -> anyhow::Result<DiskSpec> {
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
