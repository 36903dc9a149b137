//! Keeps the files of extensions that a bundle brings: as they are, on a disk. Without one, only a file that the config names is kept, as the
//! image that is made of it.
//!
//! Whoever fetches an extension looks for its file here before it asks a server (`sequences/extension_files.rs`).

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context as _;
use instar_bundle::{BundledFile, Index, VerifiedBundle};

use super::{BundleError, Report};
use crate::base::blocking_io;
use crate::bundles::{Event, FileFacts, FoundFile, UseOfFile};
use crate::config::{ExtensionSource, OsExtensionSource};
use crate::machine::Machine;
use crate::oci::bundled::keep_file;
use crate::oci::name_of_file;
use crate::sequences::extension_files;
use crate::sequences::signed_list::{Brought, newest_brought};
use crate::values::Digest;

/// The files that the index names.
pub(super) fn not_decided(index: &Index) -> Vec<FoundFile> {
    let files = index.files().iter();
    files
        .map(|file| found(file, UseOfFile::NotDecided))
        .collect()
}

/// Decides about all files of a bundle.
pub(super) fn decide(
    machine: &Machine,
    bundle: &VerifiedBundle,
    is_approved: bool,
) -> Vec<FoundFile> {
    let has_disk = machine.images.blobs().is_some();
    let mut named: BTreeSet<Digest> = named(machine, bundle).into_keys().collect();
    if has_disk {
        let lists = believed(machine, bundle).into_iter();
        named.extend(lists.flat_map(|(_, list)| list.documents));
    }
    let facts = FileFacts {
        named: &named,
        is_approved,
        has_disk,
    };
    let files = bundle.index().files().iter();
    files
        .map(|file| found(file, facts.use_of(file.name(), file.digest())))
        .collect()
}

/// Keeps the files that are to be kept, one after the other.
pub(super) async fn keep_files(
    machine: &Machine,
    bundle: &VerifiedBundle,
    decided: &[FoundFile],
    report: &Report,
) -> Result<(), BundleError> {
    let files = bundle.index().files().iter().zip(decided);
    let kept = files.filter(|(_, found)| found.use_of_it == UseOfFile::Kept);
    let kept: Vec<&BundledFile> = kept.map(|(file, _)| file).collect();
    for (number, file) in kept.iter().enumerate() {
        let name = file.name().to_owned();
        report.tell(Event::File(name.clone(), number + 1, kept.len()));
        let image = keep(machine, bundle, file).await;
        let image = image.map_err(|source| BundleError::File { name, source })?;
        // Each file by itself: a power cut leaves those that are whole.
        let remember = machine.bundles.kept.change(bundle.digest(), |taken| {
            taken.files.insert(image);
        });
        remember.map_err(BundleError::Machine)?;
    }
    Ok(())
}

fn found(file: &BundledFile, use_of_it: UseOfFile) -> FoundFile {
    FoundFile {
        name: file.name().to_owned(),
        digest: file.digest(),
        use_of_it,
    }
}

/// The files that the config names by their digests, and those that a publisher's list names, with the names of their extensions.
fn named(machine: &Machine, bundle: &VerifiedBundle) -> BTreeMap<Digest, String> {
    let mut named = BTreeMap::new();
    if let Some(configured) = machine.config() {
        for extension in &configured.config.os_extensions {
            if let OsExtensionSource::File(file) = &extension.source {
                named.insert(file.sha256, extension.name.clone());
            }
        }
        let of_kubernetes = configured.config.kubernetes.iter();
        for extension in of_kubernetes.flat_map(|it| &it.extensions) {
            if let ExtensionSource::File(file) = &extension.source {
                named.insert(file.sha256, extension.name.clone());
            }
        }
    }
    for (name, followed) in machine.node_record.get().followed {
        let offers = [Some(followed.in_force), followed.next];
        let digests = offers.into_iter().flatten().map(|offer| offer.digest);
        named.extend(digests.map(|digest| (digest, name.clone())));
    }
    let lists = believed(machine, bundle).into_iter();
    named.extend(lists.map(|(name, list)| (list.offer.digest, name)));
    named
}

/// The lists in the bundle that are signed by a publisher whom the config follows, with the names of the extensions.
fn believed(machine: &Machine, bundle: &VerifiedBundle) -> Vec<(String, Brought)> {
    let configured = machine.config();
    let kubernetes = configured
        .iter()
        .filter_map(|it| it.config.kubernetes.as_ref());
    let read = |file: &BundledFile| bundle.document(file.digest()).ok();
    let believed = kubernetes
        .flat_map(|it| &it.extensions)
        .filter_map(|extension| {
            let ExtensionSource::Published(published) = &extension.source else {
                return None;
            };
            let brought = newest_brought(published, bundle.index().files(), &read)?;
            Some((extension.name.clone(), brought))
        });
    believed.collect()
}

/// Keeps a file; returns the digest of the image that is there for it.
async fn keep(
    machine: &Machine,
    bundle: &VerifiedBundle,
    file: &BundledFile,
) -> anyhow::Result<Digest> {
    if let Some(image) = keep_file(bundle, file, &machine.images).await? {
        return Ok(image);
    }
    let digest = file.digest();
    let extension = named(machine, bundle).remove(&digest);
    let extension = extension.context("no extension of the config names it any more")?;
    let name = name_of_file(&extension, digest)?;
    let (bundle, file, store) = (bundle.clone(), file.clone(), machine.images.clone());
    let taking = blocking_io::to_its_end(move || {
        let mut content = bundle.blob(digest).context("read the bundle")?;
        extension_files::take(&store, &name, &file, &mut content)
    });
    taking.await??;
    Ok(digest)
}
