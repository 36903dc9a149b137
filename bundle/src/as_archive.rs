//! The archive of a bundle, read at any offset: of a directory too, whose archive is nowhere. Every byte of it that lies in no file follows
//! from the names and sizes of the files.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use crate::archive::{END, header, padding};
use crate::directory::Directory;
use crate::fault::{Fault, Refused};
use crate::files::Files;
use crate::member::{LAYOUT, Member, Name};
use crate::plan::{Group, Plan, Planner};
use crate::summary::Summary;

/// The archive of a bundle in either form. Nothing but its metadata is verified, and of a directory the documents that say which blobs come.
#[derive(Debug)]
pub struct AsArchive {
    source: Source,
    summary: Summary,
    bytes: u64,
}

#[derive(Debug)]
enum Source {
    File(File),
    Directory {
        directory: Directory,
        parts: Vec<Part>,
    },
}

/// Bytes of the archive of a directory.
#[derive(Debug)]
struct Part {
    /// The offset of the first one.
    at: u64,
    content: Content,
}

#[derive(Debug)]
enum Content {
    /// A header, padding, or the end.
    Bytes(Vec<u8>),
    /// A file of the directory.
    File(Member),
}

impl AsArchive {
    /// The bundle in this file, which is its archive.
    ///
    /// # Errors
    /// It is no bundle, or cannot be read.
    pub fn of_file(file: File) -> Result<Self, Refused> {
        let files = Files::archive(file.try_clone().map_err(cannot_read)?);
        let (_, summary) = files.metadata()?;
        let bytes = file.metadata().map_err(cannot_read)?.len();
        Ok(AsArchive {
            source: Source::File(file),
            summary,
            bytes,
        })
    }

    /// The bundle in this directory.
    ///
    /// # Errors
    /// It is no bundle, or cannot be read.
    pub fn of_directory(directory: File) -> Result<Self, Refused> {
        let directory = Directory::new(directory.into());
        let mut files = Files::Directory(directory.clone());
        let (index, summary, place) = files.read_metadata()?;
        let mut planner = Planner::new(&index).map_err(|fault| fault.at(place.clone()))?;
        for document in planner.group(Group::Documents) {
            let name = Name::Blob(document.digest);
            let (bytes, place) = files.document(name, Some(document.size))?;
            let learned = planner.learn(document.digest, &bytes);
            learned.map_err(|fault| fault.at(place))?;
        }
        let plan = planner.finish();
        if plan.summary != summary {
            return Err(Fault::Content.at(place));
        }
        let parts = parts(&plan, index.to_bytes().len() as u64);
        let bytes = parts.last().map_or(0, Part::end);
        Ok(AsArchive {
            source: Source::Directory { directory, parts },
            summary,
            bytes,
        })
    }

    /// The summary in the bundle.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// The size of the archive in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Fills a buffer with the bytes of the archive from an offset on.
    ///
    /// # Errors
    /// A file cannot be read, or has become shorter.
    pub fn read_exact_at(&self, mut buffer: &mut [u8], mut at: u64) -> io::Result<()> {
        let (directory, parts) = match &self.source {
            Source::File(file) => return file.read_exact_at(buffer, at),
            Source::Directory { directory, parts } => (directory, parts),
        };
        while !buffer.is_empty() {
            let after = parts.partition_point(|part| part.at <= at);
            let part = after.checked_sub(1).and_then(|number| parts.get(number));
            let part = part.filter(|part| at < part.end());
            let part = part.ok_or(io::ErrorKind::UnexpectedEof)?;
            let left = usize::try_from(part.end() - at).unwrap_or(usize::MAX);
            let (piece, rest) = buffer.split_at_mut(left.min(buffer.len()));
            part.read_exact_at(directory, piece, at - part.at)?;
            at += piece.len() as u64;
            buffer = rest;
        }
        Ok(())
    }
}

impl Part {
    /// The offset after the last byte.
    fn end(&self) -> u64 {
        self.at
            + match &self.content {
                Content::Bytes(bytes) => bytes.len() as u64,
                Content::File(member) => member.size,
            }
    }

    /// Fills a buffer that is no longer than the part from this offset in it on.
    fn read_exact_at(&self, directory: &Directory, buffer: &mut [u8], at: u64) -> io::Result<()> {
        let member = match &self.content {
            Content::Bytes(bytes) => {
                let from = usize::try_from(at).unwrap_or(usize::MAX);
                let bytes = bytes.get(from..).and_then(|rest| rest.get(..buffer.len()));
                buffer.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
                return Ok(());
            }
            Content::File(member) => member,
        };
        let failed = |error: io::Error| {
            let name = member.name;
            io::Error::new(error.kind(), format!("{name} cannot be read: {error}"))
        };
        let opened = directory.open(member.name).map_err(io::Error::other);
        let (file, _) = opened.map_err(failed)?;
        file.read_exact_at(buffer, at).map_err(failed)
    }
}

/// The parts of an archive in their order.
fn parts(plan: &Plan, index: u64) -> Vec<Part> {
    let metadata = [
        (Name::Layout, LAYOUT.len() as u64),
        (Name::Index, index),
        (Name::Summary, plan.summary.to_bytes().len() as u64),
    ];
    let blobs = plan.blobs.iter();
    let blobs = blobs.map(|blob| (Name::Blob(blob.digest), blob.size));
    let contents = metadata.into_iter().chain(blobs).flat_map(|(name, size)| {
        let member = Member { name, size };
        [
            Content::Bytes(header(member).to_vec()),
            Content::File(member),
            Content::Bytes(vec![0; padding(size)]),
        ]
    });
    let mut parts: Vec<Part> = Vec::new();
    for content in contents.chain([Content::Bytes(vec![0; END])]) {
        let at = parts.last().map_or(0, Part::end);
        let part = Part { at, content };
        // An empty one has no byte that could be looked for.
        if part.end() > at {
            parts.push(part);
        }
    }
    parts
}

fn cannot_read(error: io::Error) -> Refused {
    Fault::Io(error).at(crate::fault::Place {
        what: "the file".to_owned(),
        at: None,
    })
}
