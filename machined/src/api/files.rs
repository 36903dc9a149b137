//! `Read`, `List`, `Copy`, `DiskUsage`, `Statfs`: the machine's files, as far as the policy shows them.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::LazyLock;

use instar_api::common::{Data, Metadata};
use instar_api::machine as wire;
use instar_api::machine::list_request::Type;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::blocking;
use super::caller::Holder;
use super::shares::{Share, Shares};
use crate::disk::Reading;
use crate::files::{
    Archive, Content, Depth, DiskUsage, Entry, FileError, Found, Kind, Step, Usage, View, Walk,
};
use crate::statistics;

type Stream<T> = ReceiverStream<Result<T, Status>>;

/// Limit on the pieces of content that are read ahead for one reader.
const PIECES_AHEAD: usize = 2;
/// Limit on the entries that are looked up ahead for one reader.
const ENTRIES_AHEAD: usize = 64;

/// Limits on simultaneous walks, including those whose reader is slow, because each holds a directory open for each level: 128 in
/// all, 64 of all callers who are no administrators, 8 on one connection.
static WALKS: LazyLock<Shares> = LazyLock::new(|| Shares::new(128, 64, 8));
/// Limit on the paths in one call, which are handled one after the other.
const MOST_PATHS: usize = 64;

/// Takes a place for a walk.
fn place_for_walk(holder: &Holder) -> Result<Share, Status> {
    WALKS.take(holder).ok_or_else(|| {
        Status::resource_exhausted(
            "too many listings are under way, on this connection or on this node; read those to their end, or end them",
        )
    })
}

/// Converts an error to a gRPC status.
fn status(error: FileError) -> Status {
    let text = error.to_string();
    match error {
        FileError::NotAbsolute(_)
        | FileError::NotRegular { .. }
        | FileError::NotDirectory(_)
        | FileError::TooManyEntries { .. } => Status::invalid_argument(text),
        FileError::Hidden(_) => Status::permission_denied(text),
        FileError::Io { source, .. } => match source.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory => Status::not_found(text),
            ErrorKind::PermissionDenied => Status::permission_denied(text),
            _ => Status::internal(text),
        },
    }
}

/// Finds a file, on a thread that may block.
async fn find<T: Send + 'static>(
    holder: &Holder,
    path: String,
    then: impl FnOnce(Found, &str) -> Result<T, FileError> + Send + 'static,
) -> Result<T, Status> {
    let found = blocking::once(holder, move || {
        Ok(View::of_this_machine()
            .find(&path)
            .and_then(|found| then(found, &path)))
    });
    found.await?.map_err(status)
}

/// Streams the content of a file.
pub(super) async fn read(
    path: String,
    holder: Holder,
    reading: Reading,
    metadata: Option<Metadata>,
) -> Result<Stream<Data>, Status> {
    let content = find(&holder, path, |found, _| Content::of(&found)).await?;
    let pieces = pieces(content, metadata);
    Ok(blocking::stream(holder, reading, pieces, PIECES_AHEAD))
}

/// Streams a directory or a file as a packed archive.
pub(super) async fn copy(
    root: String,
    holder: Holder,
    reading: Reading,
    metadata: Option<Metadata>,
) -> Result<Stream<Data>, Status> {
    let place = place_for_walk(&holder)?;
    let archive = find(&holder, root, |found, name| {
        Ok(Archive::of(Walk::new(found, name, Depth::All)))
    })
    .await?;
    let pieces = pieces(archive, metadata);
    let pieces = with(place, pieces);
    Ok(blocking::stream(holder, reading, pieces, PIECES_AHEAD))
}

/// Returns the same items, and holds the place until the iterator is dropped.
fn with<T>(place: Share, items: impl Iterator<Item = T>) -> impl Iterator<Item = T> {
    items.inspect(move |_| {
        let _held = &place;
    })
}

fn pieces(
    content: impl Iterator<Item = Result<Vec<u8>, FileError>>,
    metadata: Option<Metadata>,
) -> impl Iterator<Item = Option<Result<Data, Status>>> {
    content.map(move |piece| {
        Some(piece.map_err(status).map(|bytes| Data {
            metadata: metadata.clone(),
            bytes,
        }))
    })
}

/// Streams a directory's entries, the directory itself first.
pub(super) async fn list(
    request: wire::ListRequest,
    holder: Holder,
    reading: Reading,
    metadata: Option<Metadata>,
) -> Result<Stream<wire::FileInfo>, Status> {
    let depth = match (request.recurse, usize::try_from(request.recursion_depth)) {
        (false, _) => Depth::Levels(1),
        (true, Ok(levels @ 1..)) => Depth::Levels(levels),
        (true, _) => Depth::All,
    };
    let kinds: Vec<Kind> = request.types().map(kind_of).collect();
    let with_attributes = request.report_xattrs;
    let root = if request.root.is_empty() {
        "/".to_owned()
    } else {
        request.root
    };
    let place = place_for_walk(&holder)?;
    let walk = find(&holder, root, move |found, name| {
        Ok(Walk::new(found, name, depth))
    });
    let entries = with(place, walk.await?).map(move |step| {
        let info = match step {
            Step::Entry(entry) if kinds.is_empty() || kinds.contains(&entry.found.kind()) => {
                file_info(&entry, with_attributes)
            }
            Step::Trouble {
                name,
                relative,
                error,
            } => wire::FileInfo {
                name: text(&name),
                relative_name: text(&relative),
                error: error.to_string(),
                ..wire::FileInfo::default()
            },
            Step::Entry(_) | Step::Left { .. } => return None,
        };
        Some(Ok(wire::FileInfo {
            metadata: metadata.clone(),
            ..info
        }))
    });
    Ok(blocking::stream(holder, reading, entries, ENTRIES_AHEAD))
}

fn kind_of(kind: Type) -> Kind {
    match kind {
        Type::Regular => Kind::Regular,
        Type::Directory => Kind::Directory,
        Type::Symlink => Kind::Symlink,
    }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn file_info(entry: &Entry, with_attributes: bool) -> wire::FileInfo {
    let (found, stat) = (&entry.found, entry.found.stat());
    let attributes = if with_attributes {
        found.attributes()
    } else {
        Vec::new()
    };
    wire::FileInfo {
        name: text(&entry.name),
        relative_name: text(&entry.relative),
        size: stat.st_size,
        mode: go_mode(found.kind(), stat.st_mode),
        modified: stat.st_mtime,
        is_dir: found.kind() == Kind::Directory,
        link: found.link().map(|target| text(&target)).unwrap_or_default(),
        uid: stat.st_uid,
        gid: stat.st_gid,
        xattrs: attributes
            .into_iter()
            .map(|(name, data)| wire::Xattr { name, data })
            .collect(),
        ..wire::FileInfo::default()
    }
}

/// Converts to the bits of Go's `fs.FileMode`, which clients expect.
fn go_mode(kind: Kind, mode: u32) -> u32 {
    let kind = match kind {
        Kind::Regular => 0,
        Kind::Directory => 1 << 31,
        Kind::Symlink => 1 << 27,
        Kind::BlockDevice => 1 << 26,
        Kind::CharacterDevice => 1 << 26 | 1 << 21,
        Kind::Fifo => 1 << 25,
        Kind::Socket => 1 << 24,
    };
    let special = [(0o4000, 1 << 23), (0o2000, 1 << 22), (0o1000, 1 << 20)];
    let special = special
        .iter()
        .filter(|(bit, _)| mode & bit != 0)
        .fold(0, |bits, (_, go)| bits | go);
    kind | special | mode & 0o777
}

/// Streams the room that directories take, each after its contents.
pub(super) async fn disk_usage(
    request: wire::DiskUsageRequest,
    holder: Holder,
    reading: Reading,
    metadata: Option<Metadata>,
) -> Result<Stream<wire::DiskUsageInfo>, Status> {
    // The depth is one more than the requested levels, because 0 means all levels.
    let shown = match usize::try_from(request.recursion_depth) {
        Ok(levels @ 1..) => Depth::Levels(levels - 1),
        _ => Depth::All,
    };
    if request.paths.is_empty() {
        return Err(Status::invalid_argument("no path is named"));
    }
    if request.paths.len() > MOST_PATHS {
        return Err(Status::invalid_argument(format!(
            "more than {MOST_PATHS} paths in one call; make several"
        )));
    }
    let place = place_for_walk(&holder)?;
    for path in &request.paths {
        // A missing path is an error of the call, whatever the other paths are.
        find(&holder, path.clone(), |_, _| Ok(())).await?;
    }
    let (files, threshold) = (request.all, request.threshold);
    let usages = request.paths.into_iter().flat_map(move |path| {
        // Each path is opened only when its turn comes.
        let (usage, trouble) = match View::of_this_machine().find(&path) {
            Ok(found) => {
                let walk = Walk::new(found, &path, Depth::All);
                (Some(DiskUsage::new(walk, shown, files)), None)
            }
            Err(error) => (None, Some(Some(Err(status(error))))),
        };
        let usage = usage.into_iter().flatten();
        usage.map(|usage| usage.map(Ok)).chain(trouble)
    });
    let infos = with(place, usages).map(move |usage| {
        let info = match usage? {
            Ok(usage) => usage_info(usage),
            Err(status) => return Some(Err(status)),
        };
        is_above(threshold, &info).then(|| {
            Ok(wire::DiskUsageInfo {
                metadata: metadata.clone(),
                ..info
            })
        })
    });
    Ok(blocking::stream(holder, reading, infos, ENTRIES_AHEAD))
}

fn usage_info(usage: Usage) -> wire::DiskUsageInfo {
    let (size, error) = match usage.bytes {
        Ok(bytes) => (i64::try_from(bytes).unwrap_or(i64::MAX), String::new()),
        Err(error) => (0, error.to_string()),
    };
    wire::DiskUsageInfo {
        name: text(&usage.name),
        relative_name: text(&usage.relative),
        size,
        error,
        ..wire::DiskUsageInfo::default()
    }
}

/// As in `du --threshold`: a negative threshold leaves out larger entries.
fn is_above(threshold: i64, info: &wire::DiskUsageInfo) -> bool {
    match threshold {
        0 => true,
        1.. => info.size >= threshold,
        _ => info.size <= threshold.saturating_neg(),
    }
}

/// Returns the room on the filesystem of a path. `Mounts` already tells every caller the mount points and how full they are, so a
/// mount point has an answer here too, even if its files are hidden.
pub(super) async fn statfs(
    path: String,
    holder: &Holder,
) -> Result<wire::StorageServiceStatfsResponse, Status> {
    let mount_point = path.clone();
    let mounted = blocking::once(holder, move || statistics::room_of_mount(&mount_point));
    let room = match mounted.await? {
        Some(room) => room,
        None => {
            find(holder, path, |found, _| {
                statistics::room(found.path()).map_err(|source| FileError::Io {
                    path: found.path().to_owned(),
                    source,
                })
            })
            .await?
        }
    };
    Ok(wire::StorageServiceStatfsResponse {
        size: room.size,
        used: room.used,
        available: room.available,
        inodes: room.inodes,
        inodes_used: room.inodes_used,
        inodes_free: room.inodes_free,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::base::quota::Rank;
    use crate::disk::Readers;
    use tokio_stream::StreamExt as _;
    use tonic::Code;

    fn reading() -> Reading {
        static READERS: LazyLock<Readers> = LazyLock::new(Readers::default);
        READERS.enter()
    }

    fn holder(connection: &str) -> Holder {
        Holder {
            connection: connection.into(),
            rank: Rank::Other,
        }
    }

    fn open_descriptors() -> usize {
        std::fs::read_dir("/proc/self/fd").unwrap().count()
    }

    #[tokio::test]
    async fn usage_of_many_paths_costs_no_descriptor_each() {
        let usage = |paths: usize, holder| {
            let request = wire::DiskUsageRequest {
                paths: vec!["/proc/sys".to_owned(); paths],
                ..wire::DiskUsageRequest::default()
            };
            disk_usage(request, holder, reading(), None)
        };
        let before = open_descriptors();
        let _unread = usage(MOST_PATHS, holder("many paths")).await.unwrap();
        let held = open_descriptors().saturating_sub(before);
        // Other tests open files as well.
        assert!(held < MOST_PATHS / 2, "{held} descriptors");
        let refused = usage(MOST_PATHS + 1, holder("too many paths")).await.err();
        assert_eq!(refused.unwrap().code(), Code::InvalidArgument);
    }

    #[tokio::test]
    async fn one_connection_has_a_few_walks_that_it_does_not_read() {
        let of = |connection| {
            let request = wire::ListRequest {
                root: "/proc/sys".to_owned(),
                recurse: true,
                ..wire::ListRequest::default()
            };
            list(request, holder(connection), reading(), None)
        };
        let mut unread = Vec::new();
        for _ in 0..8 {
            unread.push(of("walks").await.unwrap());
        }
        let refused = of("walks").await.err().unwrap();
        assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
        // Other connections get a place, and so does this one when one of its walks has ended.
        of("other walks").await.unwrap();
        unread.pop();
        for _ in 0..1000 {
            if of("walks").await.is_ok() {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        panic!("the place of a walk that was ended is lost");
    }

    #[tokio::test]
    async fn files_of_proc_are_read_to_their_end() {
        let path = "/proc/sys/kernel/random/boot_id".to_owned();
        let mut stream = read(path, holder("read"), reading(), None).await.unwrap();
        let mut content = Vec::new();
        while let Some(message) = stream.next().await {
            content.extend(message.unwrap().bytes);
        }
        assert_eq!(content.len(), 37);
    }

    #[tokio::test]
    async fn refusals_have_their_codes() {
        for (path, code) in [
            ("relative", Code::InvalidArgument),
            ("/", Code::InvalidArgument),
            ("/dev/null", Code::InvalidArgument),
            ("/no/such/file", Code::NotFound),
            ("/proc/self/environ", Code::PermissionDenied),
            ("/proc/self/root/etc/passwd", Code::PermissionDenied),
        ] {
            let refused = read(path.into(), holder("refusals"), reading(), None)
                .await
                .err()
                .unwrap();
            assert_eq!(refused.code(), code, "{path}: {refused}");
        }
        for refused in [
            copy("/proc/self/fd".into(), holder("refusals"), reading(), None)
                .await
                .err(),
            statfs("/proc/self/cwd".into(), &holder("refusals"))
                .await
                .err(),
            statfs("/proc/1/root/proc".into(), &holder("refusals"))
                .await
                .err(),
        ] {
            assert_eq!(refused.unwrap().code(), Code::PermissionDenied);
        }
    }

    async fn listed(request: wire::ListRequest) -> Vec<wire::FileInfo> {
        let stream = list(request, holder("list"), reading(), None)
            .await
            .unwrap();
        stream.map(Result::unwrap).collect().await
    }

    #[tokio::test]
    async fn a_listing_begins_with_its_root() {
        let scratch = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(scratch.path().join("a/b")).unwrap();
        std::fs::write(scratch.path().join("a/b/file"), "123").unwrap();
        std::os::unix::fs::symlink("a", scratch.path().join("link")).unwrap();
        let root = scratch.path().to_str().unwrap().to_owned();
        let names = |infos: &[wire::FileInfo]| -> Vec<String> {
            infos
                .iter()
                .map(|info| info.relative_name.clone())
                .collect()
        };

        let plain = listed(wire::ListRequest {
            root: root.clone(),
            recursion_depth: 1,
            ..wire::ListRequest::default()
        })
        .await;
        assert_eq!(names(&plain), [".", "a", "link"]);
        assert_eq!(
            (plain[0].name.as_str(), plain[0].is_dir),
            (root.as_str(), true)
        );
        assert_eq!(plain[2].link, "a");
        assert_eq!(plain[2].mode & !0o777, 1 << 27);

        let files = listed(wire::ListRequest {
            root: root.clone(),
            recurse: true,
            recursion_depth: -1,
            types: vec![Type::Regular.into()],
            ..wire::ListRequest::default()
        })
        .await;
        assert_eq!(names(&files), ["a/b/file"]);
        assert_eq!(files[0].size, 3);
        let two = listed(wire::ListRequest {
            root,
            recurse: true,
            recursion_depth: 2,
            ..wire::ListRequest::default()
        })
        .await;
        assert_eq!(names(&two), [".", "a", "a/b", "link"]);
    }

    #[test]
    fn modes_are_those_of_go() {
        assert_eq!(
            go_mode(Kind::Directory, 0o041777),
            1 << 31 | 1 << 20 | 0o777
        );
        assert_eq!(
            go_mode(Kind::CharacterDevice, 0o020666),
            1 << 26 | 1 << 21 | 0o666
        );
        assert_eq!(go_mode(Kind::Regular, 0o106755), 1 << 23 | 1 << 22 | 0o755);
    }

    #[test]
    fn a_threshold_is_that_of_du() {
        let of = |size| wire::DiskUsageInfo {
            size,
            ..wire::DiskUsageInfo::default()
        };
        assert!(is_above(0, &of(0)) && is_above(10, &of(10)) && is_above(-10, &of(10)));
        assert!(!is_above(10, &of(9)) && !is_above(-10, &of(11)));
    }
}
