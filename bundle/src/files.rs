//! The files of a bundle, in either form.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use crate::archive::Archive;
use crate::directory::Directory;
use crate::fault::{Fault, Place, Refused};
use crate::index::Index;
use crate::member::{LAYOUT, Member, Name};
use crate::plan::Planned;
use crate::summary::Summary;

/// Largest index.json and instar-bundle.json, in bytes: some 2000 documents with the longest references.
const LARGEST: u64 = 2 << 20;

/// The files of a bundle that is not verified yet.
#[derive(Debug, Clone)]
pub enum Files {
    /// They are members of an archive.
    Archive(Archive),
    /// They are files in a directory.
    Directory(Directory),
}

impl Files {
    /// Opens a file or a directory.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        Ok(match file.metadata()?.is_dir() {
            true => Files::directory(file.into()),
            false => Files::archive(file),
        })
    }

    /// The bundle in this file.
    pub fn archive(file: File) -> Self {
        Files::Archive(Archive::new(file))
    }

    /// The bundle in this directory.
    pub fn directory(directory: OwnedFd) -> Self {
        Files::Directory(Directory::new(directory))
    }

    /// Reads the metadata alone: enough to name the bundle and to make room for it. Nothing but its own form is verified.
    ///
    /// # Errors
    /// The fault with its place.
    pub fn metadata(&self) -> Result<(Index, Summary), Refused> {
        let (index, summary, _) = self.clone().read_metadata()?;
        Ok((index, summary))
    }

    /// Reads the metadata; returns also the place of the summary.
    pub(crate) fn read_metadata(&mut self) -> Result<(Index, Summary, Place), Refused> {
        let (layout, place) = self.document(Name::Layout, Some(LAYOUT.len() as u64))?;
        if layout != LAYOUT {
            return Err(Fault::Content.at(place));
        }
        let (index, place_of_index) = self.document(Name::Index, None)?;
        let index = Index::parse(&index);
        let index =
            index.map_err(|error| Fault::Index(Box::new(error)).at(place_of_index.clone()))?;
        let (summary, place) = self.document(Name::Summary, None)?;
        let summary = Summary::parse(&summary).map_err(|fault| fault.at(place.clone()))?;
        match summary.digest == index.digest() {
            true => Ok((index, summary, place)),
            false => Err(Fault::OtherIndex.at(place_of_index)),
        }
    }

    /// Reads the next file whole; returns also its place.
    pub(crate) fn document(
        &mut self,
        name: Name,
        size: Option<u64>,
    ) -> Result<(Vec<u8>, Place), Refused> {
        let size = match size {
            Some(size) => size,
            None => self.announced(name)?,
        };
        let mut bytes = Vec::new();
        let place = self.place(name);
        if size > LARGEST {
            let fault = Fault::MetadataTooLarge {
                size,
                limit: LARGEST,
            };
            return Err(fault.at(place));
        }
        self.read(Member { name, size }, &mut |piece| {
            bytes.extend_from_slice(piece);
        })?;
        Ok((bytes, place))
    }

    /// The place of the next file.
    pub(crate) fn place(&self, name: Name) -> Place {
        let at = match self {
            Files::Archive(archive) => Some(archive.at()),
            Files::Directory(_) => None,
        };
        Place {
            what: name.to_string(),
            at,
        }
    }

    fn announced(&mut self, name: Name) -> Result<u64, Refused> {
        match self {
            Files::Archive(archive) => archive.announced(name),
            Files::Directory(directory) => directory.announced(name),
        }
    }

    /// Reads the next file, which has to be this one, piece by piece.
    pub(crate) fn read(
        &mut self,
        member: Member,
        sink: &mut dyn FnMut(&[u8]),
    ) -> Result<(), Refused> {
        match self {
            Files::Archive(archive) => archive.read(member, sink),
            Files::Directory(directory) => directory.read(member, sink),
        }
    }

    /// Checks that nothing follows.
    pub(crate) fn finish(&mut self, blobs: &[Planned]) -> Result<(), Refused> {
        match self {
            Files::Archive(archive) => archive.finish(),
            Files::Directory(directory) => {
                let names: BTreeSet<String> = blobs.iter().map(|blob| blob.digest.hex()).collect();
                directory.finish(&names)
            }
        }
    }
}
