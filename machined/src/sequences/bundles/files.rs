//! Keeps the files of extensions that a bundle brings: as they are, on a disk. Without one, only a file that the config names is kept, as the
//! image that is made of it.
//!
//! Whoever fetches an extension looks for its file here before it asks a server (`sequences/extension_files.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::Context as _;
use instar_bundle::{BundledFile, Index, VerifiedBundle};

use super::judge::Judged;
use super::{BundleError, Report};
use crate::base::blocking_io;
use crate::bundles::{Event, FileFacts, FoundFile, UseOfFile};
use crate::config::{ExtensionSource, OsExtensionSource};
use crate::machine::Machine;
use crate::oci::bundled::keep_file;
use crate::oci::name_of_file;
use crate::sequences::extension_files;
use crate::sequences::signed_list::{Brought, LIST, MOST_OF_BUNDLE, SIGNATURE, newest_brought};
use crate::values::Digest;

/// The files that the index names.
pub(super) fn not_decided(index: &Index) -> Vec<FoundFile> {
    let files = index.files().iter();
    files
        .map(|file| found(file, UseOfFile::NotDecided))
        .collect()
}

/// Decides about all files of a bundle, on a thread of its own: the lists of a hostile bundle take a while.
pub(super) async fn decide(
    machine: &Arc<Machine>,
    bundle: &VerifiedBundle,
    is_approved: bool,
) -> Result<Vec<FoundFile>, BundleError> {
    let (machine, bundle) = (machine.clone(), bundle.clone());
    let deciding = blocking_io::to_its_end(move || decided(&machine, &bundle, is_approved));
    Ok(deciding.await?)
}

fn decided(machine: &Machine, bundle: &VerifiedBundle, is_approved: bool) -> Vec<FoundFile> {
    let has_disk = machine.images.blobs().is_some();
    let mut named: BTreeSet<Digest> = named(machine).into_keys().collect();
    // Without a disk no list stays that could name the file later.
    if has_disk {
        for list in believed(machine, bundle) {
            named.extend(list.documents);
            named.insert(list.offer.digest);
        }
    }
    let facts = FileFacts {
        named: &named,
        is_approved,
        has_disk,
    };
    let files = bundle.index().files().iter();
    let found = files.map(|file| found(file, facts.use_of(file.name(), file.digest())));
    let mut found: Vec<FoundFile> = found.collect();
    keep_once(&mut found);
    found
}

/// Leaves out further names of a content that is kept. A list and its signature are found by their names, so these count first.
fn keep_once(files: &mut [FoundFile]) {
    let is_found_by_name = |file: &FoundFile| [LIST, SIGNATURE].contains(&file.name.as_str());
    let mut kept = BTreeSet::new();
    for by_name in [true, false] {
        let files = files.iter_mut();
        let files = files.filter(|it| it.use_of_it == UseOfFile::Kept);
        for file in files.filter(|it| is_found_by_name(it) == by_name) {
            if !kept.insert(file.digest) {
                file.use_of_it = UseOfFile::OtherName;
            }
        }
    }
}

/// Keeps the files that are to be kept, one after the other.
pub(super) async fn keep_files(
    machine: &Machine,
    bundle: &VerifiedBundle,
    decided: &[FoundFile],
    judged: &Judged,
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
            judged.note(taken);
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

/// The files that the config names by their digests, and those that the lists of its publishers have named so far, with the names of their
/// extensions.
fn named(machine: &Machine) -> BTreeMap<Digest, String> {
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
    named
}

/// The lists in the bundle that are signed by a publisher whom the config follows.
fn believed(machine: &Machine, bundle: &VerifiedBundle) -> Vec<Brought> {
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
            newest_brought(published, bundle.index().files(), MOST_OF_BUNDLE, &read)
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
    let extension = named(machine).remove(&digest);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_content_with_several_names_is_kept_once_and_a_list_under_its_own() {
        use UseOfFile::{Kept, NotNamed, OtherName};
        let rows = [
            ("A", "list", Kept, OtherName),
            ("SHA256SUMS", "list", Kept, Kept),
            ("SHA256SUMS.sig", "signature", Kept, Kept),
            ("a.raw", "site", NotNamed, NotNamed),
            ("b.raw", "site", Kept, Kept),
            ("c.raw", "site", Kept, OtherName),
            ("d.raw", "other", Kept, Kept),
            ("z", "signature", Kept, OtherName),
        ];
        let mut files = rows.map(|(name, content, use_of_it, _)| FoundFile {
            name: name.to_owned(),
            digest: Digest::of(content.as_bytes()),
            use_of_it,
        });
        keep_once(&mut files);
        assert_eq!(files.map(|file| file.use_of_it), rows.map(|row| row.3));
    }
}
