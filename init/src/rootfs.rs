//! The image of a generation: verified by its digest, then mounted through a loop device, attached to no path yet.

use crate::failure::{Failure, Result, Step};
use crate::sys;
use instar_init_protocol::{Blake3, ErrorCode, Line};
use loopdev::LoopControl;
use rustix::fs::{AtFlags, SealFlags, fcntl_get_seals, statat};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen,
};
use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

/// Nobody can change or shorten the image after it was verified, nor undo that.
const SEALS: SealFlags = SealFlags::WRITE
    .union(SealFlags::SHRINK)
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

/// What an image must have for a generation to start in it.
const NEEDED: [&str; 5] = ["sbin/machined", "proc", "sys", "dev", "run"];

/// A squashfs in RAM and what it must hash to.
pub(crate) struct Image {
    file: File,
    digest: Blake3,
    /// What machined calls it; the first one has no name.
    pub(crate) version: Option<Line>,
}

/// A mounted image that is attached to no path. Dropping it unmounts, and the loop device goes with it.
pub(crate) struct MountedImage {
    pub(crate) mount: OwnedFd,
    /// The name of the loop device, like `loop0`.
    pub(crate) device: String,
}

impl Image {
    /// The first image. Its name is removed, so that its RAM is free when it is dropped.
    pub(crate) fn of_initramfs(image: &Path, digest: &Path) -> Result<Self> {
        let text = fs::read_to_string(digest).step(format_args!("read {}", digest.display()))?;
        let digest = text
            .trim_end()
            .parse()
            .step(format_args!("use {}: the digest", digest.display()))?;
        let file = File::open(image).step(format_args!("open {}", image.display()))?;
        fs::remove_file(image).step(format_args!("remove {}", image.display()))?;
        Ok(Self {
            file,
            digest,
            version: None,
        })
    }

    /// A next image, from machined.
    pub(crate) fn of_memfd(memfd: OwnedFd, digest: Blake3, version: Line) -> Result<Self> {
        match fcntl_get_seals(&memfd) {
            Ok(seals) if seals.contains(SEALS) => {}
            Ok(seals) => {
                let missing = SEALS.difference(seals);
                return Err(Failure::new(
                    ErrorCode::NotSealed,
                    format_args!("the memfd lacks the seals {missing:?}"),
                ));
            }
            Err(_) => {
                return Err(Failure::new(
                    ErrorCode::NotSealed,
                    "the image is not a memfd that takes seals",
                ));
            }
        }
        Ok(Self {
            file: File::from(memfd),
            digest,
            version: Some(version),
        })
    }

    /// Verifies and mounts. This disturbs nothing that runs.
    pub(crate) fn mount(&self) -> Result<MountedImage> {
        self.verify()?;
        let device = self.attach()?;
        let path = device.path().unwrap_or_default();
        let not_mountable = |text: String| Failure::new(ErrorCode::NotMountable, text);

        let squashfs =
            fsopen("squashfs", FsOpenFlags::FSOPEN_CLOEXEC).step("open the filesystem squashfs")?;
        let created = fsconfig_set_string(&squashfs, "source", &*path)
            .and_then(|()| fsconfig_set_flag(&squashfs, "ro"))
            .and_then(|()| fsconfig_create(&squashfs));
        if let Err(error) = created {
            let why = kernel_messages(&squashfs);
            return Err(not_mountable(format!(
                "cannot mount the image as a squashfs: {error}{why}"
            )));
        }
        let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY | MountAttrFlags::MOUNT_ATTR_NODEV;
        let mount = fsmount(&squashfs, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
            .step("mount the image")?;
        for path in NEEDED {
            if let Err(error) = statat(&mount, path, AtFlags::SYMLINK_NOFOLLOW) {
                return Err(not_mountable(format!(
                    "the image is not a root filesystem: /{path}: {error}"
                )));
            }
        }
        let device = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        Ok(MountedImage { mount, device })
    }

    fn verify(&self) -> Result<()> {
        let digest = |bytes: &[u8]| Blake3::from(*blake3::hash(bytes).as_bytes());
        let found = sys::with_mapped(&self.file, digest).step("map the image")?;
        if found == self.digest {
            return Ok(());
        }
        let text = format_args!("the image hashes to {found}, not to {}", self.digest);
        Err(Failure::new(ErrorCode::WrongDigest, text))
    }

    /// Attaches the image to a loop device that goes away with its last user.
    fn attach(&self) -> Result<loopdev::LoopDevice> {
        let control = LoopControl::open().step("open /dev/loop-control")?;
        // Opened by its path: the descriptor of a memfd is writable, and the loop device would be, too.
        let backing = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let mut last = None;
        // Somebody else may take the free device between the two calls.
        for _ in 0..8 {
            let device = control.next_free().step("find a free loop device")?;
            match device
                .with()
                .read_only(true)
                .autoclear(true)
                .attach(&backing)
            {
                Ok(()) => return Ok(device),
                Err(error) => last = Some(error),
            }
        }
        let error = last.map(|error| error.to_string()).unwrap_or_default();
        Err(Failure::new(
            ErrorCode::Kernel,
            format_args!("cannot attach the image to a loop device: {error}"),
        ))
    }
}

/// The kernel's own words about a failed mount, each as ` (…)`.
fn kernel_messages(filesystem: impl AsFd) -> String {
    let mut text = String::new();
    let mut message = [0; 256];
    while let Ok(length @ 1..) = rustix::io::read(&filesystem, &mut message) {
        let line = String::from_utf8_lossy(message.get(..length).unwrap_or_default());
        // Before the words is a letter for how grave it is: "e " for an error.
        let words = line.split_once(' ').map_or(&*line, |(_, words)| words);
        text.push_str(&format!(" ({})", words.trim()));
    }
    text
}
