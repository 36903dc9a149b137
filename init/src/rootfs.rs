//! The image of a generation: verified by its digest, then mounted through a loop device, not yet attached to a path.

use crate::failure::{Result, Step, fail};
use instar_init_protocol::{Blake3, Line};
use loopdev::{LoopControl, LoopDevice};
use rustix::fs::{SealFlags, fcntl_get_seals};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen,
};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// The seals of an image: after its verification it can be neither changed nor resized, and the seals stay.
const SEALS: SealFlags = SealFlags::WRITE
    .union(SealFlags::SHRINK)
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

/// A squashfs in RAM and its expected digest.
pub(crate) struct Image {
    file: File,
    digest: Blake3,
    /// machined's name for the version; the first image has none.
    pub(crate) version: Line,
}

/// A mounted image that is not attached to a path. Dropping it unmounts it and frees the loop device.
pub(crate) struct MountedImage {
    pub(crate) mount: OwnedFd,
    /// The name of the loop device, like `loop0`.
    pub(crate) device: String,
}

impl Image {
    /// The first image. Its name is removed, so that its RAM is free when it is dropped.
    pub(crate) fn of_initramfs() -> Result<Self> {
        let digest = fs::read_to_string("/rootfs.b3").step("read /rootfs.b3")?;
        let digest = digest.trim_end().parse();
        let file = File::open("/rootfs.squashfs").step("open /rootfs.squashfs")?;
        fs::remove_file("/rootfs.squashfs").step("remove /rootfs.squashfs")?;
        Ok(Self {
            file,
            digest: digest.step("use /rootfs.b3 as a digest")?,
            version: Line::lossy(""),
        })
    }

    /// A next image, received from machined.
    pub(crate) fn of_memfd(memfd: OwnedFd, digest: Blake3, version: Line) -> Result<Self> {
        // A file that is not a memfd has no seals.
        let missing = SEALS.difference(fcntl_get_seals(&memfd).unwrap_or(SealFlags::empty()));
        if !missing.is_empty() {
            return fail!(NotSealed: "the image lacks the seals {missing:?}");
        }
        Ok(Self {
            file: memfd.into(),
            digest,
            version,
        })
    }

    /// A path to the image. Opened by it, the file is read from its start, and is read-only: the descriptor of a memfd is writable, and so
    /// would be the loop device.
    fn path(&self) -> String {
        format!("/proc/self/fd/{}", self.file.as_raw_fd())
    }

    /// Verifies and mounts the image. Running programs are not disturbed.
    pub(crate) fn mount(&self) -> Result<MountedImage> {
        self.verify()?;
        // Another process may take the free device before it is attached.
        let device = self.attach().or_else(|_| self.attach())?;
        let path = device.path().unwrap_or_default();

        let squashfs = fsopen("squashfs", FsOpenFlags::FSOPEN_CLOEXEC).step("use squashfs")?;
        let created = fsconfig_set_string(&squashfs, "source", &*path)
            .and_then(|()| fsconfig_set_flag(&squashfs, "ro"))
            .and_then(|()| fsconfig_create(&squashfs));
        if let Err(error) = created {
            let why = kernel_messages(&squashfs);
            return fail!(NotMountable: "cannot mount the image as a squashfs: {error}{why}");
        }
        let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY | MountAttrFlags::MOUNT_ATTR_NODEV;
        let mount = fsmount(&squashfs, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
            .step("mount the image")?;
        let device = path.file_name().unwrap_or_default();
        let device = device.to_string_lossy().into_owned();
        Ok(MountedImage { mount, device })
    }

    fn verify(&self) -> Result<()> {
        let mut hasher = blake3::Hasher::new();
        File::open(self.path())
            .and_then(|file| hasher.update_reader(file).map(drop))
            .step("read the image")?;
        match (hasher.finalize().to_hex(), &self.digest) {
            (found, expected) if found.as_str() == expected.as_str() => Ok(()),
            (found, expected) => {
                fail!(WrongDigest: "the image hashes to {found}, not to {expected}")
            }
        }
    }

    /// Attaches the image to a loop device that goes away with its last user.
    fn attach(&self) -> Result<LoopDevice> {
        let control = LoopControl::open().step("open /dev/loop-control")?;
        let device = control.next_free().step("find a free loop device")?;
        let options = device.with().read_only(true).autoclear(true);
        let attached = options.attach(self.path());
        attached
            .map(|()| device)
            .step("attach the image to a loop device")
    }
}

/// Reads the image's machined into the page cache, so that it need not be unpacked piece by piece while no API answers.
pub(crate) fn read_machined_ahead(image: &MountedImage) {
    let path = format!("/proc/self/fd/{}/sbin/machined", image.mount.as_raw_fd());
    // Without it the start takes longer, and a machined that cannot be read shows there.
    let _ = File::open(path).and_then(|mut file| io::copy(&mut file, &mut io::sink()));
}

/// The kernel's messages about a failed mount, each as ` (…)`.
fn kernel_messages(filesystem: impl AsFd) -> String {
    let mut text = String::new();
    let mut message = [0; 256];
    while let Ok(length @ 1..) = rustix::io::read(&filesystem, &mut message) {
        let line = String::from_utf8_lossy(&message[..length]);
        // A letter for the severity comes first: "e " for an error.
        let words = line.split_once(' ').map_or(&*line, |(_, words)| words);
        text.push_str(&format!(" ({})", words.trim()));
    }
    text
}
