//! The file `index.json`: the documents at the roots of a bundle.
//!
//! Typed values are read from it and written to it; other bytes than those that would be written are refused, so that a bundle has one
//! form.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use instar_channel::ChannelName;
use instar_values::{Digest, ImageReference};
use serde::{Deserialize, Serialize};

use crate::bundled_file::{BundledFile, NotAFile};
use crate::channel_file::{ChannelFile, ChannelPart};
use crate::limits::{LARGEST_DOCUMENT, MOST_DOCUMENTS, MOST_FILES, quote};
use crate::root::Document;

/// The annotation with a reference in full, by which other tools select an image.
const REFERENCE: &str = "org.opencontainers.image.ref.name";
/// The annotation of an image: the digest of the index that its reference names.
const INDEX: &str = "dev.instar.bundle.index";
/// The annotation of a manifest of signatures: the digest of the image or index that they are for.
const SIGNS: &str = "dev.instar.bundle.signs";

/// The annotation of a file of a channel: the channel's name.
const CHANNEL: &str = "dev.instar.bundle.channel";
/// The annotation of a signature that approves a release of a channel: the digest of the release's image.
const APPROVES: &str = "dev.instar.bundle.approves";

/// The annotations of a file of an extension: the digest and the size of its content. Its reference is the file's name.
const FILE: &str = "dev.instar.bundle.file";
const FILE_SIZE: &str = "dev.instar.bundle.file.size";

const MEDIA_TYPE: &str = "application/vnd.oci.image.index.v1+json";

/// Operating system and processor of an image.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Platform {
    /// The processor, for example `amd64`.
    pub architecture: String,
    /// The operating system, for example `linux`.
    pub os: String,
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)
    }
}

/// An image under a reference.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Image {
    /// The reference.
    pub reference: ImageReference,
    /// The platform.
    pub platform: Platform,
    /// The image's manifest.
    pub manifest: Document,
    /// The digest of the index that the reference names, if it names an index.
    pub index: Option<Digest>,
}

impl Image {
    /// The digest of the document that the reference names: the index, or the manifest.
    pub fn named_digest(&self) -> Digest {
        self.index.unwrap_or(self.manifest.digest)
    }
}

/// A manifest of signatures.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Signature {
    /// The digest of the image or index that they are for.
    pub subject: Digest,
    /// The place at a registry where they were found: a tag `sha256-X.sig`, or the digest of the manifest.
    pub found_at: ImageReference,
    /// The manifest.
    pub manifest: Document,
}

/// The content of index.json: images by reference and platform, indexes by digest, signatures by the digest of their subject, files of
/// channels by the channel, files of extensions by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Index {
    images: Vec<Image>,
    indexes: Vec<Document>,
    signatures: Vec<Signature>,
    channel_files: Vec<ChannelFile>,
    files: Vec<BundledFile>,
}

/// Why index.json is not one of a bundle.
#[derive(Debug, thiserror::Error)]
pub enum NotAnIndex {
    /// It is not JSON, or has other fields.
    #[error("it cannot be read")]
    Json(#[source] serde_json::Error),
    /// It has another form than the one that is written.
    #[error("it is not in the form that instarctl writes")]
    Form,
    /// An entry has annotations that are not together those of an image, an index, a signature or a file.
    #[error("the entry {0} is neither an image, an index, a signature nor a file")]
    Entry(Digest),
    /// A file of an extension is none that a bundle holds.
    #[error("it names a file that is not taken")]
    File(#[from] NotAFile),
    /// A reference cannot be read.
    #[error("{0:?} is no reference of an image")]
    Reference(String),
    /// There is no image and no file of an extension.
    #[error("it names no image, and no file of an extension")]
    Empty,
    /// A reference occurs twice for one platform.
    #[error("{} occurs twice for {}", .0.reference, .0.platform)]
    Twice(Box<Image>),
    /// A reference has another digest than its image.
    #[error("{} is the name of another image than {}", .0.reference, .0.named_digest())]
    OtherDigest(Box<Image>),
    /// A digest that an annotation names is not in the bundle.
    #[error("it names {0}, which is not in the bundle")]
    Dangling(Digest),
    /// An index is of no image.
    #[error("no image is from the index {0}")]
    Unused(Digest),
    /// A channel has no list, no signature of it, or two of one.
    #[error(
        "the channel {0} needs one list, one signature of it, and at most one approval of each release"
    )]
    Channel(ChannelName),
    /// There are more entries than the limit.
    #[error("it has {0} entries; at most {MOST_DOCUMENTS} are taken")]
    TooMany(usize),
    /// There are more files of extensions than the limit.
    #[error("it has {0} files of extensions; at most {MOST_FILES} are taken: make several bundles")]
    TooManyFiles(usize),
    /// A document is larger than the limit.
    #[error("{digest} has {size} bytes; a document has at most {LARGEST_DOCUMENT}")]
    TooLarge {
        /// The document.
        digest: Digest,
        /// Its size in bytes.
        size: u64,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawIndex {
    schema_version: u32,
    media_type: String,
    manifests: Vec<RawEntry>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawEntry {
    media_type: String,
    digest: Digest,
    size: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    platform: Option<Platform>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<String, String>,
}

impl Index {
    /// An index of these documents, in its one order. Documents that are named twice are there once.
    ///
    /// # Errors
    /// A contradiction between the documents, or a limit.
    pub fn new(
        mut images: Vec<Image>,
        mut indexes: Vec<Document>,
        mut signatures: Vec<Signature>,
        mut files: Vec<BundledFile>,
    ) -> Result<Self, NotAnIndex> {
        images.sort();
        images.dedup();
        indexes.sort();
        indexes.dedup();
        // Signatures that were found at several places are there once, under the first of these.
        signatures.sort();
        signatures
            .dedup_by(|a, b| (a.subject, a.manifest.digest) == (b.subject, b.manifest.digest));
        files.sort();
        files.dedup();
        let index = Index {
            images,
            indexes,
            signatures,
            channel_files: Vec::new(),
            files,
        };
        index.check()?;
        Ok(index)
    }

    /// The same with the files of channels.
    ///
    /// # Errors
    /// A channel has not one list and one signature, or a limit.
    pub fn with_channels(mut self, mut files: Vec<ChannelFile>) -> Result<Self, NotAnIndex> {
        files.sort();
        files.dedup();
        self.channel_files = files;
        self.check()?;
        self.check_channels()?;
        Ok(self)
    }

    /// The images, by reference and platform.
    pub fn images(&self) -> &[Image] {
        &self.images
    }

    /// The indexes that references name, by digest.
    pub fn indexes(&self) -> &[Document] {
        &self.indexes
    }

    /// The manifests of signatures, by the digest of their subject.
    pub fn signatures(&self) -> &[Signature] {
        &self.signatures
    }

    /// The files of channels, by channel: the list first, then its signature, then approvals.
    pub fn channel_files(&self) -> &[ChannelFile] {
        &self.channel_files
    }

    /// The files of extensions, by name.
    pub fn files(&self) -> &[BundledFile] {
        &self.files
    }

    /// The digest of the file, which names the bundle.
    pub fn digest(&self) -> Digest {
        Digest::of(&self.to_bytes())
    }

    fn check(&self) -> Result<(), NotAnIndex> {
        if self.images.is_empty() && self.files.is_empty() {
            return Err(NotAnIndex::Empty);
        }
        let count = self.documents().count();
        if count > MOST_DOCUMENTS {
            return Err(NotAnIndex::TooMany(count));
        }
        let files = self.files.len();
        if files > MOST_FILES {
            return Err(NotAnIndex::TooManyFiles(files));
        }
        if let Some(&Document { digest, size, .. }) =
            self.documents().find(|it| it.size > LARGEST_DOCUMENT)
        {
            return Err(NotAnIndex::TooLarge { digest, size });
        }
        self.check_names()?;
        self.check_links()
    }

    fn check_names(&self) -> Result<(), NotAnIndex> {
        for image in &self.images {
            let (reference, named) = (&image.reference, image.named_digest());
            let digest = reference.digest();
            if digest.is_some_and(|it| it != named && it != image.manifest.digest) {
                return Err(NotAnIndex::OtherDigest(Box::new(image.clone())));
            }
        }
        let twice = self.images.windows(2).find_map(|pair| match pair {
            [one, other]
                if (&one.reference, &one.platform) == (&other.reference, &other.platform) =>
            {
                Some(other)
            }
            _ => None,
        });
        twice.map_or(Ok(()), |image| {
            Err(NotAnIndex::Twice(Box::new(image.clone())))
        })
    }

    fn check_links(&self) -> Result<(), NotAnIndex> {
        let indexes: BTreeSet<Digest> = self.indexes.iter().map(|it| it.digest).collect();
        let used: BTreeSet<Digest> = self.images.iter().filter_map(|it| it.index).collect();
        let manifests = self.images.iter().map(|it| it.manifest.digest);
        let subjects: BTreeSet<Digest> = manifests.chain(used.iter().copied()).collect();
        let mut of_none = self.signatures.iter().map(|it| it.subject);
        let dangling = used.difference(&indexes).copied().next();
        if let Some(dangling) = dangling.or_else(|| of_none.find(|it| !subjects.contains(it))) {
            return Err(NotAnIndex::Dangling(dangling));
        }
        match indexes.difference(&used).next() {
            Some(unused) => Err(NotAnIndex::Unused(*unused)),
            None => Ok(()),
        }
    }

    fn check_channels(&self) -> Result<(), NotAnIndex> {
        let files = &self.channel_files;
        let same = |one: &ChannelFile, other: &ChannelFile| one.channel == other.channel;
        for of_channel in files.chunk_by(same) {
            let mut parts = of_channel.iter().map(|file| file.part);
            let begins = [parts.next(), parts.next()];
            let whole = begins == [Some(ChannelPart::List), Some(ChannelPart::Signature)];
            let twice = of_channel.windows(2).any(|pair| match pair {
                [one, other] => one.part == other.part,
                _ => false,
            });
            if let (Some(file), false) = (of_channel.first(), whole && !twice) {
                return Err(NotAnIndex::Channel(file.channel.clone()));
            }
        }
        Ok(())
    }

    /// All documents, some of them more than once.
    pub(crate) fn documents(&self) -> impl Iterator<Item = &Document> {
        let images = self.images.iter().map(|it| &it.manifest);
        let signatures = self.signatures.iter().map(|it| &it.manifest);
        let of_channels = self.channel_files.iter().map(|it| &it.document);
        let of_images = images.chain(&self.indexes).chain(signatures);
        let of_extensions = self.files.iter().map(BundledFile::manifest);
        of_images.chain(of_channels).chain(of_extensions)
    }

    /// The bytes of the file.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let images = self.images.iter().map(RawEntry::of_image);
        let indexes = self.indexes.iter().map(RawEntry::of_document);
        let signatures = self.signatures.iter().map(RawEntry::of_signature);
        let of_channels = self.channel_files.iter().map(RawEntry::of_channel_file);
        let of_extensions = self.files.iter().map(RawEntry::of_file);
        let raw = RawIndex {
            schema_version: 2,
            media_type: MEDIA_TYPE.to_owned(),
            manifests: images
                .chain(indexes)
                .chain(signatures)
                .chain(of_channels)
                .chain(of_extensions)
                .collect(),
        };
        // Maps with texts as keys cannot fail to be written.
        serde_json::to_vec(&raw).unwrap_or_default()
    }

    /// Reads the file. Only the bytes that would be written are read.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, NotAnIndex> {
        let raw: RawIndex = serde_json::from_slice(bytes).map_err(NotAnIndex::Json)?;
        if raw.manifests.len() > MOST_DOCUMENTS {
            return Err(NotAnIndex::TooMany(raw.manifests.len()));
        }
        let (mut images, mut indexes, mut signatures) = (Vec::new(), Vec::new(), Vec::new());
        let (mut of_channels, mut files) = (Vec::new(), Vec::new());
        for entry in raw.manifests {
            match entry.typed()? {
                Entry::ChannelFile(file) => of_channels.push(file),
                Entry::File(file) => files.push(file),
                Entry::Image(image) => images.push(image),
                Entry::Index(index) => indexes.push(index),
                Entry::Signature(signature) => signatures.push(signature),
            }
        }
        let index = Index::new(images, indexes, signatures, files)?;
        let index = index.with_channels(of_channels)?;
        match index.to_bytes() == bytes {
            true => Ok(index),
            false => Err(NotAnIndex::Form),
        }
    }
}

enum Entry {
    Image(Image),
    Index(Document),
    Signature(Signature),
    ChannelFile(ChannelFile),
    File(BundledFile),
}

impl RawEntry {
    fn of_document(document: &Document) -> Self {
        RawEntry {
            media_type: document.media_type.clone(),
            digest: document.digest,
            size: document.size,
            platform: None,
            annotations: BTreeMap::new(),
        }
    }

    fn of_image(image: &Image) -> Self {
        let mut entry = Self::of_document(&image.manifest);
        entry.platform = Some(image.platform.clone());
        entry.annotate(REFERENCE, &image.reference);
        if let Some(index) = &image.index {
            entry.annotate(INDEX, index);
        }
        entry
    }

    fn of_signature(signature: &Signature) -> Self {
        let mut entry = Self::of_document(&signature.manifest);
        entry.annotate(REFERENCE, &signature.found_at);
        entry.annotate(SIGNS, &signature.subject);
        entry
    }

    fn of_channel_file(file: &ChannelFile) -> Self {
        let mut entry = Self::of_document(&file.document);
        entry.annotate(CHANNEL, &file.channel);
        if let ChannelPart::Approval(release) = &file.part {
            entry.annotate(APPROVES, release);
        }
        entry
    }

    fn of_file(file: &BundledFile) -> Self {
        let mut entry = Self::of_document(file.manifest());
        entry.annotate(REFERENCE, &file.name());
        entry.annotate(FILE, &file.digest());
        entry.annotate(FILE_SIZE, &file.size());
        entry
    }

    fn annotate(&mut self, name: &str, value: &impl fmt::Display) {
        self.annotations.insert(name.to_owned(), value.to_string());
    }

    fn typed(self) -> Result<Entry, NotAnIndex> {
        let other = || NotAnIndex::Entry(self.digest);
        let document = Document {
            digest: self.digest,
            size: self.size,
            media_type: self.media_type.clone(),
        };
        let digest = |name| {
            let text = self.annotations.get(name);
            let digest = text.map(|text: &String| text.parse().map_err(|_| other()));
            digest.transpose()
        };
        if let Some(content) = digest(FILE)? {
            let size = self.annotations.get(FILE_SIZE);
            let size = size.and_then(|text| text.parse().ok()).ok_or_else(other)?;
            let name = self.annotations.get(REFERENCE).ok_or_else(other)?;
            return Ok(Entry::File(BundledFile::new(name, content, size)?));
        }
        let reference = self.annotations.get(REFERENCE).map(|text| {
            let reference = text.parse::<ImageReference>();
            reference.map_err(|_| NotAnIndex::Reference(quote(text.as_bytes())))
        });
        let (index, subject) = (digest(INDEX)?, digest(SIGNS)?);
        if let Some(channel) = self.annotations.get(CHANNEL) {
            let part = ChannelPart::of(&self.media_type, digest(APPROVES)?).ok_or_else(other)?;
            return Ok(Entry::ChannelFile(ChannelFile {
                channel: channel.parse().map_err(|_| other())?,
                part,
                document,
            }));
        }
        Ok(
            match (self.platform.clone(), reference.transpose()?, subject) {
                (Some(platform), Some(reference), None) => Entry::Image(Image {
                    reference,
                    platform,
                    manifest: document,
                    index,
                }),
                (None, None, None) if index.is_none() => Entry::Index(document),
                (None, Some(found_at), Some(subject)) if index.is_none() => {
                    Entry::Signature(Signature {
                        subject,
                        found_at,
                        manifest: document,
                    })
                }
                _ => return Err(other()),
            },
        )
    }
}
