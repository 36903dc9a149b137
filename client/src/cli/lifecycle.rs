//! Upgrades and the other ways to another boot, and whether to wait for their end.

use std::time::Duration;

use clap::{Args, ValueEnum};

use super::durations::duration;

/// Arguments of `upgrade`.
#[derive(Args, Debug)]
pub(crate) struct Upgrade {
    /// Installer image
    #[arg(short, long, value_name = "REFERENCE")]
    pub(crate) image: String,
    /// Only prepare it: the next boot tries it, whatever brings that about
    #[arg(long)]
    pub(crate) stage: bool,
    /// Only prepare it: a reboot starts it, without the kernel where kernel and init are the same
    #[arg(long, conflicts_with_all = ["stage", "reboot_mode", "no_wait"])]
    pub(crate) no_reboot: bool,
    /// Only tell what it would do, and to which containers; nothing changes
    #[arg(long, conflicts_with_all = ["stage", "no_reboot", "no_wait"])]
    pub(crate) dry_run: bool,
    /// Even below the node's floor, over a version that the image does not name, behind a wrong tag, or after it failed there
    #[arg(long)]
    pub(crate) force: bool,
    /// How the new version comes to run
    #[arg(short = 'm', long, value_enum, default_value_t)]
    pub(crate) reboot_mode: UpgradeMode,
    #[command(flatten)]
    pub(crate) wait: Wait,
}

/// How a new version comes to run.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum UpgradeMode {
    /// Without a reboot where kernel and init are the same
    #[default]
    Default,
    /// By a reboot in any case
    Powercycle,
    /// By a reboot past the firmware in any case; through the firmware where the kernel does not allow that
    Kexec,
}

/// How to reboot.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum RebootMode {
    /// The quickest way that the node has
    #[default]
    Default,
    /// Through the firmware
    Powercycle,
    /// At once, nothing is stopped first
    Force,
    /// Past firmware and boot loader, where the kernel allows it
    Kexec,
}

/// Arguments of `reset`.
#[derive(Args, Debug)]
pub(crate) struct Reset {
    /// Partitions to erase: EFI, STATE, EPHEMERAL [default: the whole disk, boot assets included]
    #[arg(long, value_name = "LABEL", value_delimiter = ',')]
    pub(crate) system_labels_to_wipe: Vec<String>,
    /// Boot again afterwards instead of powering off
    #[arg(long)]
    pub(crate) reboot: bool,
    /// Stop services in order first (they are stopped in any case)
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub(crate) graceful: bool,
    #[command(flatten)]
    pub(crate) wait: Wait,
}

/// Whether to see it through.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Wait {
    /// See it through to the end (the default)
    #[arg(long, overrides_with = "no_wait")]
    wait: bool,
    /// Return as soon as the node has accepted it
    #[arg(long, overrides_with = "wait")]
    no_wait: bool,
    /// Longest wait: seconds, or with a unit (90s, 30m, 1h)
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
