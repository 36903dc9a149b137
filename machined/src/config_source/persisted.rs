//! The copy of the machine config on STATE. A machine boots with it if there is no other source.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use crate::base::blocking_io::{self, NoAnswer};
use crate::base::whole_file::Replacement;
use crate::state_partition::MACHINE_CONFIG;

/// Returns the path of the config below the mount point of STATE.
pub fn path(state: &Path) -> PathBuf {
    state.join(MACHINE_CONFIG.name)
}

/// Whether a config takes the place of one that is there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// Of any: the config in force is the one of this start, or a caller has given it since.
    InPlaceOfAny,
    /// Of none: the config on STATE may be newer than the one in force, staged for the next start.
    IfThereIsNone,
}

/// The writer of the config on STATE: one write after the other, as all of them share the new file beside the old one.
#[derive(Debug, Default)]
pub struct KeptConfig {
    /// The thread that writes holds it, also after its caller has given it up.
    turn: Arc<Mutex<()>>,
}

/// A write that somebody waits for. Dropped, it may not replace the file any more: its caller has been told that the config is not kept, or
/// tells nobody that it is.
struct Wanted(Arc<AtomicBool>);

impl Wanted {
    /// The right to replace the file, for one taker.
    fn take(right: &AtomicBool) -> bool {
        right.swap(false, Ordering::SeqCst)
    }
}

impl Drop for Wanted {
    fn drop(&mut self) {
        Self::take(&self.0);
    }
}

impl KeptConfig {
    /// Writes the config within this time. A write that fails has no effect later, unless STATE has become silent in its last step.
    ///
    /// # Errors
    /// STATE cannot be written, or does not answer.
    pub async fn write(
        &self,
        state: PathBuf,
        text: String,
        keep: Keep,
        limit: Duration,
    ) -> anyhow::Result<()> {
        let begun = Instant::now();
        let turn = timeout(limit, self.turn.clone().lock_owned()).await;
        let turn = turn.map_err(|_| NoAnswer::Late(limit))?;
        let wanted = Wanted(Arc::new(AtomicBool::new(true)));
        let right = wanted.0.clone();
        let write = move || {
            let _turn = turn;
            write_if(&state, &text, keep, || Wanted::take(&right))
        };
        let left = limit.saturating_sub(begun.elapsed());
        Ok(blocking_io::within(left, write).await??)
    }
}

/// Writes the config atomically if it may replace the one that is there once it is whole. An equal config is not written again.
fn write_if(
    state: &Path,
    text: &str,
    keep: Keep,
    may_replace: impl FnOnce() -> bool,
) -> io::Result<()> {
    let path = path(state);
    if keep == Keep::IfThereIsNone && path.try_exists()? {
        return Ok(());
    }
    if std::fs::read(&path).is_ok_and(|there| there == text.as_bytes()) {
        return Ok(());
    }
    std::fs::create_dir_all(state)?;
    let mut new = Replacement::create(&path, MACHINE_CONFIG.mode)?;
    new.write_all(text.as_bytes())?;
    new.finish_if(may_replace)
}

/// Writes the config in a test that has no other writer.
#[cfg(test)]
pub fn write(state: &Path, text: &str) -> io::Result<()> {
    write_if(state, text, Keep::InPlaceOfAny, || true)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn there(state: &Path) -> Option<String> {
        std::fs::read_to_string(path(state)).ok()
    }

    #[test]
    fn a_write_that_was_given_up_leaves_the_file_as_it_is() {
        let state = tempfile::tempdir().unwrap();
        write(state.path(), "newer").unwrap();
        let wanted = Wanted(Arc::new(AtomicBool::new(true)));
        let right = wanted.0.clone();
        drop(wanted);
        let late = write_if(state.path(), "older", Keep::InPlaceOfAny, || {
            Wanted::take(&right)
        });
        assert!(late.is_err());
        assert_eq!(there(state.path()).as_deref(), Some("newer"));
        assert_eq!(std::fs::read_dir(state.path()).unwrap().count(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_config_waits_for_the_write_before_and_for_no_longer_than_its_time() {
        let (state, limit) = (tempfile::tempdir().unwrap(), Duration::from_secs(300));
        let kept = KeptConfig::default();
        let write = |text: &str| {
            let path = state.path().to_owned();
            kept.write(path, text.to_owned(), Keep::InPlaceOfAny, limit)
        };
        // A thread that STATE does not answer.
        let silent = kept.turn.clone().lock_owned().await;
        assert!(write("older").await.is_err());
        assert_eq!(there(state.path()), None);
        drop(silent);
        write("newer").await.unwrap();
        assert_eq!(there(state.path()).as_deref(), Some("newer"));
    }
}
