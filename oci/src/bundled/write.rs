//! Writes gathered images as a bundle. Layers go from their registries straight to their place in it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::{Either, select};
use instar_base::blocking_io::{self, NoAnswer};
use instar_bundle::{
    BundledFile, ChannelFile, ChannelPart, EMPTY_CONFIG, Fault, Index, NotAnIndex, Plan, Planned,
    Summary, WriteError, Writer,
};
use instar_channel::{ChannelFiles, ChannelName};
use instar_values::{Digest, ImageReference};
use serde::Deserialize;

use super::gather::Gathered;
use crate::manifest::Layer;
use crate::pull::Progress;
use crate::registry::{Download, RegistryClient};

/// Where a bundle is written to.
pub enum Target {
    /// An empty file.
    Archive(File),
    /// A directory, which may hold other files.
    Directory(PathBuf),
}

/// A file of an extension, and where its content lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalFile {
    /// The file as the bundle names it.
    pub file: BundledFile,
    /// Its path.
    pub path: PathBuf,
}

/// Why a bundle is not made.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// The images contradict each other.
    #[error("these images make no bundle")]
    Index(#[from] Box<NotAnIndex>),
    /// Their documents contradict each other.
    #[error("these images make no bundle")]
    Plan(#[from] Box<Fault>),
    /// A file cannot be written, or a registry does not send what it has to.
    #[error("the bundle is not written")]
    Write(#[from] WriteError),
    /// The thread that writes ended without a result.
    #[error("writing was interrupted")]
    Interrupted(#[from] NoAnswer),
}

#[derive(Deserialize)]
struct Layers {
    layers: Vec<Blob>,
}

#[derive(Deserialize)]
struct Blob {
    digest: Digest,
}

/// Writes a bundle of these images, of the files of these channels and of files of extensions, and reports bytes that were written.
///
/// # Errors
/// The images contradict each other, a registry does not send a layer, a file has changed, or the bundle cannot be written.
pub async fn write(
    client: &RegistryClient,
    images: Vec<Gathered>,
    channels: &[(ChannelName, ChannelFiles)],
    files: &[LocalFile],
    target: Target,
    progress: &(dyn Fn(Progress) + Send + Sync),
) -> Result<Summary, BundleError> {
    let (mut of_images, mut indexes, mut signatures) = (Vec::new(), Vec::new(), Vec::new());
    let mut documents = BTreeMap::new();
    for gathered in images {
        of_images.push(gathered.image);
        indexes.extend(gathered.index);
        signatures.extend(gathered.signatures);
        documents.extend(gathered.documents);
    }
    let of_channels = channel_files(channels, &mut documents);
    let of_extensions = files_of_extensions(files, &mut documents);
    let index = Index::new(of_images, indexes, signatures, of_extensions).map_err(Box::new)?;
    let index = index.with_channels(of_channels).map_err(Box::new)?;
    let plan = Plan::new(&index, &documents).map_err(Box::new)?;
    let mut sources = sources(&index, &documents);
    let of_files = files.iter();
    sources.extend(of_files.map(|it| (it.file.digest(), Source::File(it.path.clone()))));
    let total = plan.summary().bytes;
    let mut writer = match target {
        Target::Archive(file) => Writer::archive(file, &index, plan)?,
        Target::Directory(directory) => Writer::directory(&directory, &index, plan)?,
    };
    let written = AtomicU64::new(0);
    let arrived = |count| {
        let bytes = written.fetch_add(count, Ordering::Relaxed) + count;
        progress(Progress { bytes, total });
    };
    while let Some(blob) = writer.next_blob() {
        match (documents.get(&blob.digest), sources.get(&blob.digest)) {
            (Some(document), _) => {
                writer.blob(&mut document.as_slice())?;
                arrived(blob.size);
            }
            (None, Some(Source::Registry(reference))) => {
                writer = download(client, reference, blob, writer, &arrived).await?;
            }
            (None, Some(Source::File(path))) => {
                writer = copy(path.clone(), blob.digest, writer).await?;
                arrived(blob.size);
            }
            (None, None) => {
                let source = io::ErrorKind::NotFound.into();
                let digest = blob.digest;
                return Err(WriteError::Source { digest, source }.into());
            }
        }
    }
    Ok(blocking_io::to_its_end(move || writer.finish()).await??)
}

/// The entries for files of channels; their contents come to the documents.
fn channel_files(
    channels: &[(ChannelName, ChannelFiles)],
    documents: &mut BTreeMap<Digest, Vec<u8>>,
) -> Vec<ChannelFile> {
    let mut entries = Vec::new();
    for (channel, files) in channels {
        let approvals = files.approvals();
        let approvals = approvals.map(|(release, bytes)| (ChannelPart::Approval(release), bytes));
        let others = [
            (ChannelPart::List, files.list()),
            (ChannelPart::Signature, files.signature()),
        ];
        for (part, bytes) in others.into_iter().chain(approvals) {
            documents.insert(Digest::of(bytes), bytes.to_vec());
            entries.push(ChannelFile::new(channel.clone(), part, bytes));
        }
    }
    entries
}

/// The entries for files of extensions; their manifests and configs come to the documents.
fn files_of_extensions(
    files: &[LocalFile],
    documents: &mut BTreeMap<Digest, Vec<u8>>,
) -> Vec<BundledFile> {
    let files: Vec<BundledFile> = files.iter().map(|local| local.file.clone()).collect();
    for file in &files {
        documents.insert(file.manifest().digest, file.manifest_bytes());
        documents.insert(Digest::of(EMPTY_CONFIG), EMPTY_CONFIG.to_vec());
    }
    files
}

/// Where a large blob comes from.
enum Source {
    /// The registry of this image.
    Registry(ImageReference),
    /// This file.
    File(PathBuf),
}

/// The source of each layer of an image.
fn sources(index: &Index, documents: &BTreeMap<Digest, Vec<u8>>) -> BTreeMap<Digest, Source> {
    let mut sources = BTreeMap::new();
    for image in index.images() {
        let manifest = documents.get(&image.manifest.digest);
        let layers: Option<Layers> = manifest.and_then(|it| serde_json::from_slice(it).ok());
        for blob in layers.into_iter().flat_map(|it| it.layers) {
            sources.insert(blob.digest, Source::Registry(image.reference.clone()));
        }
    }
    sources
}

/// Copies a file into its place in the bundle. That it is still the file whose digest was taken, the writer checks.
async fn copy(path: PathBuf, digest: Digest, mut writer: Writer) -> Result<Writer, BundleError> {
    let copying = blocking_io::to_its_end(move || {
        let opened = File::open(path);
        let mut file = opened.map_err(|source| WriteError::Source { digest, source })?;
        writer.blob(&mut file)?;
        Ok::<_, WriteError>(writer)
    });
    Ok(copying.await??)
}

async fn download(
    client: &RegistryClient,
    reference: &ImageReference,
    blob: Planned,
    mut writer: Writer,
    arrived: &(dyn Fn(u64) + Send + Sync),
) -> Result<Writer, BundleError> {
    let (upstream, mut download) = Download::channel();
    let writing = blocking_io::to_its_end(move || {
        let result = writer.blob(&mut download);
        (writer, result)
    });
    // The digest of the unpacked content does not matter here.
    let layer = Layer {
        digest: blob.digest,
        size: blob.size,
        diff_id: blob.digest,
    };
    let transfer = pin!(client.download(reference, &layer, 0, upstream, arrived));
    // If writing ends first, the rest of the transfer is not needed.
    let (writer, result) = match select(pin!(writing), transfer).await {
        Either::Left((written, _)) => written,
        Either::Right(((), writing)) => writing.await,
    }?;
    result?;
    Ok(writer)
}
