//! Verifies a bundle: reads every byte of it once, in order, and compares each with what the bytes before it say.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};

use instar_channel::{ChannelFiles, ChannelName};
use instar_values::Digest;
use instar_values::digest::Hasher;

use crate::archive::Archive;
use crate::channel_file::ChannelPart;
use crate::directory::Directory;
use crate::document::{self, Description};
use crate::fault::{Fault, Refused};
use crate::files::Files;
use crate::index::{Image, Index};
use crate::limits::{LARGEST_DOCUMENT, LONGEST_TIME};
use crate::member::{Member, Name};
use crate::plan::{Group, Plan, Planned, Planner};
use crate::summary::Summary;

/// A bundle of which every byte was read and found good. What is read from it again is checked again: a stick may change.
#[derive(Debug, Clone)]
pub struct VerifiedBundle {
    files: Files,
    index: Index,
    plan: Plan,
    /// Where blobs begin in the archive.
    offsets: BTreeMap<Digest, u64>,
    descriptions: BTreeMap<Digest, Description>,
    /// Bytes of configs and layers, by the digest of the image's manifest.
    bytes: BTreeMap<Digest, u64>,
}

/// Verifies a bundle, and reports the number of bytes of blobs that were read so far.
///
/// # Errors
/// The first fault with its place.
pub fn verify(mut files: Files, progress: &mut dyn FnMut(u64)) -> Result<VerifiedBundle, Refused> {
    let (index, summary, place) = files.read_metadata()?;
    let mut pass = Pass {
        files,
        offsets: BTreeMap::new(),
        read: 0,
        progress,
    };
    let mut planner = Planner::new(&index).map_err(|fault| fault.at(place.clone()))?;
    let (mut configs, mut sizes) = (BTreeMap::new(), BTreeMap::new());
    for blob in planner.group(Group::Documents) {
        let place = pass.files.place(Name::Blob(blob.digest));
        let bytes = pass.document(blob)?;
        let learned = planner.learn(blob.digest, &bytes);
        learned.map_err(|fault| fault.at(place.clone()))?;
        let mut images = index.images().iter();
        if images.any(|image| image.manifest.digest == blob.digest) {
            let manifest = document::manifest(&bytes).map_err(|fault| fault.at(place))?;
            configs.insert(blob.digest, manifest.config.digest);
            // At most 256 layers of 8 GiB: no overflow.
            let layers: u64 = manifest.layers.iter().map(|layer| layer.size).sum();
            sizes.insert(blob.digest, manifest.config.size + layers);
        }
    }
    let plan = planner.finish();
    if plan.summary != summary {
        return Err(Fault::Content.at(place));
    }
    let mut descriptions = BTreeMap::new();
    let rest = plan
        .blobs
        .iter()
        .filter(|blob| blob.group != Group::Documents);
    for &blob in rest {
        if blob.group == Group::Layers {
            pass.blob(blob, &mut |_| {})?;
            continue;
        }
        let place = pass.files.place(Name::Blob(blob.digest));
        let bytes = pass.document(blob)?;
        for image in index.images() {
            if configs.get(&image.manifest.digest) == Some(&blob.digest) {
                let described = describe(image, &bytes).map_err(|fault| fault.at(place.clone()))?;
                descriptions.insert(image.manifest.digest, described);
            }
        }
    }
    pass.files.finish(&plan.blobs)?;
    Ok(VerifiedBundle {
        files: pass.files,
        offsets: pass.offsets,
        index,
        plan,
        descriptions,
        bytes: sizes,
    })
}

/// Reads the config of an image, whose platform has to be the one of index.json.
fn describe(image: &Image, config: &[u8]) -> Result<Description, Fault> {
    let mut described = document::description(config)?;
    let expected = &image.platform;
    if (&described.os, &described.architecture) != (&expected.os, &expected.architecture) {
        let found = format!("{}/{}", described.os, described.architecture);
        return Err(Fault::Platform {
            expected: expected.clone(),
            found: crate::limits::quote(found.as_bytes()),
        });
    }
    // It stays in memory, and a hostile one has a MiB.
    described.created = described.created.filter(|time| time.len() <= LONGEST_TIME);
    Ok(described)
}

/// One pass over all files.
struct Pass<'a> {
    files: Files,
    offsets: BTreeMap<Digest, u64>,
    read: u64,
    progress: &'a mut dyn FnMut(u64),
}

impl Pass<'_> {
    fn blob(&mut self, blob: Planned, sink: &mut dyn FnMut(&[u8])) -> Result<(), Refused> {
        let Planned { digest, size, .. } = blob;
        let name = Name::Blob(digest);
        let place = self.files.place(name);
        let mut hasher = Hasher::default();
        self.files.read(Member { name, size }, &mut |piece| {
            hasher.update(piece);
            sink(piece);
            self.read += piece.len() as u64;
            (self.progress)(self.read);
        })?;
        let found = hasher.finish();
        if found != digest {
            return Err(Fault::Digest(found).at(place));
        }
        if let Files::Archive(archive) = &self.files {
            self.offsets.insert(digest, archive.content_of_last(size));
        }
        Ok(())
    }

    fn document(&mut self, blob: Planned) -> Result<Vec<u8>, Refused> {
        let mut bytes = Vec::new();
        self.blob(blob, &mut |piece| bytes.extend_from_slice(piece))?;
        Ok(bytes)
    }
}

impl VerifiedBundle {
    /// The digest that names the bundle: that of index.json.
    pub fn digest(&self) -> Digest {
        self.plan.summary.digest
    }

    /// The index of its contents.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// The blobs in their order.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Its summary.
    pub fn summary(&self) -> &Summary {
        &self.plan.summary
    }

    /// The description of an image in its config.
    pub fn description(&self, image: &Image) -> Option<&Description> {
        self.descriptions.get(&image.manifest.digest)
    }

    /// Bytes of an image's config and layers.
    pub fn bytes_of(&self, image: &Image) -> u64 {
        self.bytes.get(&image.manifest.digest).copied().unwrap_or(0)
    }

    /// Reads a document again.
    ///
    /// # Errors
    /// The bundle does not hold it, or cannot be read, or has changed.
    pub fn document(&self, digest: Digest) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let reader = self.blob(digest)?;
        reader.take(LARGEST_DOCUMENT + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// The channels whose files are in it.
    pub fn channels(&self) -> BTreeSet<&ChannelName> {
        let files = self.index.channel_files().iter();
        files.map(|file| &file.channel).collect()
    }

    /// Reads the files of a channel again.
    ///
    /// # Errors
    /// The bundle does not hold them, or cannot be read, or has changed; or they are too large.
    pub fn channel(&self, channel: &ChannelName) -> io::Result<ChannelFiles> {
        let (mut list, mut signature, mut approvals) = (Vec::new(), Vec::new(), Vec::new());
        let files = self.index.channel_files().iter();
        for file in files.filter(|file| file.channel == *channel) {
            let bytes = self.document(file.document.digest)?;
            match file.part {
                ChannelPart::List => list = bytes,
                ChannelPart::Signature => signature = bytes,
                ChannelPart::Approval(release) => approvals.push((release, bytes)),
            }
        }
        let files = ChannelFiles::new(list, &signature, approvals);
        files.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    /// Opens a blob. Its reader fails at the end if the content is not what it was.
    ///
    /// # Errors
    /// The bundle does not hold it, or cannot be read.
    pub fn blob(&self, digest: Digest) -> io::Result<BlobReader> {
        let mut blobs = self.plan.blobs.iter();
        let missing = || {
            let what = format!("the bundle does not hold {digest}");
            io::Error::new(io::ErrorKind::NotFound, what)
        };
        let blob = blobs.find(|it| it.digest == digest).ok_or_else(missing)?;
        let content = match &self.files {
            Files::Archive(archive) => {
                let at = self.offsets.get(&digest).copied().ok_or_else(missing)?;
                Content::Archive(archive.clone(), at)
            }
            Files::Directory(directory) => {
                let opened = directory.open(Name::Blob(digest));
                Content::File(directory.clone(), opened.map_err(io::Error::other)?.0)
            }
        };
        Ok(BlobReader {
            content,
            digest,
            left: blob.size,
            hasher: Some(Hasher::default()),
        })
    }
}

/// A blob that is read from a verified bundle.
pub struct BlobReader {
    content: Content,
    digest: Digest,
    left: u64,
    /// Taken once the end was judged.
    hasher: Option<Hasher>,
}

enum Content {
    Archive(Archive, u64),
    File(Directory, File),
}

impl Read for BlobReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = usize::try_from(self.left).unwrap_or(usize::MAX);
        let length = length.min(buffer.len());
        let buffer = &mut buffer[..length];
        let count = match &mut self.content {
            Content::Archive(archive, at) => {
                let count = archive.read_at(buffer, *at)?;
                *at += count as u64;
                count
            }
            Content::File(directory, file) => directory.read_on(file, buffer)?,
        };
        if count == 0 && self.left > 0 && length > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= count as u64;
        if let Some(hasher) = &mut self.hasher {
            hasher.update(&buffer[..count]);
        }
        if self.left == 0
            && let Some(hasher) = self.hasher.take()
            && hasher.finish() != self.digest
        {
            let what = format!("{} has changed since the bundle was verified", self.digest);
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        Ok(count)
    }
}
