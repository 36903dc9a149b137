//! Images of extensions that may be used, checked.

use std::path::PathBuf;

use instar_extension::OsExtension as Files;

use crate::base::blocking_io::{self, ANSWER};
use crate::kubernetes::trial::Chosen;
use crate::machine::{Configured, Machine};
use crate::oci::verification::VerificationError;
use crate::oci::{PullError, VerifiedImage};
use crate::os_extensions::{CheckedTree, checked};
use crate::sequences::extension_image::admitted;
use crate::values::Digest;

/// An image that may be used.
pub(super) struct Usable {
    pub(super) chosen: Chosen,
    /// The root of its files.
    pub(super) tree: PathBuf,
    /// The directories that they are for.
    pub(super) files: Files,
    /// While it is here, the store keeps the image. None if it could not be asked for: then the record keeps it.
    _image: Option<VerifiedImage>,
}

/// Checks an image; `None` if it is not here. What has been checked in this generation stays usable until the rules refuse it: a registry
/// that is silent takes no files away.
///
/// # Errors
/// It may not be used, or cannot be read.
pub(super) async fn usable(
    machine: &Machine,
    configured: &Configured,
    name: &str,
    chosen: &Chosen,
) -> anyhow::Result<Option<Usable>> {
    let key = (name.to_owned(), chosen.digest);
    let known = match machine.os_extensions.checked.get(&key) {
        Some(known) => Some(known),
        None => read_again(machine, &key).await,
    };
    let image = match (admitted(machine, configured, chosen).await, &known) {
        (Ok(Some(image)), _) => Some(image),
        (Ok(None), _) => return Ok(None),
        (Err(error), Some(_)) if !is_refusal(&error) => {
            tracing::warn!(
                "extension {name}: it stays as it is, nobody can say whether it may: {error:#}"
            );
            None
        }
        (Err(error), _) => return Err(error),
    };
    let (tree, files) = match (known, &image) {
        (Some(known), _) => known,
        (None, Some(image)) => {
            let tree = image.rootfs();
            let files = check(machine, name, tree.clone()).await?;
            let known = (tree, files);
            machine.os_extensions.checked.insert(key, known.clone());
            known
        }
        (None, None) => return Ok(None),
    };
    Ok(Some(Usable {
        chosen: chosen.clone(),
        tree,
        files,
        _image: image,
    }))
}

/// Reads the files of a tree that an earlier machined of this generation has checked.
async fn read_again(machine: &Machine, key: &(String, Digest)) -> Option<CheckedTree> {
    let tree = machine.os_extensions.checked.of_before(key)?;
    match check(machine, &key.0, tree.clone()).await {
        Ok(files) => {
            let known = (tree, files);
            let checked = &machine.os_extensions.checked;
            checked.insert(key.clone(), known.clone());
            Some(known)
        }
        Err(error) => {
            tracing::warn!(
                "extension {}: what was checked is not there: {error:#}",
                key.0
            );
            None
        }
    }
}

async fn check(machine: &Machine, name: &str, tree: PathBuf) -> anyhow::Result<Files> {
    let (name, version) = (name.to_owned(), machine.running.version.clone());
    let layers = machine.os_extensions.layers.clone();
    let check = move || checked(&name, &tree, &version, &layers.own_usr());
    blocking_io::within(ANSWER, check).await?
}

/// Whether the rules say that an image may not be used, and not just that nobody can tell.
fn is_refusal(error: &anyhow::Error) -> bool {
    let refused = error.downcast_ref::<PullError>();
    refused.is_some_and(|error| {
        matches!(error, PullError::NotVerified(why) if matches!(**why, VerificationError::Refused(_)))
    })
}
