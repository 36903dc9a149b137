//! Root filesystems of other versions: broken ones, for rollbacks, and one of another name.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::image_under_test::ImageUnderTest;
use crate::oci_image::OciImage;
use crate::run_command::run;
use crate::scratch::Scratch;
use crate::workspace::guest_program;

/// The message for a missing program: its package.
const PACKAGE: &str = "mksquashfs and unsquashfs are in the package squashfs-tools";
/// Mount points that init and machined need in every root filesystem (docs/contracts.md).
const MOUNT_POINTS: [&str; 7] = ["proc", "sys", "dev", "run", "tmp", "var", "etc/instar"];

/// Returns a root filesystem with the double of `tests/double` as machined, and this script.
pub fn rootfs_with_script(scratch: &Scratch, name: &str, script: &str) -> Result<Vec<u8>> {
    let tree = scratch.join(name);
    for directory in MOUNT_POINTS.iter().chain(&["sbin"]) {
        std::fs::create_dir_all(tree.join(directory))
            .with_context(|| format!("cannot make {directory} in {}", tree.display()))?;
    }
    put_program(
        &tree.join("sbin/machined"),
        &guest_program("machined-double")?,
    )?;
    std::fs::write(tree.join("script"), script)?;
    squash(&tree)
}

impl OciImage {
    /// Turns an installer image into one of a version that gives itself up for this reason.
    pub fn giving_up(self, scratch: &Scratch, version: &str, reason: &str) -> Result<Self> {
        let script = format!("hello\ngive-up {reason}\n");
        self.installing(version, &rootfs_with_script(scratch, version, &script)?)
    }
}

/// Returns the image's root filesystem with a container runtime that cannot be run.
pub fn rootfs_without_runtime(
    scratch: &Scratch,
    name: &str,
    image: &ImageUnderTest,
) -> Result<Vec<u8>> {
    let tree = unpacked(scratch, name, image)?;
    put_program(&tree.join("usr/bin/crun"), b"no program at all")?;
    squash(&tree)
}

/// Returns the image's root filesystem under another version's name.
pub fn rootfs_of_version(
    scratch: &Scratch,
    image: &ImageUnderTest,
    version: &str,
) -> Result<Vec<u8>> {
    let tree = unpacked(scratch, version, image)?;
    let itself = tree.join("usr/lib/instar/image.json");
    let said = std::fs::read_to_string(&itself)?;
    let [old, new] = [image.version(), version].map(|it| format!("\"version\":\"{it}\""));
    ensure!(said.contains(&old), "no {old} in {said}");
    std::fs::write(&itself, said.replace(&old, &new))?;
    squash(&tree)
}

/// Returns the image's root filesystem with a container runtime that makes the machine hang, of the same size as the
/// image's own.
pub fn rootfs_that_hangs(scratch: &Scratch, name: &str, image: &ImageUnderTest) -> Result<Vec<u8>> {
    let tree = unpacked(scratch, name, image)?;
    put_program(
        &tree.join("usr/bin/crun"),
        &guest_program("machined-double")?,
    )?;
    as_large_as(image, squash_at(&tree, SMALL)?)
}

/// Returns the image's root filesystem with a machined that dies once when the machine boots, and then works. It has
/// the same size, and runs no containers.
pub fn rootfs_that_dies_once(
    scratch: &Scratch,
    name: &str,
    image: &ImageUnderTest,
) -> Result<Vec<u8>> {
    let script = format!("hello\n@boot exit 9\nbecome /{MACHINED_ITSELF}\n");
    let tree = behind_the_double(scratch, name, image, &script)?;
    // The double needs crun's room.
    std::fs::remove_file(tree.join("usr/bin/crun"))?;
    as_large_as(image, squash_at(&tree, SMALL)?)
}

/// Returns the image's root filesystem with a saboteur beside machined, which listens on this port of the machine
/// (`tests/double/src/saboteur.rs`).
pub fn rootfs_with_saboteur(
    scratch: &Scratch,
    name: &str,
    image: &ImageUnderTest,
    port: u16,
) -> Result<Vec<u8>> {
    let script = format!("saboteur {port}\nbecome /{MACHINED_ITSELF}\n");
    squash(&behind_the_double(scratch, name, image, &script)?)
}

/// The path of the real machined: the double is in its place, and becomes it.
const MACHINED_ITSELF: &str = "usr/sbin/machined-itself";

fn behind_the_double(
    scratch: &Scratch,
    name: &str,
    image: &ImageUnderTest,
    script: &str,
) -> Result<PathBuf> {
    let tree = unpacked(scratch, name, image)?;
    let machined = tree.join("usr/sbin/machined");
    std::fs::rename(&machined, tree.join(MACHINED_ITSELF))?;
    put_program(&machined, &guest_program("machined-double")?)?;
    for other in ["apid", "dashboard"] {
        let link = tree.join("usr/sbin").join(other);
        std::fs::remove_file(&link)?;
        std::os::unix::fs::symlink("machined-itself", &link)?;
    }
    std::fs::write(tree.join("script"), script)?;
    Ok(tree)
}

/// Pads a root filesystem with zeros to the size of the image's own.
fn as_large_as(image: &ImageUnderTest, mut rootfs: Vec<u8>) -> Result<Vec<u8>> {
    let bytes = usize::try_from(std::fs::metadata(image.rootfs())?.len())?;
    ensure!(
        rootfs.len() <= bytes,
        "it has {} bytes, there is room for {bytes}",
        rootfs.len()
    );
    rootfs.resize(bytes, 0);
    Ok(rootfs)
}

fn unpacked(scratch: &Scratch, name: &str, image: &ImageUnderTest) -> Result<PathBuf> {
    let tree = scratch.join(name);
    let mut unpack = Command::new("unsquashfs");
    unpack.arg("-quiet").arg("-no-progress").arg("-dest");
    run(unpack.arg(&tree).arg(image.rootfs())).context(PACKAGE)?;
    Ok(tree)
}

fn put_program(path: &Path, content: &[u8]) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    let what = || format!("cannot write {}", path.display());
    std::fs::write(path, content).with_context(what)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).with_context(what)
}

/// Levels of zstd.
const QUICK: &str = "1";
const SMALL: &str = "22";

/// Makes a squashfs quickly rather than small.
pub(crate) fn squash(tree: &Path) -> Result<Vec<u8>> {
    squash_at(tree, QUICK)
}

fn squash_at(tree: &Path, level: &str) -> Result<Vec<u8>> {
    let file = tree.with_extension("squashfs");
    let mut pack = Command::new("mksquashfs");
    pack.arg(tree).arg(&file);
    run(pack
        .args([
            "-noappend",
            "-quiet",
            "-no-progress",
            "-all-root",
            "-comp",
            "zstd",
        ])
        .args(["-Xcompression-level", level]))
    .context(PACKAGE)?;
    std::fs::read(&file).with_context(|| format!("cannot read {}", file.display()))
}
