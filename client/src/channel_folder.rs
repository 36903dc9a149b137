//! Reads the folder of a channel, as `instar-channel` writes it.

use std::fs;
use std::path::Path;

use instar_channel::{ChannelFiles, LIST, List, MOST_RELEASES, NotChannelFiles, SIGNATURE};
use instar_client::{Failure, FailureKind};
use instar_values::Digest;

/// The folder of a channel with its list.
pub(crate) struct ChannelFolder {
    /// The list. Its signature is not checked: the public key is with the nodes.
    pub(crate) list: List,
    /// The files, byte by byte.
    pub(crate) files: ChannelFiles,
}

/// Reads the list, its signature, and the approvals of its releases.
pub(crate) fn read(folder: &Path) -> Result<ChannelFolder, Failure> {
    let bytes = file(&folder.join(LIST))?;
    let list = List::parse(&bytes).map_err(|error| no_channel(folder).because(error))?;
    let signature = file(&folder.join(SIGNATURE))?;
    let approvals = approvals(folder, &list)?;
    let files = ChannelFiles::new(bytes, &signature, approvals);
    let files = files.map_err(|error: NotChannelFiles| no_channel(folder).because(error))?;
    Ok(ChannelFolder { list, files })
}

fn no_channel(folder: &Path) -> Failure {
    let message = format!("{} is no folder of a channel", folder.display());
    Failure::new(FailureKind::Failed, message)
}

fn file(path: &Path) -> Result<Vec<u8>, Failure> {
    let doing = format!("cannot read {}", path.display());
    fs::read(path).map_err(|error| Failure::io(doing, error))
}

/// The approvals that are there, of at most [`MOST_RELEASES`] releases.
fn approvals(folder: &Path, list: &List) -> Result<Vec<(Digest, Vec<u8>)>, Failure> {
    let mut approvals = Vec::new();
    for release in list.releases.iter().take(MOST_RELEASES) {
        let name = format!("approvals/{}.sig", release.digest.hex());
        let path = folder.join(name);
        if path.exists() {
            approvals.push((release.digest, file(&path)?));
        }
    }
    Ok(approvals)
}
