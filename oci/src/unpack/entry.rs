//! One entry of a layer's archive as a checked value.
//!
//! The tar crate is used for headers only: its own reading of long names and pax records puts them into memory whatever their size, and
//! splits binary values at line ends.

use std::io::{self, Read};

use tar::{EntryType, Header};

use super::archive::Archive;
use super::path::{ImagePath, PathRefusal};
use super::sparse::{SparseMap, SparseRecords, SparseRefusal};

/// Size limits of the long names and pax headers that are read into memory. An extended attribute has at most 64 KiB.
const LONGEST_NAME_ENTRY: u64 = 8 * 1024;
const LARGEST_PAX_ENTRY: u64 = 256 * 1024;
/// Limit of Linux on the target of a symbolic link.
const LONGEST_LINK: usize = 4095;

/// The change of one path by a layer.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) path: ImagePath,
    pub(super) change: Change,
    pub(super) metadata: Metadata,
}

/// The kind of change.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// A regular file of this size.
    File {
        size: u64,
    },
    /// A regular file with holes.
    SparseFile(SparseMap),
    Directory,
    Symlink {
        target: Vec<u8>,
    },
    HardLink {
        target: ImagePath,
    },
    Fifo,
    /// `.wh.NAME`: removes this path of the layers below.
    Whiteout,
    /// `.wh..wh..opq`: removes everything below this directory that comes from the layers below.
    Opaque,
    /// A block or character device: it is left out. `given` if every container has it anyway.
    Device {
        given: bool,
    },
    /// Nothing to do: a bookkeeping entry of old tools.
    Nothing,
}

/// Owner, mode, time, extended attributes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Metadata {
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// Seconds and nanoseconds since 1970.
    pub(super) modified: (i64, u32),
    pub(super) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Why an entry is refused.
#[derive(Debug, thiserror::Error)]
pub enum EntryRefusal {
    /// Its name is not valid.
    #[error("its name is refused")]
    Path(#[source] PathRefusal),
    /// The name that a hard link points to is not valid.
    #[error("the target of the hard link is refused")]
    LinkTarget(#[source] PathRefusal),
    /// The target of a symbolic link is empty.
    #[error("the target of the symbolic link is empty, too long or contains a zero byte")]
    SymlinkTarget,
    /// `.wh.`, `.wh..`, `.wh...` would remove a directory itself or its parent.
    #[error("the whiteout names nothing that could be removed")]
    Whiteout,
    /// The map of a sparse file is not valid.
    #[error("it is a sparse file whose holes cannot be told")]
    Sparse(#[source] SparseRefusal),
    /// The entry is of an unknown type.
    #[error("archive entries of type {0:?} are not supported")]
    Type(char),
    /// A header field cannot be read.
    #[error("its header is malformed")]
    Header(#[source] io::Error),
    /// A long name or pax header is larger than the limit.
    #[error("its {what} header is larger than {limit} bytes")]
    Extension {
        /// `name`, `link` or `pax`.
        what: &'static str,
        /// The limit, in bytes.
        limit: u64,
    },
}

/// Collects the extension headers that precede an entry.
#[derive(Default)]
pub(super) struct EntryParser {
    long_name: Option<Vec<u8>>,
    long_link: Option<Vec<u8>>,
    /// pax records, not yet parsed: a list of thousands of tiny ones would take many times their size.
    pax: Vec<u8>,
}

/// Why there is no next entry.
pub(super) enum NoEntry {
    /// The archive cannot be read.
    Archive(io::Error),
    /// The entry of that name is refused.
    Refused(String, EntryRefusal),
}

impl From<io::Error> for NoEntry {
    fn from(error: io::Error) -> Self {
        NoEntry::Archive(error)
    }
}

impl EntryParser {
    /// Makes an entry of the last header, and sets the length of its content in the archive. `None` if the header only describes the next
    /// entry.
    pub(super) fn entry<R: Read>(
        &mut self,
        header: &Header,
        archive: &mut Archive<R>,
    ) -> Result<Option<Entry>, NoEntry> {
        let kind = header.entry_type();
        match kind {
            EntryType::GNULongName => {
                self.long_name = Some(c_string(extension(
                    header,
                    archive,
                    "name",
                    LONGEST_NAME_ENTRY,
                )?));
            }
            EntryType::GNULongLink => {
                self.long_link = Some(c_string(extension(
                    header,
                    archive,
                    "link",
                    LONGEST_NAME_ENTRY,
                )?));
            }
            EntryType::XHeader => {
                self.pax = extension(header, archive, "pax", LARGEST_PAX_ENTRY)?;
            }
            // Global records are comments of the packing tool (git archive writes its commit).
            EntryType::XGlobalHeader => {
                archive.set_content(header.entry_size()?);
            }
            _ => return std::mem::take(self).make(header, archive).map(Some),
        }
        Ok(None)
    }
}

/// Reads the content of an extension header.
fn extension<R: Read>(
    header: &Header,
    archive: &mut Archive<R>,
    what: &'static str,
    limit: u64,
) -> Result<Vec<u8>, NoEntry> {
    let size = header.entry_size()?;
    if size > limit {
        let refusal = EntryRefusal::Extension { what, limit };
        return Err(NoEntry::Refused("an extension header".to_owned(), refusal));
    }
    archive.set_content(size);
    let mut bytes = Vec::new();
    archive.read_to_end(&mut bytes)?;
    if (bytes.len() as u64) < size {
        return Err(NoEntry::Archive(io::ErrorKind::UnexpectedEof.into()));
    }
    Ok(bytes)
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("unreadable {what}"))
}

/// Removes the zero byte at the end of GNU names.
fn c_string(mut bytes: Vec<u8>) -> Vec<u8> {
    if bytes.last() == Some(&0) {
        bytes.pop();
    }
    bytes
}

/// Parses records `LENGTH KEY=VALUE
/// `, where the length counts the whole record: values may hold any bytes.
fn pax_records(mut bytes: &[u8]) -> Option<Vec<(&[u8], &[u8])>> {
    let mut records = Vec::new();
    while !bytes.is_empty() {
        let space = bytes.iter().take(12).position(|&byte| byte == b' ')?;
        let length: usize = std::str::from_utf8(&bytes[..space]).ok()?.parse().ok()?;
        let record = bytes.get(space + 1..length)?.strip_suffix(b"\n")?;
        let equals = record.iter().position(|&byte| byte == b'=')?;
        records.push((&record[..equals], &record[equals + 1..]));
        bytes = &bytes[length..];
    }
    Some(records)
}

/// The pax records of an entry. They take precedence over the fields of its plain header.
#[derive(Default)]
struct Pax<'a> {
    path: Option<&'a [u8]>,
    link: Option<&'a [u8]>,
    size: Option<u64>,
    uid: Option<u64>,
    gid: Option<u64>,
    modified: Option<(i64, u32)>,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    sparse: Option<SparseRecords>,
}

impl<'a> Pax<'a> {
    /// Parses the records; the error is the key of the invalid one.
    fn parse(bytes: &'a [u8]) -> Result<Self, &'static str> {
        let mut pax = Pax::default();
        let mut sparse_path = None;
        for (key, value) in pax_records(bytes).ok_or("pax records")? {
            match key {
                b"path" => pax.path = Some(value),
                b"linkpath" => pax.link = Some(value),
                b"size" => pax.size = Some(number(value).ok_or("size")?),
                b"uid" => pax.uid = Some(number(value).ok_or("uid")?),
                b"gid" => pax.gid = Some(number(value).ok_or("gid")?),
                b"mtime" => pax.modified = Some(time(value).ok_or("mtime")?),
                _ => {
                    if let Some(attribute) = key.strip_prefix(b"SCHILY.xattr.") {
                        pax.xattrs.push((attribute.to_vec(), value.to_vec()));
                    } else if let Some(key) = key.strip_prefix(b"GNU.sparse.") {
                        let sparse = pax.sparse.get_or_insert_default();
                        match key {
                            b"major" => sparse.major = Some(value.to_vec()),
                            b"minor" => sparse.minor = Some(value.to_vec()),
                            b"size" | b"realsize" => sparse.size = Some(value.to_vec()),
                            b"numblocks" => sparse.number = Some(value.to_vec()),
                            b"map" => sparse.map = Some(value.to_vec()),
                            b"offset" | b"numbytes" => sparse.add_to_map(value),
                            b"name" => sparse_path = Some(value),
                            _ => {}
                        }
                    }
                }
            }
        }
        // The plain name is meant for tools that do not know sparse files.
        pax.path = sparse_path.or(pax.path);
        Ok(pax)
    }
}

/// Mode, owner, time and attributes: from the pax header, else from the plain header.
fn metadata(header: &Header, pax: &Pax<'_>) -> io::Result<Metadata> {
    // Some writers leave the owner's fields empty, and mean root.
    let plain = |field: &[u8], number: io::Result<u64>| match field {
        empty if empty.iter().all(|byte| matches!(byte, 0 | b' ')) => 0,
        _ => number.unwrap_or(u64::MAX),
    };
    let fields = header.as_old();
    let uid = pax.uid.unwrap_or_else(|| plain(&fields.uid, header.uid()));
    let gid = pax.gid.unwrap_or_else(|| plain(&fields.gid, header.gid()));
    let modified = || {
        let seconds = header.mtime().ok();
        let seconds = seconds.and_then(|seconds| i64::try_from(seconds).ok());
        (seconds.unwrap_or(0), 0)
    };
    Ok(Metadata {
        mode: header.mode()? & 0o7777,
        uid: id(uid).ok_or_else(|| malformed("uid"))?,
        gid: id(gid).ok_or_else(|| malformed("gid"))?,
        modified: pax.modified.unwrap_or_else(modified),
        xattrs: pax.xattrs.clone(),
    })
}

/// An entry without content.
fn without_content(
    kind: EntryType,
    path: &ImagePath,
    link: Vec<u8>,
) -> Result<Change, EntryRefusal> {
    match kind {
        EntryType::Directory => Ok(Change::Directory),
        EntryType::Symlink if link.is_empty() || link.len() > LONGEST_LINK || link.contains(&0) => {
            Err(EntryRefusal::SymlinkTarget)
        }
        EntryType::Symlink => Ok(Change::Symlink { target: link }),
        EntryType::Link => {
            let target = ImagePath::parse(&link).map_err(EntryRefusal::LinkTarget)?;
            Ok(Change::HardLink { target })
        }
        EntryType::Fifo => Ok(Change::Fifo),
        EntryType::Char | EntryType::Block => Ok(Change::Device {
            given: kind == EntryType::Char && is_given_to_every_container(path.as_bytes()),
        }),
        other => Err(EntryRefusal::Type(char::from(other.as_byte()))),
    }
}

/// A file with its content; a sparse file's content is only the pieces that are not zero.
fn file<R: Read>(
    header: &Header,
    records: Option<&SparseRecords>,
    archive: &mut Archive<R>,
    size: u64,
) -> io::Result<Result<Change, EntryRefusal>> {
    let map = match (header.entry_type(), records) {
        (EntryType::GNUSparse, Some(_)) => {
            return Ok(Err(EntryRefusal::Sparse(SparseRefusal::NoFile)));
        }
        (EntryType::GNUSparse, None) => {
            let Some(header) = header.as_gnu() else {
                return Ok(Err(EntryRefusal::Header(malformed("sparse header"))));
            };
            let map = SparseMap::of_old_header(header, archive, size)?;
            archive.set_content(size);
            map
        }
        (_, Some(records)) => SparseMap::of_records(records, archive, size)?,
        (_, None) => return Ok(Ok(Change::File { size })),
    };
    Ok(map.map(Change::SparseFile).map_err(EntryRefusal::Sparse))
}

impl EntryParser {
    fn make<R: Read>(self, header: &Header, archive: &mut Archive<R>) -> Result<Entry, NoEntry> {
        let pax = Pax::parse(&self.pax);
        let name = match (&pax, self.long_name) {
            (
                Ok(Pax {
                    path: Some(path), ..
                }),
                _,
            ) => path.to_vec(),
            (_, Some(long)) => long,
            _ => header.path_bytes().into_owned(),
        };
        let refuse = |refusal| {
            let shown = name.escape_ascii().take(300).map(char::from).collect();
            NoEntry::Refused(shown, refusal)
        };
        let header_refusal = |error| refuse(EntryRefusal::Header(error));
        let pax = pax.map_err(|field| header_refusal(malformed(field)))?;

        let path =
            ImagePath::parse(&name).map_err(|refusal| refuse(EntryRefusal::Path(refusal)))?;
        let link = match (pax.link, self.long_link) {
            (Some(link), _) => link.to_vec(),
            (None, Some(long)) => long,
            (None, None) => header
                .link_name_bytes()
                .map(|bytes| bytes.into_owned())
                .unwrap_or_default(),
        };
        let metadata = metadata(header, &pax).map_err(header_refusal)?;
        let size = match pax.size {
            Some(size) => Ok(size),
            None => header.entry_size(),
        };
        let size = size.map_err(header_refusal)?;
        if has_content(header, &name) {
            archive.set_content(size);
        }

        if let Some((parent, name)) = path.split()
            && let Some(hidden) = name.strip_prefix(b".wh.")
        {
            let (path, change) = whiteout(parent, hidden).map_err(refuse)?;
            return Ok(Entry {
                path,
                change,
                metadata,
            });
        }
        let change = match header.entry_type() {
            // Before ustar, a directory was a file with a slash at the end.
            EntryType::Regular if name.ends_with(b"/") => Change::Directory,
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                file(header, pax.sparse.as_ref(), archive, size)?.map_err(refuse)?
            }
            _ if pax.sparse.is_some() => {
                return Err(refuse(EntryRefusal::Sparse(SparseRefusal::NoFile)));
            }
            other => without_content(other, &path, link).map_err(refuse)?,
        };
        Ok(Entry {
            path,
            change,
            metadata,
        })
    }
}

/// Whether an entry has content. Links, devices, directories and pipes have none whatever their header's size says: some tools write the
/// size on disk there. Other image tools read them the same way.
fn has_content(header: &Header, name: &[u8]) -> bool {
    match header.entry_type() {
        EntryType::Link
        | EntryType::Symlink
        | EntryType::Char
        | EntryType::Block
        | EntryType::Directory
        | EntryType::Fifo => false,
        // The blocks of its map come first.
        EntryType::GNUSparse => false,
        // A directory from before ustar.
        EntryType::Regular => header.as_old().linkflag != [0] || !name.ends_with(b"/"),
        _ => true,
    }
}

/// Whiteouts of the image specification; other names with two prefixes are leftovers of aufs.
fn whiteout(parent: ImagePath, hidden: &[u8]) -> Result<(ImagePath, Change), EntryRefusal> {
    match hidden {
        b".wh..opq" => Ok((parent, Change::Opaque)),
        _ if hidden.starts_with(b".wh.") => Ok((parent, Change::Nothing)),
        b"" | b"." | b".." => Err(EntryRefusal::Whiteout),
        _ => {
            let path = [parent.as_bytes(), b"/", hidden].concat();
            Ok((
                ImagePath::parse(&path).map_err(EntryRefusal::Path)?,
                Change::Whiteout,
            ))
        }
    }
}

/// The devices of the runtime specification: old base images contain them, and /dev is fresh in every container.
fn is_given_to_every_container(path: &[u8]) -> bool {
    let names: [&[u8]; 8] = [
        b"console", b"full", b"null", b"ptmx", b"random", b"tty", b"urandom", b"zero",
    ];
    path.strip_prefix(b"dev/")
        .is_some_and(|name| names.contains(&name))
}

/// A user or group id; the highest number means "leave it" to the kernel.
fn id(number: u64) -> Option<u32> {
    u32::try_from(number).ok().filter(|&id| id != u32::MAX)
}

fn number(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// A time `SECONDS[.FRACTION]`, possibly negative.
fn time(text: &[u8]) -> Option<(i64, u32)> {
    let text = std::str::from_utf8(text).ok()?;
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let seconds: i64 = seconds.parse().ok()?;
    let digits: String = fraction
        .chars()
        .chain(std::iter::repeat('0'))
        .take(9)
        .collect();
    let nanoseconds = digits.parse().ok()?;
    // Before 1970 the fraction would count backwards; whole seconds are close enough there.
    Some((
        seconds,
        if text.starts_with('-') {
            0
        } else {
            nanoseconds
        },
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn pax_values_may_hold_anything() {
        let records = pax_records(b"20 path=a name=with\n12 key=\n\x00\xff=\n").unwrap();
        assert_eq!(records[0], (&b"path"[..], &b"a name=with"[..]));
        assert_eq!(records[1], (&b"key"[..], &b"\n\x00\xff="[..]));
        for bad in [
            &b"5 a=b\n"[..],
            b"7 a=b\n",
            b"x a=b\n",
            b"99999999999999999999 a=b\n",
            b"0 a=b\n",
            b"6 a=b ",
            b"5 ab\n",
            b"-6 a=b\n",
            b"1 ",
        ] {
            assert!(
                pax_records(bad).is_none(),
                "{:?}",
                bad.escape_ascii().to_string()
            );
        }
    }

    #[test]
    fn times_before_and_after_the_epoch() {
        assert_eq!(time(b"1700000000.25"), Some((1_700_000_000, 250_000_000)));
        assert_eq!(time(b"1700000000"), Some((1_700_000_000, 0)));
        assert_eq!(time(b"-1.5"), Some((-1, 0)));
        assert_eq!(time(b"now"), None);
    }

    #[test]
    fn whiteouts_by_name() {
        let parent = || ImagePath::parse(b"a").unwrap();
        let (path, change) = whiteout(parent(), b"b").unwrap();
        assert_eq!((path.as_bytes(), change), (&b"a/b"[..], Change::Whiteout));
        assert_eq!(whiteout(parent(), b".wh..opq").unwrap().1, Change::Opaque);
        assert_eq!(whiteout(parent(), b".wh.plnk").unwrap().1, Change::Nothing);
        for bad in [&b""[..], b".", b".."] {
            assert!(matches!(
                whiteout(parent(), bad),
                Err(EntryRefusal::Whiteout)
            ));
        }
    }
}
