//! machined's API over a machine that has not booted: its real parts, without any state of this host.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use instar_init_protocol::{
    BootId, Line, RecvFlags, Reply, Request, SendFlags, Welcome, receive, send,
};
use instar_oci::{ImageStore, Keeps};
use machined::disk::{OwnedDisk, Paths};
use machined::init_link::InitLink;
use machined::machine::{Generation, Machine, Parts};
use machined::network::{CleanupPolicy, Network, Options};
use machined::services::LogRing;
use machined::time::{Beforehand, ClockSpec, TimeSync};
use machined::trust::PinnedKey;
use machined::upgrade::{FailedImages, RunningSystem};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

const BOOT_ID: &str = "00000000-0000-4000-8000-000000000001";

/// Returns a machine whose files would be in this directory.
pub(crate) async fn unbooted(directory: &Path) -> anyhow::Result<Arc<Machine>> {
    let (init, theirs) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .context("make the socket to init")?;
    std::thread::spawn(move || {
        if let Err(error) = be_init(&init) {
            eprintln!("init's part: {error:#}");
        }
    });
    let (init, introduction) = InitLink::connect(theirs).await?;
    let welcome = introduction.welcome;
    let options = Options {
        etc: directory.join("etc"),
        cleanup: CleanupPolicy::Keep,
        ..Options::default()
    };
    let clock = ClockSpec {
        enabled: false,
        servers: Vec::new(),
    };
    Ok(Arc::new(Machine::new(Parts {
        running: RunningSystem {
            version: "v0.1.0".to_owned(),
            architecture: "amd64".to_owned(),
            kernel: None,
            init: blake3::hash(b"none"),
            floor: None,
        },
        generation: Generation {
            number: welcome.generation,
            boot_id: welcome.boot_id,
            kernel_boot_id: welcome.kernel_boot_id,
            keeps_workloads: false,
        },
        init,
        images: ImageStore::new(directory.join("images"), Keeps::ImagesAlone),
        own_log: LogRing::default(),
        // Without a spec the network changes nothing.
        network: Network::start(options, None, Vec::new()).context("look at the network")?,
        disk: OwnedDisk::new(Paths::default()),
        clock: TimeSync::start(clock, 0, Beforehand::Nothing),
        failed: FailedImages::default(),
        floor: None,
        images_in_force: Default::default(),
        image_updates: Default::default(),
        pins: Default::default(),
        own_certificates: None,
        granted_certificate: None,
        pinned_key: PinnedKey::default(),
        kept: Default::default(),
    })))
}

/// Plays init: greets as init does, and agrees to all other requests.
fn be_init(socket: &OwnedFd) -> anyhow::Result<()> {
    loop {
        let (packet, _) = receive(socket, RecvFlags::empty())?;
        if packet.is_empty() {
            return Ok(());
        }
        let reply = match Request::parse(&packet) {
            Ok(Request::Hello) => Reply::Welcome(welcome()?),
            Ok(request) => Reply::Ok {
                to: Line::lossy(request.verb()),
            },
            Err(error) => bail!("machined asks what init does not know: {}", error.text),
        };
        send(socket, &reply.encode(), &[], SendFlags::empty())?;
    }
}

fn welcome() -> anyhow::Result<Welcome> {
    let boot_id: BootId = BOOT_ID.parse()?;
    Ok(Welcome {
        generation: 1,
        deadline: 300,
        ..Welcome::of_kernel(boot_id)
    })
}
