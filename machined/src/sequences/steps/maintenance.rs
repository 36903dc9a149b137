//! Maintenance mode, for a machine that has no config or cannot read it: a blank machine takes a config from any caller, one that holds
//! data only from callers whom its last config trusted.
//!
//! ```text
//! instar.maintenance=open on the kernel's command line        ─► from any caller
//! trust.json on STATE, or else on EPHEMERAL: authorities      ─► from their administrators
//!                                            reset            ─► from any caller
//! neither, and STATE or EPHEMERAL hold data or cannot be read ─► from no caller
//! nothing there, and instar.maintenance=closed                ─► from no caller
//! nothing there                                               ─► from any caller
//! ```

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;

use super::disk;
use crate::command_line;
use crate::config_source::persisted;
use crate::config_source::source::{self, MaintenanceArgument};
use crate::machine::Machine;
use crate::trust::{Maintenance, Remembered};

/// Examines the machine's data, decides who may give the machine a config, and logs that.
pub(in crate::sequences) async fn begin(machine: &Machine) {
    let maintenance = decide(argument(), found(machine).await);
    tracing::warn!("maintenance mode: {}", maintenance.advice());
    machine.set_maintenance(maintenance);
}

fn argument() -> Option<MaintenanceArgument> {
    let arguments = command_line::read().ok()?;
    source::maintenance(&arguments)
}

/// The data on the machine's disk.
#[derive(Debug)]
enum Found {
    /// Nothing worth protecting: no disk of Instar's, or one that no config was ever given.
    Nothing,
    Remembered(Remembered),
    /// Data, without a record of the trusted authorities.
    Data,
}

fn decide(argument: Option<MaintenanceArgument>, found: anyhow::Result<Found>) -> Maintenance {
    let closed = |why: &str| Maintenance::Closed(why.to_owned());
    match (argument, found) {
        (Some(MaintenanceArgument::Open), _) => Maintenance::Open,
        (_, Ok(Found::Remembered(Remembered::Authorities(authorities)))) => {
            Maintenance::Authorities(Arc::new(authorities))
        }
        (_, Ok(Found::Data)) => closed("its disk holds data, and does not say whom it belongs to"),
        (_, Err(error)) => closed(&format!("its disk cannot be read: {error:#}")),
        (Some(MaintenanceArgument::Closed), Ok(_)) => {
            closed("the kernel's command line says instar.maintenance=closed")
        }
        (None, Ok(Found::Nothing | Found::Remembered(Remembered::Reset))) => Maintenance::Open,
    }
}

async fn found(machine: &Machine) -> anyhow::Result<Found> {
    let looked_for = disk::find_state(machine).await;
    let mut has_data = false;
    if let Some(state) = machine.disk.state() {
        match Remembered::read(state) {
            Ok(Some(remembered)) => return Ok(Found::Remembered(remembered)),
            Ok(None) => has_data = persisted::path(state).exists(),
            Err(error) => {
                tracing::error!("{error:#}");
                has_data = true;
            }
        }
    }
    // A problem with STATE must not hide the record on EPHEMERAL.
    match machine.disk.look_at_ephemeral(look).await {
        Ok(Some((Ok(Some(remembered)), _))) => return Ok(Found::Remembered(remembered)),
        Ok(Some((Ok(None), holds_data))) => has_data |= holds_data,
        Ok(Some((Err(error), _))) => {
            tracing::error!("{error:#}");
            has_data = true;
        }
        Ok(None) => {}
        Err(error) => return Err(error).context("look at EPHEMERAL"),
    }
    looked_for?;
    Ok(match has_data {
        true => Found::Data,
        false => Found::Nothing,
    })
}

/// Returns the record on EPHEMERAL, and whether data of a config is there: logs at least, and the data of containers.
fn look(records: &Path, root: &Path) -> (anyhow::Result<Option<Remembered>>, bool) {
    let has_other_than = |folder: &Path, ours: &[&str]| {
        let mut entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.any(|entry| !ours.iter().any(|name| entry.file_name() == *name))
    };
    let holds_data = has_other_than(root, &["lost+found", "lib"])
        || has_other_than(&root.join("lib"), &["instar"]);
    (Remembered::read(records), holds_data)
}

/// Notes on EPHEMERAL that any caller may give the machine a config from now on: an administrator is about to erase the one on STATE.
pub(in crate::sequences) async fn open_after_reset(machine: &Machine) -> anyhow::Result<()> {
    let written = machine
        .disk
        .write_to_ephemeral(|records| Remembered::Reset.write(records))
        .await
        .context("mount EPHEMERAL")?;
    match written {
        Some(written) => written.context("note on EPHEMERAL that the machine is reset"),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trust::Authorities;

    #[test]
    fn only_a_machine_without_data_listens_to_anybody() {
        use MaintenanceArgument::{Closed, Open};
        let believed = || Found::Remembered(Remembered::Authorities(Authorities::default()));
        let reset = || Found::Remembered(Remembered::Reset);
        let broken = || Err(anyhow::anyhow!("two disks"));
        let rows = [
            (None, Ok(Found::Nothing), "open"),
            (None, Ok(reset()), "open"),
            (None, Ok(Found::Data), "closed"),
            (None, broken(), "closed"),
            (None, Ok(believed()), "authorities"),
            (Some(Closed), Ok(Found::Nothing), "closed"),
            (Some(Closed), Ok(reset()), "closed"),
            (Some(Closed), Ok(believed()), "authorities"),
            (Some(Open), Ok(Found::Nothing), "open"),
            (Some(Open), Ok(Found::Data), "open"),
            (Some(Open), broken(), "open"),
            (Some(Open), Ok(believed()), "open"),
        ];
        for (argument, found, expected) in rows {
            let said = format!("{argument:?} {found:?}");
            let decided = match decide(argument, found) {
                Maintenance::Open => "open",
                Maintenance::Authorities(_) => "authorities",
                Maintenance::Closed(_) => "closed",
            };
            assert_eq!(decided, expected, "{said}");
        }
    }
}
