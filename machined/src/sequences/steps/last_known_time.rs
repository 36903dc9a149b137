//! The earliest possible time for a machine without a hardware clock: its files on STATE were written before now, and the authorities of
//! its config were made before now.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::base::blocking_io;
use crate::intent;
use crate::machine::Machine;
use crate::state_partition::TRUST;

/// Interval between notes of the time while a time server confirms it: after a restart, a client's certificate that is younger than the
/// last note is not valid until a time server answers.
const NOTED_EVERY: Duration = Duration::from_secs(6 * 3600);

/// Sets the clock to this time, unless the machine has a better one.
pub(in crate::sequences) fn go_on_from(machine: &Machine) {
    let state = machine.disk.state().and_then(newest_file);
    let authorities = machine.config().and_then(|configured| {
        let made = intent::authorities_made(&configured.config);
        made.inspect_err(|error| tracing::warn!("when the authorities were made: {error:#}"))
            .ok()
    });
    if let Some(known) = state.max(authorities) {
        machine.clock.raise(known);
    }
}

/// Returns the time at which the newest file in the folder was written.
fn newest_file(folder: &Path) -> Option<SystemTime> {
    let entries = std::fs::read_dir(folder).ok()?.flatten();
    let written = entries.filter_map(|entry| {
        let metadata = entry.metadata().ok()?;
        metadata.is_file().then(|| metadata.modified().ok())?
    });
    written.max()
}

/// Writes a note of the time to STATE at intervals, for as long as the machine runs.
pub async fn note_time(machine: Arc<Machine>) {
    loop {
        tokio::time::sleep(NOTED_EVERY).await;
        let is_right = machine.clock.status().borrow().synced;
        let Some(state) = machine.disk.state().filter(|_| is_right) else {
            continue;
        };
        let file = state.join(TRUST.name);
        let noted = blocking_io::within(blocking_io::ANSWER, move || {
            File::options()
                .append(true)
                .open(file)?
                .set_modified(SystemTime::now())
        });
        if let Ok(Err(error)) = noted.await {
            tracing::debug!("the time is not noted on STATE: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_newest_file_counts() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(newest_file(folder.path()), None);
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        for (name, seconds) in [
            ("config.yaml", 1_800_000_000),
            ("trust.json", 1_900_000_000),
        ] {
            let file = File::create(folder.path().join(name)).unwrap();
            file.set_modified(at(seconds)).unwrap();
        }
        assert_eq!(newest_file(folder.path()), Some(at(1_900_000_000)));
        assert_eq!(newest_file(Path::new("/nonexistent")), None);
    }
}
