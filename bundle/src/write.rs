//! Writes a bundle, blob by blob in the order of its plan.

use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use instar_values::Digest;
use instar_values::digest::Hasher;

use crate::archive::{END, header, padding};
use crate::index::Index;
use crate::member::{LAYOUT, Member, Name};
use crate::plan::{Plan, Planned};
use crate::summary::Summary;

/// Why a bundle is not written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The file system failed.
    #[error("writing {what} failed")]
    Io {
        /// The file of the bundle.
        what: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The directory holds a bundle, or a part of one.
    #[error(
        "{0:?} holds a bundle already, or a part of one: remove its files oci-layout, index.json, instar-bundle.json and blobs"
    )]
    Occupied(PathBuf),
    /// The content of a blob cannot be read.
    #[error("reading the blob {digest} failed")]
    Source {
        /// The blob.
        digest: Digest,
        /// The error.
        source: io::Error,
    },
    /// The content of a blob is not the one that its digest names.
    #[error(
        "the blob {digest} is not what it should be: it has {size} bytes and the digest {found}"
    )]
    Content {
        /// The blob.
        digest: Digest,
        /// Its size in bytes.
        size: u64,
        /// The digest of its content.
        found: Digest,
    },
    /// Blobs are missing.
    #[error("{0} blobs were not written")]
    Unfinished(usize),
}

/// Writes a bundle. Its metadata is the first thing in an archive, and the last one in a directory: what was cut off is no bundle.
pub struct Writer {
    plan: Plan,
    next: usize,
    index: Vec<u8>,
    target: Target,
}

enum Target {
    Archive(BufWriter<File>),
    Stream(Box<dyn Write + Send>),
    Directory(PathBuf),
}

/// The size of the archive of a bundle, in bytes.
pub fn archive_bytes(index: &Index, plan: &Plan) -> u64 {
    let metadata = [
        LAYOUT.len(),
        index.to_bytes().len(),
        plan.summary.to_bytes().len(),
    ];
    let metadata = metadata.into_iter().map(|length| length as u64);
    let sizes = metadata.chain(plan.blobs.iter().map(|blob| blob.size));
    let members = sizes.map(|size| HEADER + size + padding(size) as u64);
    members.sum::<u64>() + END as u64
}

/// The names of a bundle in a directory. The one that makes it a bundle goes first when a bundle is removed.
const INDEX: &str = "index.json";
const OTHERS: [&str; 3] = ["instar-bundle.json", "oci-layout", "blobs"];

/// Whether a directory holds a bundle, or a part of one.
pub fn has_bundle(directory: &Path) -> bool {
    let is_there = |name: &str| directory.join(name).symlink_metadata().is_ok();
    is_there(INDEX) || OTHERS.into_iter().any(is_there)
}

/// Removes a bundle from a directory, or what is left of one; other files stay. What is left when this is interrupted is no bundle.
///
/// # Errors
/// The file system's.
pub fn remove_bundle(directory: &Path) -> Result<(), WriteError> {
    remove(directory, INDEX)?;
    // On the disk before any blob goes.
    let synced = File::open(directory).and_then(|it| it.sync_all());
    synced.map_err(failed(directory.display()))?;
    for name in OTHERS {
        remove(directory, name)?;
    }
    Ok(())
}

fn remove(directory: &Path, name: &str) -> Result<(), WriteError> {
    let path = directory.join(name);
    let removed = match path.symlink_metadata() {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(&path),
        Ok(_) => fs::remove_file(&path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(path.display())(error)),
        _ => Ok(()),
    }
}

/// Bytes of a member's header.
const HEADER: u64 = 512;

fn failed(what: impl ToString) -> impl FnOnce(io::Error) -> WriteError {
    move |source| WriteError::Io {
        what: what.to_string(),
        source,
    }
}

impl Writer {
    /// Begins an archive in an empty file.
    ///
    /// # Errors
    /// The file system's.
    pub fn archive(file: File, index: &Index, plan: Plan) -> Result<Self, WriteError> {
        Writer::begun(index, plan, Target::Archive(BufWriter::new(file)))
    }

    /// Begins an archive that goes somewhere else than into a file.
    ///
    /// # Errors
    /// The sink's.
    pub fn stream(
        sink: Box<dyn Write + Send>,
        index: &Index,
        plan: Plan,
    ) -> Result<Self, WriteError> {
        Writer::begun(index, plan, Target::Stream(sink))
    }

    fn begun(index: &Index, plan: Plan, target: Target) -> Result<Self, WriteError> {
        let mut writer = Writer::new(index, plan, target);
        let (index, summary) = (writer.index.clone(), writer.plan.summary.to_bytes());
        writer.document(Name::Layout, LAYOUT)?;
        writer.document(Name::Index, &index)?;
        writer.document(Name::Summary, &summary)?;
        Ok(writer)
    }

    /// Begins a bundle in a directory, which may hold other files.
    ///
    /// # Errors
    /// There is a bundle, or the file system fails.
    pub fn directory(directory: &Path, index: &Index, plan: Plan) -> Result<Self, WriteError> {
        if has_bundle(directory) {
            return Err(WriteError::Occupied(directory.to_owned()));
        }
        let blobs = directory.join("blobs/sha256");
        fs::create_dir_all(&blobs).map_err(failed("blobs/sha256"))?;
        Ok(Writer::new(
            index,
            plan,
            Target::Directory(directory.to_owned()),
        ))
    }

    fn new(index: &Index, plan: Plan, target: Target) -> Self {
        Writer {
            plan,
            next: 0,
            index: index.to_bytes(),
            target,
        }
    }

    /// The blob to write next.
    pub fn next_blob(&self) -> Option<Planned> {
        self.plan.blobs.get(self.next).copied()
    }

    /// Writes the next blob, whose content has to have its digest.
    ///
    /// # Errors
    /// The content cannot be read, is another one, or the file system fails. The bundle cannot be finished then.
    pub fn blob(&mut self, content: &mut dyn Read) -> Result<(), WriteError> {
        let Some(Planned { digest, size, .. }) = self.next_blob() else {
            return Ok(());
        };
        let name = Name::Blob(digest);
        let found = self.member(Member { name, size }, content)?;
        let surplus = io::copy(content, &mut io::sink());
        let surplus = surplus.map_err(|source| WriteError::Source { digest, source })?;
        if found.0 != digest || found.1 + surplus != size {
            return Err(WriteError::Content {
                digest,
                size: found.1 + surplus,
                found: found.0,
            });
        }
        self.next += 1;
        Ok(())
    }

    fn document(&mut self, name: Name, mut bytes: &[u8]) -> Result<(), WriteError> {
        let size = bytes.len() as u64;
        self.member(Member { name, size }, &mut bytes).map(drop)
    }

    /// Writes a file; returns the digest and the size of its content.
    fn member(
        &mut self,
        member: Member,
        content: &mut dyn Read,
    ) -> Result<(Digest, u64), WriteError> {
        let name = member.name;
        match &mut self.target {
            Target::Archive(file) => append(file, member, content),
            Target::Stream(sink) => append(sink, member, content),
            Target::Directory(directory) => {
                let file = File::create_new(directory.join(name.to_string()));
                let mut file = file.map_err(failed(name))?;
                let written = copy(content, member, &mut file)?;
                file.sync_all().map_err(failed(name))?;
                Ok(written)
            }
        }
    }

    /// Writes the end, and what makes it a bundle.
    ///
    /// # Errors
    /// Blobs are missing, or the file system fails.
    pub fn finish(mut self) -> Result<Summary, WriteError> {
        let missing = self.plan.blobs.len() - self.next;
        if missing > 0 {
            return Err(WriteError::Unfinished(missing));
        }
        if let Target::Directory(directory) = &self.target {
            let directory = directory.clone();
            let (index, summary) = (self.index.clone(), self.plan.summary.to_bytes());
            self.document(Name::Layout, LAYOUT)?;
            self.document(Name::Summary, &summary)?;
            self.document(Name::Index, &index)?;
            for path in folders(&directory) {
                let synced = File::open(&path).and_then(|it| it.sync_all());
                synced.map_err(failed(path.display()))?;
            }
            return Ok(self.plan.summary);
        }
        if let Target::Stream(sink) = &mut self.target {
            let ended = sink.write_all(&[0; END]).and_then(|()| sink.flush());
            ended.map_err(failed("the end of the archive"))?;
        }
        if let Target::Archive(file) = &mut self.target {
            let ended = file.write_all(&[0; END]).and_then(|()| file.flush());
            let ended = ended.and_then(|()| file.get_ref().sync_all());
            ended.map_err(failed("the end of the archive"))?;
        }
        Ok(self.plan.summary)
    }
}

/// The directories of a bundle, the innermost first. Each has names that are on the disk only once it was synced: FAT does not sync one with another,
/// and a stick may be pulled out as soon as the bundle is whole.
pub(crate) fn folders(directory: &Path) -> [PathBuf; 3] {
    [
        directory.join("blobs/sha256"),
        directory.join("blobs"),
        directory.to_owned(),
    ]
}

/// Appends a member to an archive.
fn append(
    archive: &mut dyn Write,
    member: Member,
    content: &mut dyn Read,
) -> Result<(Digest, u64), WriteError> {
    let name = member.name;
    archive.write_all(&header(member)).map_err(failed(name))?;
    let written = copy(content, member, archive)?;
    let zeros = &[0; END][..padding(member.size)];
    archive.write_all(zeros).map_err(failed(name))?;
    Ok(written)
}

/// Copies the content of a member, but not more than its size.
fn copy(
    content: &mut dyn Read,
    member: Member,
    to: &mut dyn Write,
) -> Result<(Digest, u64), WriteError> {
    let mut hasher = Hasher::default();
    let mut piece = vec![0; 64 << 10];
    let mut written = 0;
    while written < member.size {
        let length = (member.size - written).min(piece.len() as u64) as usize;
        let count = content
            .read(&mut piece[..length])
            .map_err(|source| match member.name {
                Name::Blob(digest) => WriteError::Source { digest, source },
                name => failed(name)(source),
            })?;
        if count == 0 {
            break;
        }
        hasher.update(&piece[..count]);
        to.write_all(&piece[..count]).map_err(failed(member.name))?;
        written += count as u64;
    }
    Ok((hasher.finish(), written))
}
