//! Upgrades and the other ways to another boot, and whether to wait for their end.

use std::time::Duration;

use clap::{Args, ValueEnum};

use super::durations::duration;
use super::images::FetchTerms;

/// Arguments of `upgrade`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Upgrade {
    /// Installer image
    #[arg(short, long, value_name = "REFERENCE")]
    pub(crate) image: String,
    /// The image's tag, if its name has neither tag nor digest
    #[arg(
        long,
        value_name = "TAG",
        env = "SYSTEM_UPGRADE_PLAN_LATEST_VERSION",
        hide_env_values = true
    )]
    pub(crate) tag: Option<String>,
    /// Do nothing if this very image runs already. Before that, wait until the node is in no change of versions
    #[arg(long, conflicts_with_all = ["stage", "no_reboot", "prepare", "dry_run", "no_wait", "force"])]
    pub(crate) if_needed: bool,
    /// Only prepare the new version: the next boot of any kind starts it
    #[arg(long)]
    pub(crate) stage: bool,
    /// Only prepare the new version: `reboot` starts it, without restarting the kernel if kernel and init are the same
    #[arg(long, conflicts_with_all = ["stage", "reboot_mode", "no_wait"])]
    pub(crate) no_reboot: bool,
    /// Fetch and prepare the new version ahead, with all images that the node's containers need: a reboot starts it. Returns at once
    #[arg(long, conflicts_with_all = ["stage", "no_reboot", "reboot_mode", "no_wait"])]
    pub(crate) prepare: bool,
    #[command(flatten)]
    pub(crate) terms: FetchTerms,
    /// Only show the version, whether the node reboots, and the effect on each container; nothing changes
    #[arg(long, conflicts_with_all = ["stage", "no_reboot", "no_wait"])]
    pub(crate) dry_run: bool,
    /// Replace the machine: reboot into the new version with nothing left on EPHEMERAL, neither images nor volumes. The config stays
    #[arg(long, conflicts_with_all = ["stage", "no_reboot", "prepare", "reboot_mode", "if_needed"])]
    pub(crate) wipe: bool,
    /// Upgrade although the version is below the node's floor, may not follow the running one, has a wrong tag, or failed before
    #[arg(long)]
    pub(crate) force: bool,
    /// How to start the new version
    #[arg(short = 'm', long, value_enum, default_value_t)]
    pub(crate) reboot_mode: UpgradeMode,
    #[command(flatten)]
    pub(crate) wait: Wait,
}

/// Ways to start a new version.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum UpgradeMode {
    /// Without a reboot if kernel and init are the same
    #[default]
    Default,
    /// Always by a reboot
    Powercycle,
    /// Always by kexec, a reboot without the firmware; through the firmware if the kernel does not allow kexec
    Kexec,
}

/// Kinds of reboot.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum RebootMode {
    /// The quickest kind that the node supports
    #[default]
    Default,
    /// Through the firmware
    Powercycle,
    /// At once: services have no time to end, they are killed. File systems are unmounted
    Force,
    /// By kexec, without firmware and boot loader, if the kernel allows it
    Kexec,
}

/// Arguments of `reset`.
#[derive(Args, Debug)]
pub(crate) struct Reset {
    /// Partitions to erase: EFI, STATE, EPHEMERAL [default: the whole disk, boot assets included]
    #[arg(long, value_name = "LABEL", value_delimiter = ',')]
    pub(crate) system_labels_to_wipe: Vec<String>,
    /// Reboot afterwards instead of powering off
    #[arg(long)]
    pub(crate) reboot: bool,
    /// Give services their time to end; otherwise they are killed
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub(crate) graceful: bool,
    #[command(flatten)]
    pub(crate) wait: Wait,
}

/// Whether to wait for the end.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Wait {
    /// Wait until the operation has ended (the default)
    #[arg(long, overrides_with = "no_wait")]
    wait: bool,
    /// Return as soon as the node has accepted the call
    #[arg(long, overrides_with = "wait")]
    no_wait: bool,
    /// Timeout: seconds, or a number with a unit (90s, 30m, 1h)
    #[arg(long, value_name = "TIME", default_value = "30m", value_parser = duration)]
    pub(crate) timeout: Duration,
}

impl Wait {
    /// Whether to wait.
    pub(crate) fn wanted(&self) -> bool {
        self.wait || !self.no_wait
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use clap::Parser;

    use crate::cli::{Cli, Command};

    #[test]
    fn waiting_is_the_default_and_the_last_word_counts() {
        let wanted = |arguments: &[&str]| {
            let all = ["instarctl", "reboot"].iter().chain(arguments);
            match Cli::try_parse_from(all).unwrap().command {
                Command::Reboot { wait, .. } => wait.wanted(),
                _ => false,
            }
        };
        assert!(wanted(&[]));
        assert!(wanted(&["--wait"]));
        assert!(!wanted(&["--no-wait"]));
        assert!(wanted(&["--no-wait", "--wait"]));
        assert!(!wanted(&["--wait", "--no-wait"]));
    }
}
