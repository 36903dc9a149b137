//! Why /etc does not have its files.

use std::io;
use std::path::PathBuf;

/// Why /etc does not match the config and the extensions. It is as it was before.
#[derive(Debug, thiserror::Error)]
pub enum EtcFilesError {
    /// A file cannot be written or removed.
    #[error("cannot write /etc/{name}")]
    File {
        /// The file, below /etc.
        name: String,
        /// Why.
        source: io::Error,
    },
    /// The image or another extension has a directory where the file would be, or a file where the directory would be.
    #[error(
        "/etc/{0} cannot be a file: the system or another extension has something else at this path, or a file above it"
    )]
    InTheWay(String),
    /// The copy of the image's /etc cannot be mounted.
    #[error("cannot {step} at {path}")]
    Mount {
        /// The step that failed.
        step: &'static str,
        /// The path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The record of the extensions' files cannot be written.
    #[error("cannot note the files of extensions")]
    Record {
        /// Why.
        source: anyhow::Error,
    },
}
