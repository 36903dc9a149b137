//! What is done for the settings of the machine config: the same steps at a boot and at a change while the machine runs.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::Context as _;

use super::steps::{disk, kernel};
use crate::base::blocking_io::{self, ANSWER};
use crate::config::MachineConfig;
use crate::config::settings::{Row, Setting};
use crate::kernel_settings::KernelSpec;
use crate::machine::Machine;
use crate::store::Problem;
use crate::{etc_files, intent, status};

/// Something that is done for one or more settings, in the order in which it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Step {
    /// Host name, links, addresses, routes, DNS.
    Network,
    /// Modules and parameters of the kernel.
    Kernel,
    /// Files below /etc.
    EtcFiles,
    /// The clock.
    Clock,
    /// Directories on /var.
    Volumes,
}

/// When a boot does a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    /// As soon as there is a config.
    WithConfig,
    /// While the disk is brought up.
    BesideDisk,
    /// Once /var is there.
    WithDisk,
}

impl Step {
    const ALL: [Step; 5] = [
        Step::Network,
        Step::Kernel,
        Step::EtcFiles,
        Step::Clock,
        Step::Volumes,
    ];

    /// The step that a change of a setting takes; none where whoever needs the setting reads it from the config in force, where a
    /// change starts containers, or where only a boot takes it over.
    fn of(setting: Setting) -> Option<Self> {
        match setting {
            Setting::Hostname | Setting::Network => Some(Step::Network),
            Setting::Sysctls | Setting::Sysfs | Setting::KernelModules => Some(Step::Kernel),
            Setting::EtcFiles => Some(Step::EtcFiles),
            Setting::Time => Some(Step::Clock),
            Setting::UserVolumes => Some(Step::Volumes),
            Setting::Trust
            | Setting::UpgradeGate
            | Setting::Registries
            | Setting::TrustedRoots
            | Setting::Containers
            | Setting::Environment
            | Setting::MachineType
            | Setting::Disk
            | Setting::Token => None,
        }
    }

    fn when(self) -> When {
        match self {
            Step::Network => When::WithConfig,
            Step::Kernel | Step::EtcFiles | Step::Clock => When::BesideDisk,
            Step::Volumes => When::WithDisk,
        }
    }

    /// Its name among the machine's problems.
    fn name(self) -> &'static str {
        match self {
            Step::Network => "network",
            Step::Kernel => "kernel settings",
            Step::EtcFiles => "files below /etc",
            Step::Clock => "clock",
            Step::Volumes => "volumes",
        }
    }

    async fn carry_out(self, machine: &Machine, config: &MachineConfig) -> anyhow::Result<()> {
        match self {
            Step::Network => machine.network.set_spec(intent::network(config)),
            Step::Kernel => return kernel::apply(machine, &intent::kernel(config)).await,
            Step::EtcFiles => {
                let files = config.etc_files.clone();
                blocking_io::within(ANSWER, move || etc_files::apply(&files)).await??;
            }
            Step::Clock => machine.clock.set_spec(intent::time(config)),
            Step::Volumes => disk::prepare_volumes(machine).await,
        }
        Ok(())
    }
}

/// Does what a boot does at this point. What fails is one of the machine's problems, and does not stop the boot.
pub(super) async fn apply_at(machine: &Machine, when: When) {
    let steps = Step::ALL.into_iter().filter(|step| step.when() == when);
    // The problems tell of them.
    let _ = carry_out(machine, steps).await;
}

/// Does what a change of these settings takes.
///
/// # Errors
/// All that failed, in one text; the rest is done.
pub(super) async fn apply_changed(
    machine: &Machine,
    changed: &[&'static Row],
) -> anyhow::Result<()> {
    let steps: BTreeSet<Step> = changed
        .iter()
        .filter_map(|row| Step::of(row.setting))
        .collect();
    carry_out(machine, steps).await
}

async fn carry_out(machine: &Machine, steps: impl IntoIterator<Item = Step>) -> anyhow::Result<()> {
    let Some(configured) = machine.config() else {
        return Ok(());
    };
    let mut failures = Vec::new();
    for step in steps {
        let name = step.name();
        match step.carry_out(machine, &configured.config).await {
            Ok(()) => machine.store.remove::<Problem>(name),
            Err(error) => {
                let reason = format!("{error:#}");
                tracing::error!("{name}: {reason}");
                status::note_problem(machine, name, &reason);
                failures.push(reason);
            }
        }
    }
    anyhow::ensure!(failures.is_empty(), "{}", failures.join("; "));
    Ok(())
}

/// Has the kernel be as it was before the config, at the end of a generation: the next one finds it as after a boot. What fails is left to
/// the next generation, and to init.
pub(super) async fn undo(machine: &Arc<Machine>) -> anyhow::Result<()> {
    let undone = kernel::apply(machine, &KernelSpec::default()).await;
    undone.context("have the kernel as it was before the config")
}
