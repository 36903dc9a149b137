//! Taking a machine config over the API.
//!
//! A node in maintenance mode goes on booting with it. A node that has a config keeps it: changing one live is not
//! served yet, and saying so is better than half a change.

use std::sync::Arc;

use crate::config::{self, ConfigErrors};
use crate::machine::{Configured, Machine};

/// What was done.
pub struct Applied {
    /// What the config asks for and won't get.
    pub warnings: Vec<String>,
    /// One line for people.
    pub details: String,
}

/// Why nothing was done.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The config is wrong; each problem with its place.
    #[error("{0}")]
    Invalid(ConfigErrors),
    /// Not text.
    #[error("the machine config is not UTF-8 text")]
    NotText,
    /// There is one already.
    #[error(
        "this node has a machine config; changing it in place is not served yet. Boot it with the new config, or use dry run to check it"
    )]
    Configured,
}

/// Checks a config and, unless it is a dry run, takes it.
pub fn apply_config(machine: &Machine, data: &[u8], dry_run: bool) -> Result<Applied, ApplyError> {
    let text = std::str::from_utf8(data).map_err(|_| ApplyError::NotText)?;
    let parsed = config::parse(data).map_err(ApplyError::Invalid)?;
    let mut warnings: Vec<String> = parsed.warnings.iter().map(ToString::to_string).collect();
    if dry_run {
        return Ok(Applied {
            warnings,
            details: "The config is valid; nothing was changed.".to_owned(),
        });
    }
    if machine.config().is_some() {
        return Err(ApplyError::Configured);
    }
    if parsed.config.install.is_none() && machine.disk.status().borrow().disk.is_none() {
        warnings.push("the config names no disk for the machine, so it is kept over upgrades without a reboot, not over a reboot".to_owned());
    }
    machine.set_config(Arc::new(Configured {
        text: text.to_owned(),
        config: parsed.config,
    }));
    Ok(Applied {
        warnings,
        details: "The config was taken; the node goes on booting with it.".to_owned(),
    })
}
