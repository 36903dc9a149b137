//! The directory that layers are merged into.
//!
//! Every path is resolved by the kernel from the root's descriptor (openat2, confined to it); the last component is
//! never followed. Symbolic links that lead out of the root are followed, inside the root, only where images really
//! need it: an absolute one of a lower layer (`/var/run` → `/run`). Anything else that leads out is refused.

use std::collections::HashSet;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{
    AtFlags, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid, XattrFlags,
    chmodat, chownat, fchmod, fchown, fsetxattr, fstat, futimens, linkat, mkdirat, openat, openat2,
    readlinkat, statat, symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;

use super::Ownership;
use super::entry::{Change, Entry, Metadata};
use super::path::ImagePath;

/// Components looked at on one path, those of its links counted. The kernel ends at 40 links.
const MOST_STEPS: usize = 4096;
/// What is copied at a time.
const BUFFER: usize = 64 * 1024;

/// Why the directory is not changed as an entry wants it.
#[derive(Debug, thiserror::Error)]
pub enum TreeRefusal {
    /// The escape.
    #[error("its path leads out of the image through the symbolic link {link:?} to {target:?}")]
    Escape {
        /// Path of the link in the image.
        link: String,
        /// What it points to.
        target: String,
    },
    /// A link to nothing on the way.
    #[error("its path goes through a symbolic link that leads nowhere in the image")]
    Nowhere,
    /// A file on the way.
    #[error("its path goes through something that is not a directory")]
    NotADirectory,
    /// A hard link's target.
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
        /// What was tried.
        step: &'static str,
        /// The kernel's word.
        source: io::Error,
    },
}

/// Names the step that a kernel call belongs to.
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
    /// Inodes that the layer at work made or touched; empty for the first one, where that goes for all.
    of_this_layer: HashSet<u64>,
    /// Directories get their time last: every file made in them changes it.
    directory_times: Vec<(ImagePath, (i64, u32))>,
    /// Archives list a directory's files one after the other.
    last_parent: Option<(ImagePath, Arc<OwnedFd>)>,
    buffer: Vec<u8>,
}

/// The mode of directories that an archive has no entry for.
const IMPLIED: Mode = Mode::from_raw_mode(0o755);
const DIRECTORY: OFlags = OFlags::DIRECTORY
    .union(OFlags::CLOEXEC)
    .union(OFlags::NOFOLLOW);
const CONFINED: ResolveFlags = ResolveFlags::NO_MAGICLINKS.union(ResolveFlags::NO_XDEV);

impl Tree {
    pub(super) fn open(root: &Path, ownership: Ownership) -> io::Result<Self> {
        let root = rustix::fs::open(root, OFlags::RDONLY | DIRECTORY, Mode::empty())?;
        Ok(Tree {
            root,
            ownership,
            first_layer: true,
            of_this_layer: HashSet::new(),
            directory_times: Vec::new(),
            last_parent: None,
            buffer: vec![0; BUFFER],
        })
    }

    /// The next layer comes on top of what is here now.
    pub(super) fn end_layer(&mut self) -> io::Result<()> {
        for (path, modified) in std::mem::take(&mut self.directory_times) {
            let flags = OFlags::RDONLY | DIRECTORY;
            match openat2(
                &self.root,
                c_path(&path),
                flags,
                Mode::empty(),
                CONFINED | ResolveFlags::NO_SYMLINKS,
            ) {
                Ok(directory) => futimens(&directory, &timestamps(modified))?,
                // The same layer replaced it.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        self.first_layer = false;
        self.of_this_layer = HashSet::new();
        self.last_parent = None;
        Ok(())
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
            (change, Some((parent, name))) => {
                let parent = self.directory(&parent, true)?;
                match change {
                    Change::File { size } => self.file(entry, &parent, name, *size, content),
                    Change::Directory => self.subdirectory(entry, &parent, name),
                    Change::Symlink { target } => self.symlink(entry, &parent, name, target),
                    Change::HardLink { target } => self.hard_link(&parent, name, target),
                    Change::Fifo => self.fifo(entry, &parent, name),
                    Change::Opaque | Change::Whiteout | Change::Nothing => Ok(()),
                }
            }
        }
    }

    // --- making things

    fn file(
        &mut self,
        entry: &Entry,
        parent: &OwnedFd,
        name: &[u8],
        size: u64,
        content: &mut impl Read,
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
        self.copy(size, content, &mut file)?;
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
        self.directory_times
            .push((entry.path.clone(), entry.metadata.modified));
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
        self.set_metadata_of(parent, name, &entry.metadata)
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
        // Without AT_SYMLINK_FOLLOW a symbolic link is linked itself, not what it points to.
        let create = || linkat(&target_parent, target_name, parent, name, AtFlags::empty());
        match create() {
            Err(Errno::NOENT) => Err(missing()),
            Err(Errno::EXIST) => {
                let same = |a: rustix::fs::Stat, b: rustix::fs::Stat| {
                    (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino)
                };
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
                // Overlay mounts give names of their own a meaning; nobody else's are ours to judge.
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

    /// For what cannot be opened without effect: links and fifos.
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

    // --- finding the way

    /// The directory of that path, made with what is missing on the way if so wanted.
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
        let found = match open(ResolveFlags::BENEATH) {
            // A symbolic link leads out of the root: an escape, or one of those that are read from the root on.
            Err(Errno::XDEV) => {
                self.refuse_escapes(path)?;
                open(ResolveFlags::IN_ROOT)
            }
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
        match mkdirat(&parent, name, IMPLIED) {
            // Whatever the umask is.
            Ok(()) => chmodat(&parent, name, IMPLIED, AtFlags::empty())
                .step("setting its directory's mode")?,
            // Followed, it was not there: a link to nothing.
            Err(Errno::EXIST) => return Err(TreeRefusal::Nowhere),
            Err(errno) => return Err(errno).step("creating its directory"),
        }
        let made = openat(&parent, name, OFlags::PATH | DIRECTORY, Mode::empty())
            .step("opening its directory")?;
        self.mark(made.as_fd())?;
        Ok(made)
    }

    /// Walks a path link by link, as the kernel does, and ends in an error where a symbolic link leads over the root,
    /// or is absolute and of this very layer. What is missing on the way is the caller's business.
    fn refuse_escapes(&self, path: &ImagePath) -> Result<(), TreeRefusal> {
        // Directories below the root that the walk has come through, and what is still to come, next one last.
        let mut passed: Vec<Vec<u8>> = Vec::new();
        let mut to_come: Vec<Vec<u8>> = backwards(path.as_bytes());
        let mut last_link = (Vec::new(), Vec::new());
        for _ in 0..MOST_STEPS {
            let Some(component) = to_come.pop() else {
                return Ok(());
            };
            match component.as_slice() {
                b"" | b"." => continue,
                b".." => {
                    if passed.pop().is_none() {
                        return Err(escape(&last_link));
                    }
                    continue;
                }
                _ => passed.push(component),
            }
            let here = passed.join(&b'/');
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let resolve = CONFINED | ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
            let Ok(fd) = openat2(&self.root, here.as_slice(), flags, Mode::empty(), resolve) else {
                return Ok(());
            };
            let stat = fstat(&fd).step("looking at a link on its path")?;
            if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
                continue;
            }
            let target = readlinkat(&fd, "", Vec::new())
                .step("reading a link on its path")?
                .into_bytes();
            last_link = (here, target);
            passed.pop();
            if last_link.1.starts_with(b"/") {
                if self.is_of_this_layer(stat.st_ino) {
                    return Err(escape(&last_link));
                }
                passed.clear();
            }
            to_come.extend(backwards(&last_link.1));
        }
        Ok(())
    }

    // --- taking things away

    /// Removes whatever has that name, to make room.
    fn replace(&mut self, parent: &OwnedFd, name: &[u8]) -> Result<(), TreeRefusal> {
        self.last_parent = None;
        remove(parent.as_fd(), name).step("removing what it replaces")
    }

    fn hide(&mut self, parent: &ImagePath, name: &[u8]) -> Result<(), TreeRefusal> {
        let Some(parent) = self.lower_directory(parent)? else {
            return Ok(());
        };
        match self.remove_lower(parent.as_fd(), name) {
            Ok(_) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno).step("removing what it hides"),
        }
    }

    fn hide_below(&mut self, path: &ImagePath) -> Result<(), TreeRefusal> {
        let Some(directory) = self.lower_directory(path)? else {
            return Ok(());
        };
        let readable = openat(&directory, ".", OFlags::RDONLY | DIRECTORY, Mode::empty())
            .step("opening what it hides")?;
        for name in names(&readable).step("listing what it hides")? {
            self.remove_lower(readable.as_fd(), &name)
                .step("removing what it hides")?;
        }
        Ok(())
    }

    /// A directory in which something of lower layers may be.
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

    /// Removes what lower layers brought, and leaves what this one did, in whatever order its archive has them.
    /// Says whether the name is free now.
    fn remove_lower(&self, parent: BorrowedFd<'_>, name: &[u8]) -> Result<bool, Errno> {
        let stat = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let ours = self.is_of_this_layer(stat.st_ino);
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            if !ours {
                unlinkat(parent, name, AtFlags::empty())?;
            }
            return Ok(!ours);
        }
        let directory = openat(parent, name, OFlags::RDONLY | DIRECTORY, Mode::empty())?;
        let mut empty = true;
        for child in names(&directory)? {
            empty &= self.remove_lower(directory.as_fd(), &child)?;
        }
        if empty && !ours {
            unlinkat(parent, name, AtFlags::REMOVEDIR)?;
        }
        Ok(empty && !ours)
    }
}

/// The components of a path, last one first.
fn backwards(path: &[u8]) -> Vec<Vec<u8>> {
    path.rsplit(|&byte| byte == b'/')
        .map(<[u8]>::to_vec)
        .collect()
}

fn escape((link, target): &(Vec<u8>, Vec<u8>)) -> TreeRefusal {
    TreeRefusal::Escape {
        link: format!("/{}", link.escape_ascii()),
        target: target.escape_ascii().to_string(),
    }
}

fn remove(parent: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
    if !is_directory(parent, name)? {
        return unlinkat(parent, name, AtFlags::empty());
    }
    let directory = openat(parent, name, OFlags::RDONLY | DIRECTORY, Mode::empty())?;
    for child in names(&directory)? {
        remove(directory.as_fd(), &child)?;
    }
    unlinkat(parent, name, AtFlags::REMOVEDIR)
}

fn is_directory(parent: impl AsFd, name: &[u8]) -> Result<bool, Errno> {
    let stat = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

fn names(directory: &OwnedFd) -> Result<Vec<Vec<u8>>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(name);
        }
    }
    Ok(names)
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
