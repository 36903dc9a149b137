//! The files that the config brings below /etc.

use crate::config::MachineConfig;
use crate::etc_files::EtcFile;

/// In the order of the config.
pub fn etc_files(config: &MachineConfig) -> Vec<EtcFile> {
    let files = config.etc_files.iter().map(|file| EtcFile {
        name: file.name.clone(),
        mode: file.mode,
        contents: file.contents.clone(),
    });
    files.collect()
}
