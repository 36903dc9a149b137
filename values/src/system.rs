//! Parts of the system that the config changes.

use serde::{Deserialize, Serialize};

/// A kernel module to load.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelModule {
    /// Its name, or one of its aliases, as `modprobe` takes both.
    pub name: String,
    /// `parameter=value`, each once.
    pub parameters: Vec<String>,
}

/// A file below /etc.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EtcFile {
    /// Its path below /etc, without `..`.
    pub name: String,
    /// Its permission bits.
    pub mode: u32,
    /// Its content.
    pub contents: String,
}
