//! Runs the installer in its container and receives its output: the next root filesystem in a sealed memfd.

use std::fs::File;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SocketFlags,
    SocketType, recvmsg, socketpair,
};
use serde::Deserialize;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader, Interest};
use tokio::net::unix::pipe::Receiver;
use tokio::time::timeout;

use super::check::Candidate;
use super::installer_output::InstallerOutput;
use super::progress_sink::ProgressSink;
use super::unpacked::Unpacked;
use crate::base::blocking_io;
use crate::containers::{ContainerSpec, HostView, Runtime, Streams};
use crate::init_link::InitLink;
use crate::services::Cgroup;
use crate::services::one_shot::{OneShot, last_words};
use crate::sys::readiness;
use crate::values::{Mount, MountOption, MountSource, system_process};

/// The name of the installer's container and cgroup.
const CONTAINER: &str = system_process::INSTALLER;
/// The mount point of the EFI system partition in the container.
const ESP: &str = "/esp";
/// Time limit for the installer.
const PATIENCE: Duration = Duration::from_secs(600);
/// Time limit for the installer to end after its delivery; it has nothing else to do.
const LEAVE: Duration = Duration::from_secs(60);
/// Limit on the installer's message, in bytes: it is one small JSON object.
const LARGEST_MESSAGE: usize = 4096;

/// The place where the installer writes boot assets, on a machine that boots from its disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EspForInstaller {
    /// The mount point of the EFI system partition.
    pub folder: PathBuf,
    /// The order of the running boot entry, which must not be overwritten.
    pub running: Option<u32>,
}

#[derive(Deserialize)]
struct Message {
    rootfs: RootfsMessage,
    #[serde(default)]
    boot_entry: Option<u32>,
    /// Absent in messages of earlier versions, which take none.
    #[serde(default)]
    takes_sockets: bool,
}

#[derive(Deserialize)]
struct RootfsMessage {
    blake3: String,
    bytes: u64,
    version: String,
}

/// Runs the installer of a pulled image in its container, and receives its output.
pub async fn run(
    init: &InitLink,
    unpacked: &Unpacked,
    candidate: &Candidate,
    esp: Option<&EspForInstaller>,
    progress: &ProgressSink,
) -> anyhow::Result<InstallerOutput> {
    let (ours, theirs) = line()?;
    let name = CONTAINER.parse()?;
    let cgroup = Cgroup::beside_machined(CONTAINER)?;
    let mut spec = ContainerSpec::new(name, cgroup.path().to_owned());
    spec.args = vec!["install".to_owned(), "--upgrade".to_owned()];
    spec.read_only = true;
    if let Some(esp) = esp {
        spec.args.extend(["--esp".to_owned(), ESP.to_owned()]);
        if let Some(running) = esp.running {
            spec.args
                .extend(["--running".to_owned(), running.to_string()]);
        }
        let folder = esp.folder.to_str().context("the folder is not UTF-8")?;
        spec.mounts.push(Mount {
            source: MountSource::HostPath(folder.parse()?),
            destination: ESP.parse()?,
            options: vec![
                MountOption::ReadWrite,
                MountOption::NoSuid,
                MountOption::NoDev,
                MountOption::NoExec,
            ],
        });
    }
    let (output, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
        .context("make the output's pipe")?;
    let said = crate::base::task::spawn(collect(output, progress.clone()));
    let streams = Streams {
        stdout: write.try_clone()?,
        stderr: write,
    };
    let runtime = Runtime::of_the_generation();
    let host = HostView::default();
    let running = runtime
        .start(
            &spec,
            &unpacked.image,
            &unpacked.store,
            &host,
            streams,
            &[theirs],
        )
        .await?;
    let received = receive(ours, candidate).await;
    // An installer that failed has ended; one that delivered nothing in time gets no more time.
    let patience = match &received {
        Ok(_) => LEAVE,
        Err(_) => Duration::ZERO,
    };
    // This removes its mounts as well, so that the EFI system partition is free again.
    let ended = OneShot {
        what: "the installer",
        running,
        runtime: &runtime,
        store: &unpacked.store,
        init,
    };
    let ended = ended.end(patience).await?;
    let said = last_words(said).await;
    let delivery = received.with_context(|| format!("the installer said: {said}"))?;
    ended.check("the installer delivered, and said", &said)?;
    Ok(delivery)
}

/// Returns the installer's output, as much as fits into an error, and passes each line on as it comes.
async fn collect(output: OwnedFd, progress: ProgressSink) -> String {
    let Ok(output) = Receiver::from_owned_fd(output) else {
        return String::new();
    };
    let mut output = BufReader::new(output.take(LARGEST_MESSAGE as u64));
    let (mut said, mut line) = (String::new(), Vec::new());
    // Output that cannot be read is not shown.
    while let Ok(1..) = output.read_until(b'\n', &mut line).await {
        let text = String::from_utf8_lossy(&line);
        progress.say(text.trim_end());
        said.push_str(&text);
        line.clear();
    }
    // What does not fit is read all the same: a pipe that nobody reads would end the installer at its next word.
    let (mut rest, mut chunk) = (output.into_inner().into_inner(), [0; 1024]);
    while let Ok(1..) = rest.read(&mut chunk).await {}
    said
}

/// Compares the delivered root filesystem with its digest. init does that as well, but by then a refusal needs a reboot.
pub async fn verify(delivery: &InstallerOutput) -> anyhow::Result<()> {
    let file = File::from(delivery.memfd.try_clone().context("copy the descriptor")?);
    let hash = blocking_io::within(blocking_io::ANSWER, move || hash_from_start(&file)).await??;
    ensure!(
        hash == delivery.blake3,
        "the installer said {} of a root filesystem of digest {hash}",
        delivery.blake3
    );
    Ok(())
}

/// Hashes the file from its start. Leaves the position as it is, because others that share the open file read from it.
fn hash_from_start(file: &File) -> anyhow::Result<blake3::Hash> {
    let mut hasher = blake3::Hasher::new();
    let (mut piece, mut at) = (vec![0; 64 << 10], 0);
    loop {
        let read = file
            .read_at(&mut piece, at)
            .context("read the delivered root filesystem")?;
        if read == 0 {
            return Ok(hasher.finalize());
        }
        hasher.update(&piece[..read]);
        at += read as u64;
    }
}

/// Returns the two ends of the installer's socket: ours, and the descriptor that becomes its number 3.
pub fn line() -> anyhow::Result<(OwnedFd, OwnedFd)> {
    socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
    .context("make the installer's socket")
}

/// Receives the delivery and compares it with the image's labels. init verifies the bytes themselves.
pub async fn receive(ours: OwnedFd, candidate: &Candidate) -> anyhow::Result<InstallerOutput> {
    let socket =
        readiness::watch(ours, Interest::READABLE).context("watch the installer's socket")?;
    let received = socket.async_io(Interest::READABLE, receive_packet);
    let (packet, memfd) = timeout(PATIENCE, received)
        .await
        .with_context(|| {
            format!(
                "the installer delivered nothing within {} s",
                PATIENCE.as_secs()
            )
        })?
        .context("receive from the installer")?;
    ensure!(!packet.is_empty(), "the installer ended without a delivery");
    let message: Message =
        serde_json::from_slice(&packet).context("parse the installer's message")?;
    let memfd = memfd.context("the installer's message came without a memfd")?;
    check(&message.rootfs, candidate)?;
    let blake3 =
        blake3::Hash::from_hex(&message.rootfs.blake3).context("parse the delivered digest")?;
    Ok(InstallerOutput {
        memfd,
        blake3,
        boot_entry: message.boot_entry,
        takes_sockets: message.takes_sockets,
        signature: candidate.rootfs_signature.clone(),
    })
}

fn receive_packet(socket: &OwnedFd) -> std::io::Result<(Vec<u8>, Option<OwnedFd>)> {
    let mut bytes = vec![0; LARGEST_MESSAGE];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut bytes)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    if received
        .flags
        .intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC)
    {
        return Err(std::io::Error::other("the installer's message is too long"));
    }
    let memfd = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    bytes.truncate(received.bytes);
    Ok((bytes, memfd))
}

fn check(delivered: &RootfsMessage, candidate: &Candidate) -> anyhow::Result<()> {
    if delivered.version != candidate.version.to_string() {
        bail!(
            "the installer delivered version {}, the image's label says {}",
            delivered.version,
            candidate.version
        );
    }
    if delivered.bytes != candidate.rootfs_bytes {
        bail!(
            "the installer delivered {} bytes, the image's label says {}",
            delivered.bytes,
            candidate.rootfs_bytes
        );
    }
    if delivered.blake3 != candidate.rootfs.to_hex().as_str() {
        bail!(
            "the installer delivered a root filesystem of digest {}, the image's label says {}",
            delivered.blake3,
            candidate.rootfs
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    use std::io::IoSlice;
    use std::os::fd::AsFd as _;

    fn candidate() -> Candidate {
        Candidate {
            version: "v0.2.0".parse().unwrap(),
            architecture: "amd64".into(),
            kernel: blake3::hash(b"k"),
            init: blake3::hash(b"i"),
            rootfs: blake3::hash(b"r"),
            rootfs_bytes: 1,
            rootfs_signature: None,
            floor: None,
            upgrades_from: None,
            kernel_release: None,
        }
    }

    fn message(version: &str, digest: &blake3::Hash) -> String {
        format!(r#"{{"rootfs":{{"blake3":"{digest}","bytes":1,"version":"{version}"}}}}"#)
    }

    async fn deliver(text: &str, with_memfd: bool) -> anyhow::Result<InstallerOutput> {
        let (ours, theirs) = line().unwrap();
        let memfd = rustix::fs::memfd_create("t", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let descriptors = [memfd.as_fd()];
        if with_memfd {
            ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
        }
        sendmsg(
            &theirs,
            &[IoSlice::new(text.as_bytes())],
            &mut ancillary,
            SendFlags::empty(),
        )
        .unwrap();
        receive(ours, &candidate()).await
    }

    #[tokio::test]
    async fn a_delivery_that_fits_the_labels_is_taken() {
        let delivery = deliver(&message("v0.2.0", &blake3::hash(b"r")), true)
            .await
            .unwrap();
        assert_eq!(delivery.blake3, blake3::hash(b"r"));
        // It is of a version that does not know them.
        assert!(!delivery.takes_sockets);
    }

    #[tokio::test]
    async fn a_version_says_that_it_takes_sockets() {
        let text = message("v0.2.0", &blake3::hash(b"r"));
        let whole = text.strip_suffix('}').unwrap();
        for takes in [true, false] {
            let text = format!(r#"{whole},"takes_sockets":{takes}}}"#);
            let delivery = deliver(&text, true).await.unwrap();
            assert_eq!(delivery.takes_sockets, takes);
        }
    }

    #[tokio::test]
    async fn a_delivery_that_does_not_fit_is_refused() {
        for (text, with_memfd, complaint) in [
            (
                message("v0.3.0", &blake3::hash(b"r")),
                true,
                "version v0.3.0",
            ),
            (message("v0.2.0", &blake3::hash(b"other")), true, "digest"),
            (
                message("v0.2.0", &blake3::hash(b"r")),
                false,
                "without a memfd",
            ),
            ("hello".to_owned(), true, "parse the installer's message"),
        ] {
            let error = format!("{:#}", deliver(&text, with_memfd).await.unwrap_err());
            assert!(error.contains(complaint), "{error}");
        }
    }

    #[tokio::test]
    async fn what_was_delivered_is_what_was_said() {
        use std::io::Write as _;
        let memfd = rustix::fs::memfd_create("t", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let mut file = File::from(memfd);
        file.write_all(&[7; 200_000]).unwrap();
        let mut delivery = InstallerOutput {
            memfd: file.into(),
            blake3: blake3::hash(&[7; 200_000]),
            boot_entry: None,
            takes_sockets: false,
            signature: None,
        };
        verify(&delivery).await.unwrap();
        delivery.blake3 = blake3::hash(b"another");
        assert!(verify(&delivery).await.is_err());
    }

    /// A later version may have more to say than an error quotes.
    #[tokio::test]
    async fn an_installer_that_says_a_lot_is_heard_to_its_end() {
        use std::io::Write as _;
        let (read, write) = rustix::pipe::pipe().unwrap();
        let words = "a line of an installer\n".repeat(8000);
        let says = std::thread::spawn(move || File::from(write).write_all(words.as_bytes()));
        let said = collect(read, ProgressSink::silent()).await;
        says.join().unwrap().unwrap();
        assert_eq!(said.len(), LARGEST_MESSAGE);
    }

    #[tokio::test]
    async fn an_installer_that_dies_is_noticed() {
        let (ours, theirs) = line().unwrap();
        drop(theirs);
        let error = receive(ours, &candidate()).await.unwrap_err();
        assert!(
            error.to_string().contains("without a delivery"),
            "{error:#}"
        );
    }
}
