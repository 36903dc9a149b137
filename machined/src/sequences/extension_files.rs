//! Fetches the files of extensions, as publishers of sysexts offer them, and makes images of them in the store. A file that a bundle has
//! brought comes from the store: no server is asked for it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, Once};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use instar_bundle::BundledFile;
use instar_http_client::Client;
use loopdev::LoopControl;
use tokio::io::{AsyncWriteExt as _, BufWriter};
use tokio::task::JoinHandle;

use crate::base::blocking_io::{self, ANSWER};
use crate::base::lock::Lock as _;
use crate::base::removal;
use crate::config::{ExtensionFile, MachineConfig};

use crate::mounts::filesystem::{Filesystem, MountFlags};
use crate::mounts::transient_mount::TransientMount;
use crate::oci::bundled::{copy_file, kept_size};
use crate::oci::{ImageStore, take_file};
use crate::os_extensions::HOME;
use crate::sequences::owners_servers::{client, get};
use crate::values::ImageReference;
use crate::values::digest::{Digest, Hasher};

/// Limit on a file, in bytes: the largest that is published, with Kubernetes, has some 100 MB.
const LARGEST: u64 = 2 << 30;
/// Time limit for one fetch, beside the client's own limits for each step.
const FETCH: Duration = Duration::from_secs(3600);
/// Time limit for unpacking.
const UNPACK: Duration = Duration::from_secs(1800);
/// Bytes of a download that are written at once.
const WRITE: usize = 1 << 20;
/// The pause after a failure.
const PAUSE: Duration = Duration::from_secs(60);
/// The mount point of a file, used for nothing else.
const TARGET: &str = "/run/instar/extension";
/// Held by the one file that is unpacked: another one's mount would take the mount point from it in the middle of its copy.
static MOUNT_POINT: Mutex<()> = Mutex::new(());
/// The endings of files that are fetched, and of those that bundles bring.
const FETCHED: &str = "raw";
const BROUGHT: &str = "brought";
/// Whether the files were removed that a generation before has left, which a power cut or its end has cut off.
static TIDIED: Once = Once::new();
/// A file unpacks to at most this many times its size, for the room that is demanded.
const GROWTH: u64 = 4;

/// Files that are being fetched, and those whose fetch has failed.
#[derive(Default)]
pub(super) struct Fetches {
    running: BTreeMap<Digest, JoinHandle<anyhow::Result<()>>>,
    failed: BTreeMap<Digest, Failure>,
}

/// The failure of a fetch.
struct Failure {
    why: String,
    at: Instant,
    /// Whether a bundle had brought the file by then.
    was_brought: bool,
}

impl Failure {
    /// Whether the next try has to wait. Not for a file that a bundle has brought since.
    fn holds(&self, is_brought: bool) -> bool {
        self.at.elapsed() < PAUSE && (self.was_brought || !is_brought)
    }
}

impl Fetches {
    /// Goes on with a file that is not here: looks at its fetch, or begins it.
    ///
    /// # Errors
    /// Why the last fetch has failed; the next one follows after a pause.
    pub(super) async fn go_on(
        &mut self,
        store: &ImageStore,
        config: &MachineConfig,
        name: &ImageReference,
        file: &ExtensionFile,
    ) -> anyhow::Result<()> {
        let digest = file.sha256;
        let is_brought = kept_size(store, digest).is_some();
        if let Some(running) = self.running.get_mut(&digest) {
            if !running.is_finished() {
                return Ok(());
            }
            let ended = running.await.map_err(anyhow::Error::from).flatten();
            self.running.remove(&digest);
            if let Err(error) = ended {
                let failure = Failure {
                    why: format!("{error:#}"),
                    at: Instant::now(),
                    was_brought: is_brought,
                };
                self.failed.insert(digest, failure);
            }
        }
        if let Some(failure) = self.failed.get(&digest)
            && failure.holds(is_brought)
        {
            anyhow::bail!("{}", failure.why);
        }
        self.failed.remove(&digest);
        match is_brought {
            true => tracing::info!("the extension {} comes from a bundle", file.url),
            false => tracing::info!("the extension {} is fetched", file.url),
        }
        let fetch = fetch(client(config), store.clone(), name.clone(), file.clone());
        self.running.insert(digest, crate::base::task::spawn(fetch));
        Ok(())
    }
}

impl Drop for Fetches {
    fn drop(&mut self) {
        for running in self.running.values() {
            running.abort();
        }
    }
}

/// A file that is removed at the end.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.0) {
            tracing::debug!("{} stays: {error}", self.0.display());
        }
    }
}

/// Gets a file from the store or else from its server, compares it with its digest, and makes an image of it.
async fn fetch(
    client: Client,
    store: ImageStore,
    name: ImageReference,
    file: ExtensionFile,
) -> anyhow::Result<()> {
    let path = Path::new(HOME).join(format!("{}.{FETCHED}", file.sha256.hex()));
    let temporary = Temporary(path.clone());
    let (from, digest, to) = (store.clone(), file.sha256, path.clone());
    let copying = blocking_io::within(UNPACK, move || copy(&from, digest, &to));
    let bytes = match copying.await?? {
        Some(bytes) => bytes,
        None => tokio::time::timeout(FETCH, download(&client, &file, &path))
            .await
            .with_context(|| format!("{} is not here after {} s", file.url, FETCH.as_secs()))??,
    };
    let unpacking = move || make_image(&store, &name, bytes, &temporary.0);
    let made = blocking_io::within(UNPACK, unpacking).await?;
    made.with_context(|| format!("{} is no squashfs that can be unpacked", file.url))
}

/// Copies a file that a bundle has brought; returns its size, or `None` if none has.
fn copy(store: &ImageStore, digest: Digest, to: &Path) -> anyhow::Result<Option<u64>> {
    let Some(size) = kept_size(store, digest) else {
        return Ok(None);
    };
    make_room(to, size)?;
    Ok(copy_file(store, digest, to)?)
}

/// Makes an image of a file that a bundle brings. Blocks until it is in the store.
pub(super) fn take(
    store: &ImageStore,
    name: &ImageReference,
    file: &BundledFile,
    content: &mut dyn io::Read,
) -> anyhow::Result<()> {
    // Not the path of a fetch: the same file may be fetched at the same time.
    let path = Path::new(HOME).join(format!("{}.{BROUGHT}", file.digest().hex()));
    let temporary = Temporary(path.clone());
    make_room(&path, file.size())?;
    let mut copy = File::create(&path).with_context(|| format!("create {}", path.display()))?;
    let copied = io::copy(content, &mut copy);
    let bytes = copied.with_context(|| format!("copy to {}", path.display()))?;
    make_image(store, name, bytes, &temporary.0)
        .with_context(|| format!("{} is no squashfs that can be unpacked", file.name()))
}

fn make_image(
    store: &ImageStore,
    name: &ImageReference,
    bytes: u64,
    file: &Path,
) -> anyhow::Result<()> {
    Ok(take_file(store, name, bytes, |rootfs| {
        unpack(file, rootfs)
    })?)
}

/// Makes the directory of a file, and checks that it has room for a file of this size and for its unpacked files. Nobody makes a file there
/// before this, so that the first one finds nothing but what was left.
fn make_room(path: &Path, bytes: u64) -> anyhow::Result<()> {
    let directory = path.parent().unwrap_or(path);
    fs::create_dir_all(directory).with_context(|| format!("make {}", directory.display()))?;
    TIDIED.call_once(|| {
        if let Err(error) = remove_left(directory) {
            tracing::warn!("files of extensions that did not come whole stay: {error}");
        }
    });
    demand_room(directory, bytes.saturating_mul(GROWTH))
}

/// Removes the files of extensions that are in this directory, each a fetch that was cut off.
fn remove_left(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if [FETCHED, BROUGHT]
            .map(Some)
            .contains(&path.extension().and_then(|it| it.to_str()))
        {
            tracing::info!("{} did not come whole, and is removed", path.display());
            removal::file(&path)?;
        }
    }
    Ok(())
}

/// Downloads a file; returns its size.
async fn download(client: &Client, file: &ExtensionFile, path: &Path) -> anyhow::Result<u64> {
    let url = file.url.to_string();
    let mut answer = get(client, &url).await?;
    let length = answer.headers.get(http::header::CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    let place = path.to_owned();
    let create = move || {
        make_room(&place, length.unwrap_or_default())?;
        File::create(&place).with_context(|| format!("create {}", place.display()))
    };
    let out = blocking_io::within(ANSWER, create).await??;
    // A server sends pieces of any size, and each write is work of a thread.
    let mut out = BufWriter::with_capacity(WRITE, tokio::fs::File::from_std(out));
    let failed = || format!("write {}", path.display());
    let (mut hasher, mut bytes) = (Hasher::default(), 0);
    while let Some(piece) = answer
        .piece()
        .await
        .with_context(|| format!("fetch {url}"))?
    {
        bytes += piece.len() as u64;
        ensure!(bytes <= LARGEST, "{url} has more than {LARGEST} bytes");
        hasher.update(&piece);
        out.write_all(&piece).await.with_context(failed)?;
    }
    out.flush().await.with_context(failed)?;
    let found = hasher.finish();
    ensure!(
        found == file.sha256,
        "{url} is another file than the config names: its digest is {found}, and not {}",
        file.sha256
    );
    Ok(bytes)
}

fn demand_room(directory: &Path, bytes: u64) -> anyhow::Result<()> {
    let disk = rustix::fs::statvfs(directory).context("look at the room of /var")?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    ensure!(
        free >= bytes,
        "there is no room for it: it needs some {} MiB with its unpacked files, and {} MiB are free",
        bytes >> 20,
        free >> 20
    );
    Ok(())
}

/// Copies the files of a squashfs; returns their size.
fn unpack(file: &Path, to: &Path) -> io::Result<u64> {
    let _alone = MOUNT_POINT.locked();
    let through = LoopControl::open()?.next_free()?;
    through
        .with()
        .read_only(true)
        .autoclear(true)
        .attach(file)?;
    let node = through.path().ok_or(io::ErrorKind::NotFound)?;
    let filesystem = Filesystem {
        kind: "squashfs",
        source: &node,
        flags: MountFlags::RDONLY,
        options: "",
    };
    let mount = TransientMount::new(filesystem, Path::new(TARGET))?;
    copy_tree(mount.path(), to)
}

/// Copies a directory with all that is in it; returns the size of its files. Links are copied as links.
fn copy_tree(from: &Path, to: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type()?;
        if kind.is_dir() {
            fs::create_dir(&to)?;
            bytes += copy_tree(&from, &to)?;
            fs::set_permissions(&to, entry.metadata()?.permissions())?;
        } else if kind.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(&from)?, &to)?;
        } else if kind.is_file() {
            bytes += fs::copy(&from, &to)?;
        } else {
            let path = from.display();
            return Err(io::Error::other(format!(
                "{path} is no file, directory or link"
            )));
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_failure_holds_until_a_bundle_brings_the_file_or_its_pause_is_over() {
        let failure = |was_brought, age: Duration| Failure {
            why: "no route".to_owned(),
            at: Instant::now().checked_sub(age).unwrap(),
            was_brought,
        };
        for (was_brought, is_brought, expected) in [
            (false, false, true),
            (false, true, false),
            (true, true, true),
            (true, false, true),
        ] {
            let young = failure(was_brought, Duration::ZERO);
            assert_eq!(young.holds(is_brought), expected);
            assert!(!failure(was_brought, PAUSE).holds(is_brought));
        }
    }

    #[test]
    fn what_a_generation_before_has_left_is_removed_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let names = ["12ab.raw", "34cd.brought", "in-force.json", "raw"];
        for name in names {
            fs::write(directory.path().join(name), name).unwrap();
        }
        remove_left(directory.path()).unwrap();
        let stay = names.map(|name| directory.path().join(name).exists());
        assert_eq!(stay, [false, false, true, true]);
    }

    #[test]
    fn a_tree_is_copied_with_its_links_and_modes() {
        let directory = tempfile::tempdir().unwrap();
        let (from, to) = (directory.path().join("from"), directory.path().join("to"));
        fs::create_dir_all(from.join("usr/bin")).unwrap();
        fs::create_dir(&to).unwrap();
        fs::write(from.join("usr/bin/kubelet"), "program").unwrap();
        let mode = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        mode(&from.join("usr/bin/kubelet"), 0o755);
        mode(&from.join("usr"), 0o750);
        std::os::unix::fs::symlink("/var/x", from.join("usr/link")).unwrap();
        assert_eq!(copy_tree(&from, &to).unwrap(), 7);
        let copied = |path: &str| fs::symlink_metadata(to.join(path)).unwrap();
        assert_eq!(
            copied("usr/bin/kubelet").permissions().mode() & 0o777,
            0o755
        );
        assert_eq!(copied("usr").permissions().mode() & 0o777, 0o750);
        assert_eq!(
            fs::read_link(to.join("usr/link")).unwrap(),
            Path::new("/var/x")
        );
        let socket = std::os::unix::net::UnixListener::bind(from.join("socket")).unwrap();
        let again = directory.path().join("again");
        fs::create_dir(&again).unwrap();
        assert!(copy_tree(&from, &again).is_err());
        drop(socket);
    }
}
