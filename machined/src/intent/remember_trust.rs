//! Keeps the trusted authorities in two further places, in case the config cannot be read one day.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::base::blocking_io;
use crate::config::MachineConfig;
use crate::disk::EPHEMERAL_RECORDS;
use crate::machine::Machine;
use crate::trust::{Authorities, Remembered};

/// Returns the authorities of a config.
pub(super) fn authorities(config: &MachineConfig) -> Authorities {
    let trust = &config.trust;
    Authorities {
        ca: trust.ca.clone(),
        key: trust.ca_key.as_ref().map(|key| key.expose().to_owned()),
        accepted: trust.accepted_cas.clone(),
        names: trust.cert_sans.clone(),
    }
}

/// Writes the authorities to the machine's disk whenever the config or the disk changes, for as long as the machine runs.
pub async fn remember_trust(machine: Arc<Machine>) {
    let (mut config, mut disk) = (machine.watch_config(), machine.disk.status());
    loop {
        let known = config.borrow_and_update().clone();
        // /var is unmounted before STATE: from then on nothing is written here that could keep STATE busy.
        let (is_mounted, var_on_disk) = {
            let status = disk.borrow_and_update();
            (status.var_mounted, status.var.is_some())
        };
        let state = machine.disk.state().map(Path::to_owned);
        if let Some(configured) = known.filter(|_| is_mounted) {
            let authorities = authorities(&configured.config);
            let var = var_on_disk.then(|| PathBuf::from(EPHEMERAL_RECORDS));
            let write = move || write(authorities, state, var);
            let written = blocking_io::within(blocking_io::ANSWER, write).await;
            if let Ok(Err(error)) | Err(error) = written.map_err(std::io::Error::other) {
                tracing::warn!(
                    "whom the API believes is not kept on the disk beside the config: {error}"
                );
            }
        }
        let changed = tokio::select! {
            changed = config.changed() => changed,
            changed = disk.changed() => changed,
        };
        if changed.is_err() {
            return;
        }
    }
}

fn write(
    authorities: Authorities,
    state: Option<PathBuf>,
    var: Option<PathBuf>,
) -> std::io::Result<()> {
    if let Some(var) = var {
        // Without the key: containers may have access to folders of EPHEMERAL.
        Remembered::Authorities(authorities.without_key()).write(&var)?;
    }
    match state {
        Some(state) => Remembered::Authorities(authorities).write(&state),
        None => Ok(()),
    }
}
