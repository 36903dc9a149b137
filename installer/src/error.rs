//! The errors, and the exit codes by which machined distinguishes them.

use std::{error::Error as StdError, io, path::PathBuf};

use thiserror::Error;

/// A failed installation. `Display` shows only the failed step; the cause is the source.
#[derive(Debug, Error)]
pub(crate) enum Error {
    /// The command line is not valid.
    #[error(
        "usage: installer install [--upgrade] [--esp FOLDER [--running ORDER]] [--assets FOLDER]: {0}"
    )]
    Usage(String),
    /// The image has other content than it should.
    #[error("the installer image is damaged: {0}")]
    BadImage(String),
    /// The caller did not pass a socket as agreed.
    #[error("descriptor 3 is not a SEQPACKET socket: the installer must be run by machined")]
    NoSocket(#[source] Option<io::Error>),
    /// The kernel provides no memory that can be sealed.
    #[error("cannot {step} sealed memory for {bytes} bytes of root filesystem")]
    Memory {
        /// The step that failed.
        step: &'static str,
        /// The size of the memory, in bytes.
        bytes: u64,
        /// The kernel's error.
        source: io::Error,
    },
    /// A file of the image cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The path.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The sealed memory does not hold the written data.
    #[error(
        "the root filesystem changed on its way into memory: digest {found}, expected {expected}"
    )]
    Changed {
        /// The digest found.
        found: String,
        /// The expected digest.
        expected: String,
    },
    /// The EFI system partition cannot be read.
    #[error("cannot read the EFI system partition at {}", path.display())]
    ReadEsp {
        /// The mount point.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The version cannot be added to the EFI system partition.
    #[error(transparent)]
    Refused(#[from] instar_esp::Refused),
    /// Writing to the EFI system partition failed.
    #[error(transparent)]
    WriteEsp(#[from] instar_esp::Failed),
    /// machined did not take the root filesystem.
    #[error("cannot hand the root filesystem to machined")]
    Send(#[source] io::Error),
}

impl Error {
    /// The exit code: 2 bad input, 3 unsupported, 4 environment, 6 input and output, 7 the installation failed (docs/contracts.md).
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) | Self::BadImage(_) => 2,
            Self::NoSocket(_) | Self::Memory { .. } => 4,
            Self::Refused(_) => 3,
            Self::Read { .. } | Self::ReadEsp { .. } | Self::WriteEsp(_) => 6,
            Self::Changed { .. } | Self::Send(_) => 7,
        }
    }
}

/// An error and its causes in one line.
///
/// `instar_base::error_chain` does the same. The installer does without that crate, because every installer image would carry what it
/// depends on, tokio and ring among it.
pub(crate) fn chain(error: &dyn StdError) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        line += &format!(": {error}");
        cause = error.source();
    }
    line
}
