//! The next root filesystem, as an installer has delivered it: nothing is checked yet but its labels.

use std::os::fd::OwnedFd;

/// The next root filesystem.
#[derive(Debug)]
pub struct InstallerOutput {
    /// The root filesystem, sealed; init checks the seals and the digest.
    pub memfd: OwnedFd,
    /// The digest as the installer reports it.
    pub blake3: blake3::Hash,
    /// The order of the boot entry that the installer wrote.
    pub boot_entry: Option<u32>,
    /// Whether its machined takes the listening sockets that this one leaves.
    pub takes_sockets: bool,
    /// The signature of the root filesystem, as the image's label has it.
    pub signature: Option<String>,
}
