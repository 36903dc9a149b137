//! Taking a machine config over the API.
//!
//! A node in maintenance mode goes on booting with it. A node that has a config compares the two, and takes over what it
//! can while it runs; the rest takes a reboot, for which the config has to be kept on STATE.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use similar::TextDiff;

use super::needs_uefi::refuse_without_uefi;
use super::overlay::load_overlay;
use super::{ConfigChange, disk, ending, find_config};
use crate::config::{self, ConfigErrors, MachineConfig};
use crate::intent;
use crate::machine::{Configured, Machine};
use crate::operation_lock::{Busy, Operation};

/// Two texts that have nothing in common are compared in a coarser way after this time.
const DIFF_TIME: Duration = Duration::from_millis(500);

/// When the config is to be taken over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApplyMode {
    /// Now, with a reboot if it takes one.
    Auto,
    /// Now, or not at all.
    NoReboot,
    /// By a reboot now.
    Reboot,
    /// By whichever reboot comes next.
    Staged,
    /// Now, and taken back after this time unless it is applied again.
    Try(Duration),
}

/// What was done.
#[derive(Debug)]
pub struct Applied {
    /// What the config asks for and won't get.
    pub warnings: Vec<String>,
    /// How it was taken over.
    pub mode: ApplyMode,
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
    /// A time that makes no sense.
    #[error("the time of a trial must be from 1 s to 1 h")]
    TrialTime,
    /// There is nothing to return to, or no boot to wait for.
    #[error(
        "this node has no machine config yet: apply one with the mode auto, no-reboot or reboot"
    )]
    Unconfigured,
    /// Not without a reboot.
    #[error("this takes a reboot: {0}; use the mode auto, reboot or staged")]
    NeedsReboot(String),
    /// Nowhere to keep it.
    #[error(
        "this takes a reboot ({0}), and the node has no STATE partition to keep the config on; boot it with the new config instead"
    )]
    NowhereToKeep(String),
    /// The disk that the config gives to the machine cannot be used.
    #[error("{0:#}")]
    Disk(anyhow::Error),
    /// Something else is being done.
    #[error(transparent)]
    Busy(#[from] Busy),
    /// The node could not do it.
    #[error("{0:#}")]
    Failed(anyhow::Error),
}

/// Checks a config and, unless it is a dry run, takes it.
pub async fn apply_config(
    machine: &Arc<Machine>,
    data: &[u8],
    mode: ApplyMode,
    dry_run: bool,
) -> Result<Applied, ApplyError> {
    let text = std::str::from_utf8(data).map_err(|_| ApplyError::NotText)?;
    let parsed = config::parse(data).map_err(ApplyError::Invalid)?;
    if matches!(mode, ApplyMode::Try(time) if time.is_zero() || time > Duration::from_secs(3600)) {
        return Err(ApplyError::TrialTime);
    }
    let warnings: Vec<String> = parsed.warnings.iter().map(ToString::to_string).collect();
    let configured = Arc::new(Configured::new(text.to_owned(), parsed.config));
    let mut applied = match machine.config() {
        None => begin(machine, configured, mode, dry_run).await?,
        Some(current) => change(machine, &current, configured, mode, dry_run).await?,
    };
    applied.warnings.splice(0..0, warnings);
    Ok(applied)
}

/// The first config: the node in maintenance mode goes on booting.
async fn begin(
    machine: &Machine,
    configured: Arc<Configured>,
    mode: ApplyMode,
    dry_run: bool,
) -> Result<Applied, ApplyError> {
    if matches!(mode, ApplyMode::Staged | ApplyMode::Try(_)) {
        return Err(ApplyError::Unconfigured);
    }
    refuse_without_uefi(&configured.config).map_err(ApplyError::Disk)?;
    let mut warnings = Vec::new();
    if configured.config.install.is_none() && machine.disk.status().borrow().disk.is_none() {
        warnings.push("the config names no disk for the machine, so it is kept over upgrades without a reboot, not over a reboot".to_owned());
    }
    let details = if dry_run {
        let plan = disk::dry_run(machine, &configured.config)
            .await
            .map_err(ApplyError::Disk)?;
        let disk = plan.map_or_else(String::new, |plan| format!(" Its disk:\n{plan}"));
        format!("The config is valid; nothing was changed.{disk}")
    } else {
        machine.set_config(configured);
        "The config was taken; the node goes on booting with it.".to_owned()
    };
    Ok(Applied {
        warnings,
        mode: ApplyMode::NoReboot,
        details,
    })
}

/// The two texts as a unified diff, three lines around each change; empty when they are the same.
fn lines_that_differ(old: &str, new: &str) -> String {
    TextDiff::configure()
        .timeout(DIFF_TIME)
        .diff_lines(old, new)
        .unified_diff()
        .header("the config in force", "the config that is applied")
        .to_string()
}

/// Another config for a node that has one.
async fn change(
    machine: &Arc<Machine>,
    current: &Configured,
    configured: Arc<Configured>,
    mode: ApplyMode,
    dry_run: bool,
) -> Result<Applied, ApplyError> {
    if current.config.install != configured.config.install {
        refuse_without_uefi(&configured.config).map_err(ApplyError::Disk)?;
    }
    let change = ConfigChange::between(&current.config, &configured.config);
    let at_boot = change.at_boot.join(", ");
    let state = machine.disk.state().map(Path::to_owned);
    let mode = match mode {
        ApplyMode::Auto if change.at_boot.is_empty() => ApplyMode::NoReboot,
        ApplyMode::Auto => ApplyMode::Reboot,
        ApplyMode::NoReboot | ApplyMode::Try(_) if !change.at_boot.is_empty() => {
            return Err(ApplyError::NeedsReboot(at_boot));
        }
        other => other,
    };
    if matches!(mode, ApplyMode::Reboot | ApplyMode::Staged) && state.is_none() {
        return Err(ApplyError::NowhereToKeep(change.to_string()));
    }
    let mut warnings = Vec::new();
    if let Some(source) = find_config::source_before_state() {
        warnings.push(format!(
            "at its next boot this node takes its config from {source} again, and not this one"
        ));
    }
    if dry_run {
        return Ok(Applied {
            warnings,
            mode,
            details: format!(
                "Dry run, nothing was changed: {change}.\n{}",
                lines_that_differ(&current.text, &configured.text)
            ),
        });
    }
    let lock = machine.lock_operation(Operation::ApplyConfig)?;
    let keep = match mode {
        ApplyMode::Try(_) => None,
        _ => state,
    };
    if let Some(state) = keep {
        let configured = configured.clone();
        tokio::task::spawn_blocking(move || config::persisted::write(&state, &configured.text))
            .await
            .context("the write was interrupted")
            .and_then(|written| written.context("keep the machine config on STATE"))
            .map_err(ApplyError::Failed)?;
    }
    let details = match mode {
        ApplyMode::Staged => format!("Kept for the next reboot: {change}."),
        ApplyMode::Reboot => {
            ending::reboot_next(machine, lock);
            format!("Kept, and the node reboots to take it over: {change}.")
        }
        ApplyMode::Auto | ApplyMode::NoReboot => {
            machine.end_trial();
            take_over(machine, &change, configured)
                .await
                .map_err(ApplyError::Failed)?;
            format!("Applied without a reboot: {change}.")
        }
        ApplyMode::Try(time) => {
            let settled = machine.settled_config();
            take_over(machine, &change, configured)
                .await
                .map_err(ApplyError::Failed)?;
            if let Some(settled) = settled {
                let trial = tokio::spawn(take_back(machine.clone(), settled.clone(), time));
                machine.begin_trial(settled, trial.abort_handle());
            }
            format!(
                "Applied for {} s, then taken back unless it is applied again: {change}.",
                time.as_secs()
            )
        }
    };
    Ok(Applied {
        warnings,
        mode,
        details,
    })
}

/// Carries out what can be done while the machine runs.
async fn take_over(
    machine: &Arc<Machine>,
    change: &ConfigChange,
    configured: Arc<Configured>,
) -> anyhow::Result<()> {
    let config: &MachineConfig = &configured.config;
    // Whatever is wrong with a container is found before anything is changed.
    let starting = config
        .containers
        .iter()
        .filter(|container| change.started.contains(&container.name.to_string()));
    let definitions = starting
        .map(|container| intent::service(machine, &configured, container))
        .collect::<anyhow::Result<Vec<_>>>()?;
    machine.set_config(configured.clone());
    machine.network.set_wish(intent::network(config));
    machine.clock.set_wish(intent::time(config));
    disk::furnish(machine).await;
    let other = || change.removed.iter().chain(&change.started);
    for name in other() {
        machine.services.remove(name).await;
    }
    // Another config for a container asks what its image's name means now.
    machine.images_in_force.forget(other()).await;
    if !definitions.is_empty() {
        load_overlay(machine).await?;
    }
    for definition in definitions {
        machine.services.add(definition)?.start();
    }
    tracing::info!("machine config: {change}");
    Ok(())
}

/// Waits out a trial and returns to the config before it.
async fn take_back(machine: Arc<Machine>, settled: Arc<Configured>, time: Duration) {
    tokio::time::sleep(time).await;
    let Some(current) = machine.config() else {
        return;
    };
    tracing::warn!("machine config: the trial is over, the config before it is taken back");
    machine.end_trial_after_time();
    let change = ConfigChange::between(&current.config, &settled.config);
    if let Err(error) = take_over(&machine, &change, settled).await {
        tracing::error!("machine config: not all of the trial was taken back: {error:#}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_differs_is_shown() {
        let old = "a: 1\nb: 2\nc: 3\nd: 4\ne: 5\nf: 6\n";
        assert_eq!(lines_that_differ(old, old), "");
        assert_eq!(
            lines_that_differ(old, &old.replace("a: 1", "a: 2")),
            "--- the config in force\n+++ the config that is applied\n@@ -1,4 +1,4 @@\n-a: 1\n+a: 2\n b: 2\n c: 3\n d: 4\n"
        );
    }
}
