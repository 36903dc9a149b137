//! The file of a record that lives in memory and is written after each change.

use std::path::PathBuf;

use serde::Serialize;

use crate::base::{blocking_io, whole_file};
use crate::state_partition::StateFile;

/// The right to write the file. It is held while the file is written, so that the newest record is the one on disk.
#[derive(Debug, Default)]
pub struct RecordFile {
    writing: tokio::sync::Mutex<()>,
}

impl RecordFile {
    /// Writes what `newest` returns once it is this writer's turn: the file, if there is one yet, and the record. If that fails, the record
    /// holds until machined ends, and the log has `loss`.
    pub async fn write<T: Serialize + Send + 'static>(
        &self,
        kind: StateFile,
        loss: &str,
        newest: impl FnOnce() -> (Option<PathBuf>, T),
    ) {
        let _order = self.writing.lock().await;
        let (Some(file), record) = newest() else {
            return;
        };
        let write = move || whole_file::replace_json(&file, kind.mode, &record);
        let written = blocking_io::within(blocking_io::ANSWER, write).await;
        let written = written.map_err(anyhow::Error::from).flatten();
        kind.note_written(&written);
        if let Err(error) = written {
            tracing::warn!("{loss}: {error:#}");
        }
    }
}
