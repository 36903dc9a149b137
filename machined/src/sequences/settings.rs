//! Applies the settings of the machine config: the same steps at a boot and at a change while the machine runs.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::Context as _;

use super::steps::{disk, kernel};
use crate::base::blocking_io::{self, ANSWER};
use crate::config::MachineConfig;
use crate::config::settings::{Row, Step};
use crate::kernel_settings::KernelSpec;
use crate::machine::Machine;
use crate::store::{Problem, Store};
use crate::{intent, status};

/// The point of a boot at which a step runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    /// As soon as there is a config.
    WithConfig,
    /// While the disk is brought up.
    BesideDisk,
    /// Once /var is mounted.
    WithDisk,
}

const STEPS: [Step; 5] = [
    Step::Network,
    Step::Kernel,
    Step::EtcFiles,
    Step::Clock,
    Step::Volumes,
];

fn when(step: Step) -> When {
    match step {
        Step::Network => When::WithConfig,
        Step::Kernel | Step::EtcFiles | Step::Clock => When::BesideDisk,
        Step::Volumes => When::WithDisk,
    }
}

/// Returns a step's name among the machine's problems.
fn name(step: Step) -> &'static str {
    match step {
        Step::Network => "network",
        Step::Kernel => "kernel settings",
        Step::EtcFiles => "files below /etc",
        Step::Clock => "clock",
        Step::Volumes => "volumes",
    }
}

async fn apply(step: Step, machine: &Machine, config: &MachineConfig) -> anyhow::Result<()> {
    match step {
        Step::Network => machine.network.set_spec(intent::network(config)),
        Step::Kernel => return kernel::apply(machine, &intent::kernel(config)).await,
        Step::EtcFiles => {
            let (etc, files) = (machine.etc_files.clone(), config.etc_files.clone());
            blocking_io::within(ANSWER, move || etc.set_of_config(files)).await??;
        }
        Step::Clock => {
            let leased = machine.network.status().borrow().time_servers.clone();
            machine.clock.set_spec(intent::time(config, &leased));
        }
        Step::Volumes => disk::prepare_volumes(machine).await,
    }
    Ok(())
}

/// Runs the steps for this point of a boot. A failure becomes one of the machine's problems, and does not stop the boot.
pub(super) async fn apply_at(machine: &Machine, when: When) {
    let steps = STEPS.into_iter().filter(|step| self::when(*step) == when);
    // The machine's problems report the failures.
    let _ = carry_out(machine, steps).await;
}

/// Whether a step tells whether it is done. The others only set a goal, which is pursued by itself.
fn can_fail(step: Step) -> bool {
    match step {
        Step::Kernel | Step::EtcFiles => true,
        Step::Network | Step::Clock | Step::Volumes => false,
    }
}

/// Returns the steps that failed the last time.
fn failed(store: &Store) -> impl Iterator<Item = Step> {
    let has_failed = move |step: &Step| store.get::<Problem>(name(*step)).is_some();
    STEPS
        .into_iter()
        .filter(|step| can_fail(*step))
        .filter(has_failed)
}

/// Returns the names of the steps that failed the last time, and that any change runs again.
pub(super) fn names_of_failed(store: &Store) -> Vec<&'static str> {
    failed(store).map(name).collect()
}

/// Returns the steps that a change of these settings needs, and those that failed before: the config in force says the same as the new one,
/// and the machine does not.
fn steps_of(store: &Store, changed: &[&'static Row]) -> BTreeSet<Step> {
    let steps = changed.iter().filter_map(|row| row.taken_over.step());
    steps.chain(failed(store)).collect()
}

/// Runs the steps that a change of these settings needs, and those that failed before.
///
/// # Errors
/// All failures in one text; the rest is done.
pub(super) async fn apply_changed(
    machine: &Machine,
    changed: &[&'static Row],
) -> anyhow::Result<()> {
    carry_out(machine, steps_of(&machine.store, changed)).await
}

async fn carry_out(machine: &Machine, steps: impl IntoIterator<Item = Step>) -> anyhow::Result<()> {
    let Some(configured) = machine.config() else {
        return Ok(());
    };
    let mut failures = Vec::new();
    for step in steps {
        let name = name(step);
        match apply(step, machine, &configured.config).await {
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

/// Restores the kernel's settings from before the config, at the end of a generation, so that the next one finds them as after a boot. A
/// failure is left to the next generation, and to init.
pub(super) async fn undo(machine: &Arc<Machine>) -> anyhow::Result<()> {
    let undone = kernel::apply(machine, &KernelSpec::default()).await;
    undone.context("have the kernel as it was before the config")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::settings::SETTINGS;

    const ROWS: &[Row] = &SETTINGS;

    #[test]
    fn a_step_that_failed_is_done_again_with_the_next_change() {
        let rows = |step| {
            let of_it = move |row: &&Row| row.taken_over.step() == Some(step);
            ROWS.iter().filter(of_it).collect::<Vec<_>>()
        };
        let clock = rows(Step::Clock);
        // What failed before, and the rows that change → the steps.
        for (failed, changed, expected) in [
            (None, &clock[..0], &[][..]),
            (None, &clock, &[Step::Clock]),
            (Some(Step::Kernel), &[], &[Step::Kernel]),
            (Some(Step::EtcFiles), &clock, &[Step::EtcFiles, Step::Clock]),
            // The network goes on trying by itself.
            (Some(Step::Network), &[], &[]),
        ] {
            let store = Store::default();
            let reason = "eth1 is absent".to_owned();
            if let Some(step) = failed {
                store.put(name(step), Problem { reason });
            }
            let steps = steps_of(&store, changed);
            assert_eq!(steps, expected.iter().copied().collect(), "{failed:?}");
        }
    }
}
