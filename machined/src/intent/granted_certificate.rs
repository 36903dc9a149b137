//! Keeps the certificate that a control plane or a person has signed on STATE: after a reboot the node's clients can verify it even if no
//! control plane lives.

use std::path::Path;
use std::sync::Arc;

use crate::base::blocking_io;
use crate::machine::Machine;
use crate::trust::Granted;

/// Reads the previous certificate once the disk is there, and writes every new one, for as long as the machine runs.
pub(super) async fn keep_granted(machine: Arc<Machine>) {
    let (mut granted, mut disk) = (
        machine.granted_certificate.subscribe(),
        machine.disk.status(),
    );
    let mut written = None;
    loop {
        let newest = granted.borrow_and_update().clone();
        // /var is unmounted before STATE: from then on nothing is written here that could keep STATE busy.
        let is_mounted = disk.borrow_and_update().var_mounted;
        let state = machine.disk.state().map(Path::to_owned);
        match (newest, state) {
            (None, Some(state)) => {
                let reading =
                    blocking_io::within(blocking_io::ANSWER, move || Granted::read(&state));
                let read = reading.await.map_err(anyhow::Error::from).flatten();
                match read {
                    Ok(Some(read)) if machine.granted_certificate.borrow().is_none() => {
                        machine.granted_certificate.send_replace(Some(read));
                        continue;
                    }
                    Ok(_) => {}
                    Err(error) => tracing::warn!(
                        "the certificate from the control plane or a person that was kept is lost: {error:#}"
                    ),
                }
            }
            (Some(newest), Some(state)) if is_mounted && written.as_ref() != Some(&newest) => {
                written = Some(newest.clone());
                let writing =
                    blocking_io::within(blocking_io::ANSWER, move || newest.write(&state));
                if let Err(error) = writing.await.map_err(anyhow::Error::from).flatten() {
                    tracing::warn!(
                        "the certificate from the control plane or a person is not kept over a reboot: {error:#}"
                    );
                }
            }
            _ => {}
        }
        let changed = tokio::select! {
            changed = granted.changed() => changed,
            changed = disk.changed() => changed,
        };
        if changed.is_err() {
            return;
        }
    }
}
