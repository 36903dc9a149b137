//! One entry of a layer's archive as a checked value.
//!
//! The tar crate is used for blocks and headers only: its own reading of long names and pax records puts them into
//! memory whatever their size, and splits binary values at line ends.

use std::io::{self, Read};

use tar::{EntryType, Header};

use super::path::{ImagePath, PathRefusal};

/// The longest name and the largest pax header that are read into memory. An extended attribute has at most 64 KiB.
const LONGEST_NAME_ENTRY: u64 = 8 * 1024;
const LARGEST_PAX_ENTRY: u64 = 256 * 1024;
/// Linux takes no longer target of a symbolic link.
const LONGEST_LINK: usize = 4095;

/// What a layer says about one path.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) path: ImagePath,
    pub(super) change: Change,
    pub(super) metadata: Metadata,
}

/// What happens to the path.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// A regular file of so many bytes.
    File {
        size: u64,
    },
    Directory,
    Symlink {
        target: Vec<u8>,
    },
    HardLink {
        target: ImagePath,
    },
    Fifo,
    /// `.wh.NAME`: this path of the layers below is gone.
    Whiteout,
    /// `.wh..wh..opq`: everything below this directory that comes from the layers below is gone.
    Opaque,
    /// Nothing to do: bookkeeping of old tools, or a device that every container gets anyway.
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

/// Why an entry is not taken.
#[derive(Debug, thiserror::Error)]
pub enum EntryRefusal {
    /// Its name.
    #[error("its name is refused")]
    Path(#[source] PathRefusal),
    /// The name that a hard link points to.
    #[error("the target of the hard link is refused")]
    LinkTarget(#[source] PathRefusal),
    /// A symbolic link to nothing at all.
    #[error("the target of the symbolic link is empty, too long or contains a zero byte")]
    SymlinkTarget,
    /// `.wh.`, `.wh..`, `.wh...` would remove a directory itself or its parent.
    #[error("the whiteout names nothing that could be removed")]
    Whiteout,
    /// Block or character device.
    #[error("it is a device; images may not bring their own")]
    Device,
    /// GNU sparse files.
    #[error("it is a sparse archive entry; pack the layer without --sparse")]
    Sparse,
    /// Something else.
    #[error("archive entries of type {0:?} are not supported")]
    Type(char),
    /// A header field that cannot be read.
    #[error("its header is malformed")]
    Header(#[source] io::Error),
    /// Long name or pax header.
    #[error("its {what} header is larger than {limit} bytes")]
    Extension {
        /// `name`, `link` or `pax`.
        what: &'static str,
        /// Bytes.
        limit: u64,
    },
    /// Two readers of this archive would see two different things.
    #[error("its pax header contradicts the plain one about {0}")]
    Ambiguous(&'static str),
}

/// Collects the extension headers that come before the entry that they speak of.
#[derive(Default)]
pub(super) struct EntryParser {
    long_name: Option<Vec<u8>>,
    long_link: Option<Vec<u8>>,
    pax: Vec<(Vec<u8>, Vec<u8>)>,
}

/// The name as an error shows it, known even when the entry is refused.
pub(super) type Named<T> = (String, T);

impl EntryParser {
    /// Takes the next raw entry: `None` when it only speaks of the one to come.
    pub(super) fn next<R: Read>(
        &mut self,
        raw: &mut tar::Entry<'_, R>,
    ) -> Result<Option<Entry>, Named<EntryRefusal>> {
        let kind = raw.header().entry_type();
        let extension = |refusal| ("an extension header".to_owned(), refusal);
        match kind {
            EntryType::GNULongName => {
                self.long_name = Some(c_string(
                    bounded(raw, "name", LONGEST_NAME_ENTRY).map_err(extension)?,
                ));
            }
            EntryType::GNULongLink => {
                self.long_link = Some(c_string(
                    bounded(raw, "link", LONGEST_NAME_ENTRY).map_err(extension)?,
                ));
            }
            EntryType::XHeader => {
                let bytes = bounded(raw, "pax", LARGEST_PAX_ENTRY).map_err(extension)?;
                self.pax = pax_records(&bytes)
                    .ok_or_else(|| extension(EntryRefusal::Header(malformed("pax records"))))?;
            }
            // Global records are comments of the packing tool (git archive writes its commit).
            EntryType::XGlobalHeader => {}
            _ => {
                let EntryParser {
                    long_name,
                    long_link,
                    pax,
                } = std::mem::take(self);
                return entry(raw.header(), long_name, long_link, pax).map(Some);
            }
        }
        Ok(None)
    }
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("unreadable {what}"))
}

fn bounded(raw: &mut impl Read, what: &'static str, limit: u64) -> Result<Vec<u8>, EntryRefusal> {
    let mut bytes = Vec::new();
    raw.take(limit + 1)
        .read_to_end(&mut bytes)
        .map_err(EntryRefusal::Header)?;
    if bytes.len() as u64 > limit {
        Err(EntryRefusal::Extension { what, limit })
    } else {
        Ok(bytes)
    }
}

/// GNU names end with a zero byte.
fn c_string(mut bytes: Vec<u8>) -> Vec<u8> {
    if bytes.last() == Some(&0) {
        bytes.pop();
    }
    bytes
}

/// `LENGTH KEY=VALUE\n`, where the length counts the whole record: values may hold anything.
fn pax_records(mut bytes: &[u8]) -> Option<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut records = Vec::new();
    while !bytes.is_empty() {
        let space = bytes.iter().take(12).position(|&byte| byte == b' ')?;
        let length: usize = std::str::from_utf8(&bytes[..space]).ok()?.parse().ok()?;
        let record = bytes.get(space + 1..length)?.strip_suffix(b"\n")?;
        let equals = record.iter().position(|&byte| byte == b'=')?;
        records.push((record[..equals].to_vec(), record[equals + 1..].to_vec()));
        bytes = &bytes[length..];
    }
    Some(records)
}

fn entry(
    header: &Header,
    long_name: Option<Vec<u8>>,
    long_link: Option<Vec<u8>>,
    pax: Vec<(Vec<u8>, Vec<u8>)>,
) -> Result<Entry, Named<EntryRefusal>> {
    let mut name = long_name.unwrap_or_else(|| header.path_bytes().into_owned());
    let mut link = long_link
        .or_else(|| header.link_name_bytes().map(|bytes| bytes.into_owned()))
        .unwrap_or_default();
    let header_size = header.entry_size();
    let mut metadata = Metadata::default();
    let mut numbers = Ok((
        header.uid().unwrap_or(u64::MAX),
        header.gid().unwrap_or(u64::MAX),
        header
            .mtime()
            .map_or((0, 0), |seconds| (i64::try_from(seconds).unwrap_or(0), 0)),
    ));
    let mut ambiguous = None;
    for (key, value) in pax {
        match key.as_slice() {
            b"path" => name = value,
            b"linkpath" => link = value,
            b"size" if number(&value) != header_size.as_ref().ok().copied() => {
                ambiguous = Some("its size")
            }
            b"uid" => {
                numbers =
                    numbers.and_then(|(_, gid, time)| Ok((number(&value).ok_or("uid")?, gid, time)))
            }
            b"gid" => {
                numbers =
                    numbers.and_then(|(uid, _, time)| Ok((uid, number(&value).ok_or("gid")?, time)))
            }
            b"mtime" => {
                numbers =
                    numbers.and_then(|(uid, gid, _)| Ok((uid, gid, time(&value).ok_or("mtime")?)))
            }
            _ if key.starts_with(b"GNU.sparse.") => ambiguous = Some("its holes"),
            _ => {
                if let Some(attribute) = key.strip_prefix(b"SCHILY.xattr.") {
                    metadata.xattrs.push((attribute.to_vec(), value));
                }
            }
        }
    }
    let shown: String = name.escape_ascii().to_string().chars().take(300).collect();
    let refuse = |refusal| (shown.clone(), refusal);

    if let Some(field) = ambiguous {
        return Err(refuse(EntryRefusal::Ambiguous(field)));
    }
    let (uid, gid, modified) =
        numbers.map_err(|field| refuse(EntryRefusal::Header(malformed(field))))?;
    metadata.uid = id(uid).ok_or_else(|| refuse(EntryRefusal::Header(malformed("uid"))))?;
    metadata.gid = id(gid).ok_or_else(|| refuse(EntryRefusal::Header(malformed("gid"))))?;
    metadata.modified = modified;
    metadata.mode = header
        .mode()
        .map_err(|error| refuse(EntryRefusal::Header(error)))?
        & 0o7777;
    let path = ImagePath::parse(&name).map_err(|refusal| refuse(EntryRefusal::Path(refusal)))?;

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
        EntryType::Regular | EntryType::Continuous => Change::File {
            size: header_size.map_err(|error| refuse(EntryRefusal::Header(error)))?,
        },
        EntryType::Directory => Change::Directory,
        EntryType::Symlink if link.is_empty() || link.len() > LONGEST_LINK || link.contains(&0) => {
            return Err(refuse(EntryRefusal::SymlinkTarget));
        }
        EntryType::Symlink => Change::Symlink { target: link },
        EntryType::Link => {
            let target = ImagePath::parse(&link)
                .map_err(|refusal| refuse(EntryRefusal::LinkTarget(refusal)))?;
            Change::HardLink { target }
        }
        EntryType::Fifo => Change::Fifo,
        EntryType::Char if is_given_to_every_container(path.as_bytes()) => Change::Nothing,
        EntryType::Char | EntryType::Block => return Err(refuse(EntryRefusal::Device)),
        EntryType::GNUSparse => return Err(refuse(EntryRefusal::Sparse)),
        other => return Err(refuse(EntryRefusal::Type(char::from(other.as_byte())))),
    };
    Ok(Entry {
        path,
        change,
        metadata,
    })
}

/// Whiteouts as the image specification has them; other names with two prefixes are leavings of aufs.
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

/// The devices of the runtime specification: old base images bring them along, and /dev is fresh in every container.
fn is_given_to_every_container(path: &[u8]) -> bool {
    let names: [&[u8]; 8] = [
        b"console", b"full", b"null", b"ptmx", b"random", b"tty", b"urandom", b"zero",
    ];
    path.strip_prefix(b"dev/")
        .is_some_and(|name| names.contains(&name))
}

/// A user or group; the highest number means "leave it" to the kernel.
fn id(number: u64) -> Option<u32> {
    u32::try_from(number).ok().filter(|&id| id != u32::MAX)
}

fn number(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// `SECONDS[.FRACTION]`, possibly negative.
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
    // Before 1970 the fraction would count backwards; a second is close enough there.
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
        assert_eq!(records[0], (b"path".to_vec(), b"a name=with".to_vec()));
        assert_eq!(records[1], (b"key".to_vec(), b"\n\x00\xff=".to_vec()));
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
