//! The commands for machine configs: apply, check, change.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::durations::duration;

/// Arguments of `apply-config`.
#[derive(Args, Debug)]
pub(crate) struct ApplyConfig {
    /// Machine config
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Patch for it: a part of a machine config, a JSON patch, or @FILE with one; may be repeated
    #[arg(short = 'p', long = "config-patch", value_name = "PATCH")]
    pub(crate) patches: Vec<String>,
    #[command(flatten)]
    pub(crate) how: ApplyHow,
}

/// How a machine config is applied.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct ApplyHow {
    /// When it takes effect
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) mode: ApplyMode,
    /// Only show what would change
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// With the mode try: time until the previous config is restored
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = duration)]
    pub(crate) timeout: Duration,
}

/// When a machine config takes effect.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum ApplyMode {
    /// Now; with a reboot if the change needs one
    #[default]
    Auto,
    /// Now, without a reboot
    NoReboot,
    /// With a reboot now
    Reboot,
    /// With the next start: a reboot, or an upgrade
    Staged,
    /// Now; the previous config is restored after --timeout unless the new one is applied again
    Try,
}

/// Arguments of `validate`.
#[derive(Args, Debug)]
pub(crate) struct Validate {
    /// Machine config; - is standard input
    #[arg(short, long, value_name = "FILE")]
    pub(crate) config: PathBuf,
    /// Machine that the config is for [default: any]
    #[arg(short, long, value_enum, ignore_case = true)]
    pub(crate) mode: Option<MachineMode>,
    /// Treat warnings as errors
    #[arg(long)]
    pub(crate) strict: bool,
}

/// Kinds of machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MachineMode {
    /// A machine with a disk to install to
    Metal,
    /// A virtual machine of a cloud, whose disk is its image
    Cloud,
    /// A container; always refused, since Instar starts from its own kernel
    Container,
}

/// Arguments of `edit`.
#[derive(Args, Debug)]
pub(crate) struct Edit {
    #[command(flatten)]
    pub(crate) which: WhichConfig,
    #[command(flatten)]
    pub(crate) how: ApplyHow,
}

/// Arguments of `patch`.
#[derive(Args, Debug)]
pub(crate) struct Patch {
    #[command(flatten)]
    pub(crate) which: WhichConfig,
    /// Patch: a part of a machine config, a JSON patch, or @FILE with one; may be repeated
    #[arg(
        short,
        long = "patch",
        value_name = "PATCH",
        required_unless_present = "patch_file"
    )]
    pub(crate) patches: Vec<String>,
    /// File with a patch: a part of a machine config, or a JSON patch
    #[arg(long, value_name = "FILE")]
    pub(crate) patch_file: Option<String>,
    #[command(flatten)]
    pub(crate) how: ApplyHow,
}

/// Machine configs of a node.
#[derive(Args, Clone, Debug)]
pub(crate) struct WhichConfig {
    /// Resource to change; only the machine config can be changed
    #[arg(value_name = "TYPE", value_enum, ignore_case = true)]
    _kind: WrittenKind,
    /// The config in force (v1alpha1), or the config for the next boot (persistent)
    #[arg(default_value = "v1alpha1")]
    pub(crate) id: String,
}

/// Resources that can be changed.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum WrittenKind {
    /// The machine config
    #[value(name = "mc", aliases = ["machineconfig", "machineconfigs", "machineconfigs.config.talos.dev"])]
    MachineConfig,
}
