//! The directory that layers are merged into.
//!
//! Every path is resolved by the kernel from the root's descriptor (openat2) and confined to it, as in a chroot: an absolute symbolic link
//! starts there, and `..` does not lead above it. The last component is never followed.
//!
//! No memory grows with the length of paths: it is bounded by the number of entries. Directories keep the time of the image, because every
//! change of one restores its time.

use std::collections::BTreeSet;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, Timespec, Timestamps, Uid,
    XattrFlags, chmodat, chownat, fchmod, fchown, fsetxattr, fstat, futimens, linkat, mkdirat,
    openat, openat2, readlinkat, statat, symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;

use super::Ownership;
use super::entry::{Change, Entry, Metadata};
use super::path::{DEEPEST, ImagePath};
use super::sparse::SparseMap;
use crate::time_of_change::time_of_change;

/// Limit on symbolic links in one path: the kernel's own.
const MOST_LINKS: usize = 40;
/// Buffer size for copying, in bytes.
const BUFFER: usize = 64 * 1024;

/// Why the change of an entry is refused.
#[derive(Debug, thiserror::Error)]
pub enum TreeRefusal {
    /// Symbolic links form a loop.
    #[error("its path goes through more than {MOST_LINKS} symbolic links")]
    Links,
    /// Symbolic links lead to a directory deeper than an entry can name.
    #[error("its directory is more than {DEEPEST} levels deep")]
    TooDeep,
    /// A part of the path is a file.
    #[error("its path goes through something that is not a directory")]
    NotADirectory,
    /// The target of a hard link does not exist.
    #[error("it is a hard link to {0:?}, which the image does not have")]
    NoTarget(String),
    /// The root can only be a directory.
    #[error("it would replace the image's root")]
    Root,
    /// The archive ended or could not be read within the file's content.
    #[error("its content cannot be read")]
    Content(#[source] io::Error),
    /// The kernel refused.
    #[error("{step} failed")]
    System {
        /// The operation.
        step: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

/// Adds the operation to an error of the kernel.
trait Step<T> {
    fn step(self, step: &'static str) -> Result<T, TreeRefusal>;
}

impl<T> Step<T> for Result<T, Errno> {
    fn step(self, step: &'static str) -> Result<T, TreeRefusal> {
        self.map_err(|errno| TreeRefusal::System {
            step,
            source: errno.into(),
        })
    }
}

pub(super) struct Tree {
    root: OwnedFd,
    ownership: Ownership,
    first_layer: bool,
    /// Number of directories above the root.
    root_depth: usize,
    /// Inodes that the current layer made or changed; empty for the first layer, where all inodes are its own. A tree, because a table
    /// needs three times the memory while it grows.
    of_this_layer: BTreeSet<u64>,
    /// Number of directories that were made without an entry since [`Tree::take_implied`] was called last.
    implied: u64,
    /// The directory of the last entry: archives list a directory's files one after the other.
    last_parent: Option<(ImagePath, Arc<OwnedFd>)>,
    buffer: Vec<u8>,
}

/// The mode of directories that an archive has no entry for.
const IMPLIED: Mode = Mode::from_raw_mode(0o755);
const DIRECTORY: OFlags = OFlags::DIRECTORY
    .union(OFlags::CLOEXEC)
    .union(OFlags::NOFOLLOW);
const CONFINED: ResolveFlags = ResolveFlags::IN_ROOT
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

impl Tree {
    pub(super) fn open(root: &Path, ownership: Ownership) -> io::Result<Self> {
        let root = rustix::fs::open(root, OFlags::RDONLY | DIRECTORY, Mode::empty())?;
        Ok(Tree {
            root_depth: depth(root.as_fd())?,
            root,
            ownership,
            first_layer: true,
            of_this_layer: BTreeSet::new(),
            implied: 0,
            last_parent: None,
            buffer: vec![0; BUFFER],
        })
    }

    /// Ends the layer: the next one comes on top.
    pub(super) fn end_layer(&mut self) {
        self.first_layer = false;
        self.of_this_layer = BTreeSet::new();
        self.last_parent = None;
    }

    /// Number of directories that were made without an entry since the last call.
    pub(super) fn take_implied(&mut self) -> u64 {
        std::mem::take(&mut self.implied)
    }

    pub(super) fn apply(
        &mut self,
        entry: &Entry,
        content: &mut impl Read,
    ) -> Result<(), TreeRefusal> {
        match (&entry.change, entry.path.split()) {
            (Change::Nothing, _) => Ok(()),
            (Change::Opaque, _) => self.hide_below(&entry.path),
            (Change::Whiteout, Some((parent, name))) => self.hide(&parent, name),
            (Change::Directory, None) => self.finish_directory(
                entry,
                openat(&self.root, ".", OFlags::RDONLY | DIRECTORY, Mode::empty()),
            ),
            (_, None) => Err(TreeRefusal::Root),
            (_, Some((parent, name))) => {
                let parent = self.directory(&parent, true)?;
                let before = Modified::of(parent.as_fd())?;
                self.change(entry, &parent, name, content)?;
                before.put_back(parent.as_fd())
            }
        }
    }

    fn change(
        &mut self,
        entry: &Entry,
        parent: &OwnedFd,
        name: &[u8],
        content: &mut impl Read,
    ) -> Result<(), TreeRefusal> {
        match &entry.change {
            Change::File { size } => {
                let copy = |tree: &mut Self, file: &mut _| tree.copy(*size, content, file);
                self.file(entry, parent, name, copy)
            }
            Change::SparseFile(map) => {
                let copy = |tree: &mut Self, file: &mut _| tree.copy_pieces(map, content, file);
                self.file(entry, parent, name, copy)
            }
            Change::Directory => self.subdirectory(entry, parent, name),
            Change::Symlink { target } => self.symlink(entry, parent, name, target),
            Change::HardLink { target } => self.hard_link(parent, name, target),
            Change::Fifo => self.fifo(entry, parent, name),
            Change::Device { .. } => self.leave_out(parent, name),
            Change::Opaque | Change::Whiteout | Change::Nothing => Ok(()),
        }
    }

    // --- creating

    fn file(
        &mut self,
        entry: &Entry,
        parent: &OwnedFd,
        name: &[u8],
        fill: impl FnOnce(&mut Self, &mut std::fs::File) -> Result<(), TreeRefusal>,
    ) -> Result<(), TreeRefusal> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let create = || openat(parent, name, flags, Mode::RUSR | Mode::WUSR);
        let file = match create() {
            Err(Errno::EXIST) => {
                self.replace(parent, name)?;
                create()
            }
            other => other,
        }
        .step("creating the file")?;
        let mut file = std::fs::File::from(file);
        fill(self, &mut file)?;
        self.set_metadata(file.as_fd(), &entry.metadata, Mode::empty())?;
        futimens(&file, &timestamps(entry.metadata.modified)).step("setting its time")?;
        self.mark(file.as_fd())
    }

    fn copy(
        &mut self,
        size: u64,
        content: &mut impl Read,
        file: &mut impl Write,
    ) -> Result<(), TreeRefusal> {
        let mut left = size;
        while left > 0 {
            let want = usize::try_from(left)
                .unwrap_or(usize::MAX)
                .min(self.buffer.len());
            let count = match content.read(&mut self.buffer[..want]) {
                Ok(0) => return Err(TreeRefusal::Content(io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(TreeRefusal::Content(error)),
            };
            file.write_all(&self.buffer[..count])
                .map_err(|source| TreeRefusal::System {
                    step: "writing the file",
                    source,
                })?;
            left -= count as u64;
        }
        Ok(())
    }

    /// Writes each piece at its place; the gaps between them are holes.
    fn copy_pieces(
        &mut self,
        map: &SparseMap,
        content: &mut impl Read,
        file: &mut std::fs::File,
    ) -> Result<(), TreeRefusal> {
        let sizing = |source| TreeRefusal::System {
            step: "making its holes",
            source,
        };
        for &(offset, length) in &map.pieces {
            file.seek(SeekFrom::Start(offset)).map_err(sizing)?;
            self.copy(length, content, file)?;
        }
        file.set_len(map.size).map_err(sizing)
    }

    fn subdirectory(
        &mut self,
        entry: &Entry,
        parent: &OwnedFd,
        name: &[u8],
    ) -> Result<(), TreeRefusal> {
        let open = || openat(parent, name, OFlags::RDONLY | DIRECTORY, Mode::empty());
        match mkdirat(parent, name, Mode::RWXU) {
            Ok(()) => {}
            Err(Errno::EXIST) => {
                if !is_directory(parent, name).step("looking at what is there")? {
                    self.replace(parent, name)?;
                    mkdirat(parent, name, Mode::RWXU).step("creating the directory")?;
                }
            }
            Err(errno) => return Err(errno).step("creating the directory"),
        }
        self.finish_directory(entry, open())
    }

    fn finish_directory(
        &mut self,
        entry: &Entry,
        directory: Result<OwnedFd, Errno>,
    ) -> Result<(), TreeRefusal> {
        let directory = directory.step("opening the directory")?;
        // Without root's rights, files can only be put into directories that their owner can write to.
        let always = if self.ownership == Ownership::Keep {
            Mode::empty()
        } else {
            Mode::RWXU
        };
        self.set_metadata(directory.as_fd(), &entry.metadata, always)?;
        futimens(&directory, &timestamps(entry.metadata.modified)).step("setting its time")?;
        self.mark(directory.as_fd())
    }

    fn symlink(
        &mut self,
        entry: &Entry,
        parent: &OwnedFd,
        name: &[u8],
        target: &[u8],
    ) -> Result<(), TreeRefusal> {
        let create = || symlinkat(target, parent, name);
        match create() {
            Err(Errno::EXIST) => {
                self.replace(parent, name)?;
                create()
            }
            other => other,
        }
        .step("creating the symbolic link")?;
        self.set_metadata_of(parent, name, &entry.metadata)
    }

    fn fifo(&mut self, entry: &Entry, parent: &OwnedFd, name: &[u8]) -> Result<(), TreeRefusal> {
        let create =
            || rustix::fs::mkfifoat(parent, name, Mode::from_raw_mode(entry.metadata.mode));
        match create() {
            Err(Errno::EXIST) => {
                self.replace(parent, name)?;
                create()
            }
            other => other,
        }
        .step("creating the fifo")?;
        self.set_metadata_of(parent, name, &entry.metadata)?;
        // The umask was applied when it was made.
        let mode = Mode::from_raw_mode(entry.metadata.mode);
        chmodat(parent, name, mode, AtFlags::empty()).step("setting its mode")
    }

    /// Leaves an entry out: its path does not exist then, nor does a lower layer's file at it.
    fn leave_out(&mut self, parent: &OwnedFd, name: &[u8]) -> Result<(), TreeRefusal> {
        match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno).step("looking at what is there"),
            Ok(_) => self.replace(parent, name),
        }
    }

    fn hard_link(
        &mut self,
        parent: &OwnedFd,
        name: &[u8],
        target: &ImagePath,
    ) -> Result<(), TreeRefusal> {
        let missing = || TreeRefusal::NoTarget(target.to_string());
        let (target_parent, target_name) = target.split().ok_or_else(missing)?;
        let target_parent = self.directory(&target_parent, false)?;
        // Without AT_SYMLINK_FOLLOW a symbolic link itself is linked, not its target.
        let create = || linkat(&target_parent, target_name, parent, name, AtFlags::empty());
        match create() {
            Err(Errno::NOENT) => Err(missing()),
            Err(Errno::EXIST) => {
                let same = |a: Stat, b: Stat| (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino);
                let no_follow = AtFlags::SYMLINK_NOFOLLOW;
                let there = statat(parent, name, no_follow).step("looking at what is there")?;
                match statat(&target_parent, target_name, no_follow) {
                    Ok(wanted) if same(there, wanted) => return Ok(()),
                    Ok(_) => {}
                    Err(_) => return Err(missing()),
                }
                self.replace(parent, name)?;
                create().step("creating the hard link")
            }
            other => other.step("creating the hard link"),
        }
    }

    // --- metadata

    fn set_metadata(
        &self,
        fd: BorrowedFd<'_>,
        metadata: &Metadata,
        always: Mode,
    ) -> Result<(), TreeRefusal> {
        if self.ownership == Ownership::Keep {
            // Before the mode and the capabilities: a change of owner clears both.
            let (uid, gid) = owner(metadata);
            fchown(fd, uid, gid).step("setting its owner")?;
        }
        fchmod(fd, Mode::from_raw_mode(metadata.mode) | always).step("setting its mode")?;
        for (name, value) in &metadata.xattrs {
            let needed = match name.as_slice() {
                b"security.capability" => self.ownership == Ownership::Keep,
                // `user.overlay.` is left out: overlay mounts would act on it. Other `user.` attributes are set where the file system can.
                _ if name.starts_with(b"user.") && !name.starts_with(b"user.overlay.") => false,
                _ => continue,
            };
            if name.as_slice() == b"security.capability" && !needed {
                continue;
            }
            match fsetxattr(fd, name.as_slice(), value, XattrFlags::empty()) {
                Err(Errno::OPNOTSUPP) if !needed => {}
                result => result.step("setting an extended attribute")?,
            }
        }
        Ok(())
    }

    /// Sets the metadata of links and fifos, which cannot be opened without side effects.
    fn set_metadata_of(
        &mut self,
        parent: &OwnedFd,
        name: &[u8],
        metadata: &Metadata,
    ) -> Result<(), TreeRefusal> {
        let no_follow = AtFlags::SYMLINK_NOFOLLOW;
        if self.ownership == Ownership::Keep {
            let (uid, gid) = owner(metadata);
            chownat(parent, name, uid, gid, no_follow).step("setting its owner")?;
        }
        utimensat(parent, name, &timestamps(metadata.modified), no_follow)
            .step("setting its time")?;
        if !self.first_layer {
            let made = statat(parent, name, no_follow).step("looking at what was made")?;
            self.of_this_layer.insert(made.st_ino);
        }
        Ok(())
    }

    fn mark(&mut self, fd: BorrowedFd<'_>) -> Result<(), TreeRefusal> {
        if !self.first_layer {
            self.of_this_layer
                .insert(fstat(fd).step("looking at what was made")?.st_ino);
        }
        Ok(())
    }

    fn is_of_this_layer(&self, inode: u64) -> bool {
        self.first_layer || self.of_this_layer.contains(&inode)
    }

    // --- resolving paths

    /// The directory at that path; missing parts are made if `create` is set.
    fn directory(&mut self, path: &ImagePath, create: bool) -> Result<Arc<OwnedFd>, TreeRefusal> {
        if let Some((known, fd)) = &self.last_parent
            && known == path
        {
            return Ok(Arc::clone(fd));
        }
        let fd = Arc::new(self.find_directory(path, create)?);
        self.last_parent = Some((path.clone(), Arc::clone(&fd)));
        Ok(fd)
    }

    fn find_directory(&mut self, path: &ImagePath, create: bool) -> Result<OwnedFd, TreeRefusal> {
        let open = |resolve| {
            openat2(
                &self.root,
                c_path(path),
                OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
                Mode::empty(),
                CONFINED | resolve,
            )
        };
        let found = match open(ResolveFlags::NO_SYMLINKS) {
            // Links could lead deeper with every entry, and removing a tree takes a descriptor for each level.
            Err(Errno::LOOP) => match open(ResolveFlags::empty()) {
                Ok(fd) => {
                    self.check_depth(&fd)?;
                    Ok(fd)
                }
                Err(Errno::LOOP) => return Err(TreeRefusal::Links),
                other => other,
            },
            other => other,
        };
        match found {
            Ok(fd) => return Ok(fd),
            Err(Errno::NOENT) if create => {}
            Err(Errno::NOENT) => return Err(TreeRefusal::NoTarget(path.to_string())),
            Err(Errno::NOTDIR) => return Err(TreeRefusal::NotADirectory),
            Err(errno) => return Err(errno).step("finding its directory"),
        }
        let (parent, name) = path.split().ok_or(TreeRefusal::Root)?;
        let parent = self.find_directory(&parent, true)?;
        match self.imply(parent.as_fd(), name) {
            // The path did not exist, but its name does: a link to a path that does not exist yet.
            Err(TreeRefusal::System { source, .. })
                if source.kind() == io::ErrorKind::AlreadyExists =>
            {
                self.make_behind_links(path)
            }
            made => made,
        }
    }

    /// Makes a directory that the archive has no entry for.
    fn imply(&mut self, parent: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, TreeRefusal> {
        let before = Modified::of(parent)?;
        mkdirat(parent, name, IMPLIED).step("creating its directory")?;
        self.implied += 1;
        // Independent of the umask.
        chmodat(parent, name, IMPLIED, AtFlags::empty()).step("setting its directory's mode")?;
        before.put_back(parent)?;
        let made = openat(parent, name, OFlags::PATH | DIRECTORY, Mode::empty())
            .step("opening its directory")?;
        self.mark(made.as_fd())?;
        Ok(made)
    }

    /// Walks a path link by link, as the kernel does below a root, and makes the missing parts: the kernel makes nothing behind a link to a
    /// missing path.
    fn make_behind_links(&mut self, path: &ImagePath) -> Result<OwnedFd, TreeRefusal> {
        let open = |parent: BorrowedFd<'_>, name: &[u8]| {
            openat(parent, name, OFlags::PATH | DIRECTORY, Mode::empty())
        };
        // The root and the directories that the walk has passed; then the names still to come, the next one last.
        let mut passed = vec![open(self.root.as_fd(), b".").step("opening the root")?];
        let mut to_come: Vec<Vec<u8>> = backwards(path.as_bytes());
        let mut links = 0;
        while let Some(component) = to_come.pop() {
            match component.as_slice() {
                b"" | b"." => continue,
                b".." => {
                    // The parent of the root is the root.
                    passed.truncate((passed.len() - 1).max(1));
                    continue;
                }
                _ => {}
            }
            let here = passed[passed.len() - 1].as_fd();
            let next = match open(here, &component) {
                Err(Errno::NOENT) => self.imply(here, &component)?,
                Err(Errno::NOTDIR | Errno::LOOP) => {
                    let target = match readlinkat(here, component.as_slice(), Vec::new()) {
                        Err(Errno::INVAL) => return Err(TreeRefusal::NotADirectory),
                        target => target.step("reading a link on its path")?.into_bytes(),
                    };
                    links += 1;
                    if links > MOST_LINKS {
                        return Err(TreeRefusal::Links);
                    }
                    if target.starts_with(b"/") {
                        passed.truncate(1);
                    }
                    to_come.extend(backwards(&target));
                    continue;
                }
                next => next.step("opening a directory on its path")?,
            };
            passed.push(next);
            if passed.len() > DEEPEST {
                return Err(TreeRefusal::TooDeep);
            }
        }
        passed.pop().ok_or(TreeRefusal::Root)
    }

    fn check_depth(&self, directory: &OwnedFd) -> Result<(), TreeRefusal> {
        match depth(directory.as_fd()) {
            Ok(depth) if depth - self.root_depth.min(depth) <= DEEPEST => Ok(()),
            // So deep that the kernel has no room for its path.
            Ok(_) | Err(Errno::NAMETOOLONG) => Err(TreeRefusal::TooDeep),
            Err(errno) => Err(errno).step("looking how deep its directory is"),
        }
    }

    // --- removing

    /// Removes the file or directory at that name, to make room.
    fn replace(&mut self, parent: &OwnedFd, name: &[u8]) -> Result<(), TreeRefusal> {
        self.last_parent = None;
        remove(parent.as_fd(), name).step("removing what it replaces")
    }

    fn hide(&mut self, parent: &ImagePath, name: &[u8]) -> Result<(), TreeRefusal> {
        let Some(parent) = self.lower_directory(parent)? else {
            return Ok(());
        };
        let before = Modified::of(parent.as_fd())?;
        match self.remove_lower(parent.as_fd(), name) {
            Ok(_) => before.put_back(parent.as_fd()),
            Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno).step("removing what it hides"),
        }
    }

    fn hide_below(&mut self, path: &ImagePath) -> Result<(), TreeRefusal> {
        let Some(directory) = self.lower_directory(path)? else {
            return Ok(());
        };
        let before = Modified::of(directory.as_fd())?;
        self.remove_all_lower(directory.as_fd(), b".")
            .step("removing what it hides")?;
        before.put_back(directory.as_fd())
    }

    /// A directory that may hold files of lower layers.
    fn lower_directory(&mut self, path: &ImagePath) -> Result<Option<Arc<OwnedFd>>, TreeRefusal> {
        if self.first_layer {
            return Ok(None);
        }
        let found = self.directory(path, false);
        self.last_parent = None;
        match found {
            Ok(fd) => Ok(Some(fd)),
            Err(TreeRefusal::NoTarget(_) | TreeRefusal::NotADirectory) => Ok(None),
            Err(refusal) => Err(refusal),
        }
    }

    /// Removes the files of lower layers, and leaves those of this one, in any order of its archive. Returns whether the name is free now.
    fn remove_lower(&self, parent: BorrowedFd<'_>, name: &[u8]) -> Result<bool, Errno> {
        let stat = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let ours = self.is_of_this_layer(stat.st_ino);
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            if !ours {
                unlinkat(parent, name, AtFlags::empty())?;
            }
            return Ok(!ours);
        }
        let empty = self.remove_all_lower(parent, name)?;
        if empty && !ours {
            unlinkat(parent, name, AtFlags::REMOVEDIR)?;
        } else {
            utimensat(
                parent,
                name,
                &time_of_change(&stat),
                AtFlags::SYMLINK_NOFOLLOW,
            )?;
        }
        Ok(empty && !ours)
    }

    /// The same for all entries of a directory.
    fn remove_all_lower(&self, parent: BorrowedFd<'_>, name: &[u8]) -> Result<bool, Errno> {
        let mut empty = true;
        for_each_name(parent, name, |directory, child| {
            empty &= self.remove_lower(directory, child)?;
            Ok(())
        })?;
        Ok(empty)
    }
}

/// The time of a directory's last change, according to the image.
struct Modified(Timestamps);

impl Modified {
    fn of(directory: BorrowedFd<'_>) -> Result<Self, TreeRefusal> {
        let stat = fstat(directory).step("looking at its directory")?;
        Ok(Modified(time_of_change(&stat)))
    }

    /// Restores the time after a change that is not one of the image.
    fn put_back(self, directory: BorrowedFd<'_>) -> Result<(), TreeRefusal> {
        // By name, as the descriptor may be a path-only one.
        utimensat(directory, ".", &self.0, AtFlags::empty()).step("setting its directory's time")
    }
}

/// Number of names between the machine's root and a directory.
fn depth(directory: BorrowedFd<'_>) -> Result<usize, Errno> {
    let link = format!("/proc/self/fd/{}", directory.as_raw_fd());
    let path = readlinkat(CWD, link, Vec::new())?;
    let names = path.to_bytes().split(|&byte| byte == b'/');
    Ok(names.filter(|name| !name.is_empty()).count())
}

/// The components of a path, last one first.
fn backwards(path: &[u8]) -> Vec<Vec<u8>> {
    path.rsplit(|&byte| byte == b'/')
        .map(<[u8]>::to_vec)
        .collect()
}

fn remove(parent: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
    if !is_directory(parent, name)? {
        return unlinkat(parent, name, AtFlags::empty());
    }
    for_each_name(parent, name, remove)?;
    unlinkat(parent, name, AtFlags::REMOVEDIR)
}

fn is_directory(parent: impl AsFd, name: &[u8]) -> Result<bool, Errno> {
    let stat = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

/// Calls the function with each name of a directory, which may be removed meanwhile. Names are not collected: a directory may have half a
/// million.
fn for_each_name(
    parent: BorrowedFd<'_>,
    name: &[u8],
    mut each: impl FnMut(BorrowedFd<'_>, &[u8]) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let directory = openat(parent, name, OFlags::RDONLY | DIRECTORY, Mode::empty())?;
    let mut entries = Dir::read_from(&directory)?;
    while let Some(entry) = entries.read() {
        let entry = entry?;
        let child = entry.file_name().to_bytes();
        if child != b"." && child != b".." {
            each(directory.as_fd(), child)?;
        }
    }
    Ok(())
}

fn owner(metadata: &Metadata) -> (Option<Uid>, Option<Gid>) {
    (
        Some(Uid::from_raw(metadata.uid)),
        Some(Gid::from_raw(metadata.gid)),
    )
}

fn timestamps((tv_sec, nanoseconds): (i64, u32)) -> Timestamps {
    let time = Timespec {
        tv_sec,
        tv_nsec: nanoseconds.into(),
    };
    Timestamps {
        last_access: time,
        last_modification: time,
    }
}

/// The root is "." to the kernel.
fn c_path(path: &ImagePath) -> &[u8] {
    if path.as_bytes().is_empty() {
        b"."
    } else {
        path.as_bytes()
    }
}
