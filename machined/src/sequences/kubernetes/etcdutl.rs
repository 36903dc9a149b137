//! etcdutl, which restores snapshots of etcd: run to its end, in a container of etcd's own image.
//!
//! The decision: etcd's image has etcdutl beside etcd, and so in the very version that will read the restored data. (Those of the etcd project have
//! it, and registry.k8s.io/etcd of today.) The other choices are a program of the base, whose version is that of the OS, and code of our own for etcd's database and log, whose format changes with etcd.

use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::Context as _;

use crate::containers::{ContainerSpec, HostView, RunAs, Runtime, Streams, Tail};
use crate::kubernetes::control_plane::recovery;
use crate::machine::Machine;
use crate::oci::VerifiedImage;
use crate::services::Cgroup;
use crate::services::one_shot::{OneShot, last_words};
use crate::values::{Mount, MountOption, MountSource, system_process};

/// The program; its container and cgroup have its name.
const PROGRAM: &str = system_process::ETCDUTL;
/// The path at which it sees the snapshot, and restores the data.
const SEEN: &str = "/recovery";
/// Time limit for restoring: the largest database is copied and read once.
const PATIENCE: Duration = Duration::from_secs(1800);
/// Limit on the output that an error quotes, in bytes: its last words.
const LAST_WORDS: usize = 1000;

/// Restores the snapshot of this machine.
///
/// # Errors
/// It does not start, takes too long, or says why it cannot.
pub(super) async fn restore(
    machine: &Machine,
    image: &VerifiedImage,
    node: &str,
    with_digest: bool,
) -> anyhow::Result<()> {
    let cgroup = Cgroup::beside_machined(PROGRAM)?;
    let mut spec = ContainerSpec::new(PROGRAM.parse()?, cgroup.path().to_owned());
    spec.entrypoint = vec![PROGRAM.to_owned()];
    spec.args = recovery::restore_arguments(SEEN, node, with_digest);
    spec.read_only = true;
    // The data are root's, as kubelet runs etcd.
    spec.run_as = Some(RunAs {
        uid: Some(0),
        gid: Some(0),
    });
    let directory = recovery::directory();
    let directory = directory.to_str().context("the directory is not UTF-8")?;
    spec.mounts.push(Mount {
        source: MountSource::HostPath(directory.parse()?),
        destination: SEEN.parse()?,
        options: vec![
            MountOption::ReadWrite,
            MountOption::NoSuid,
            MountOption::NoDev,
            MountOption::NoExec,
        ],
    });
    run(machine, image, &spec).await
}

async fn run(machine: &Machine, image: &VerifiedImage, spec: &ContainerSpec) -> anyhow::Result<()> {
    let (output, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
        .context("make the output's pipe")?;
    let said = crate::base::task::spawn(collect(output));
    let streams = Streams {
        stdout: write.try_clone()?,
        stderr: write,
    };
    let (runtime, host, store) = (Runtime::default(), HostView::default(), &machine.images);
    let started = runtime.start(spec, image, store, &host, streams, &[]);
    let running = started.await.with_context(|| {
        format!(
            "start {PROGRAM}, which the image has to have beside etcd, as those of the etcd project have: name such an image in cluster.etcd.image"
        )
    })?;
    let one_shot = OneShot {
        what: PROGRAM,
        running,
        runtime: &runtime,
        store,
        init: &machine.init,
    };
    let ended = one_shot.end(PATIENCE).await?;
    let said = last_words(said).await;
    ended.check(&format!("{PROGRAM} said"), &said)
}

/// Returns the end of its output.
async fn collect(output: OwnedFd) -> String {
    let Ok(mut output) = tokio::net::unix::pipe::Receiver::from_owned_fd(output) else {
        return String::new();
    };
    let mut tail = Tail::of(LAST_WORDS);
    tail.follow(&mut output).await;
    String::from_utf8_lossy(tail.bytes()).into_owned()
}
