//! etcdutl, which restores snapshots of etcd: run to its end, in a container of etcd's own image.
//!
//! The decision: etcd's image has etcdutl beside etcd, and so in the very version that will read the restored data. (Those of the etcd project have
//! it, and registry.k8s.io/etcd of today.) The other choices are a
//! program of the base, whose version is that of the OS, and code of our own for etcd's database and log, whose format changes with etcd.

use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::process::Signal;
use tokio::io::AsyncReadExt as _;
use tokio::time::timeout;

use crate::base::Exit;
use crate::containers::{ContainerSpec, HostView, RunAs, RunningContainer, Runtime, Streams};
use crate::kubernetes::control_plane::recovery;
use crate::machine::Machine;
use crate::oci::VerifiedImage;
use crate::services::Cgroup;
use crate::values::{Mount, MountOption, MountSource, system_process};

/// The program; its container and cgroup have its name.
const PROGRAM: &str = system_process::ETCDUTL;
/// The path at which it sees the snapshot, and restores the data.
const SEEN: &str = "/recovery";
/// Time limit for restoring: the largest database is copied and read once.
const PATIENCE: Duration = Duration::from_secs(1800);
/// Time limit from SIGKILL to the end of every process that does not hang in the kernel.
const DEATH: Duration = Duration::from_secs(10);
/// Time limit for init's report of the exit, and for the rest of the output; both follow at once.
const RIGHT_BEHIND: Duration = Duration::from_secs(5);
/// Time limit for two calls of crun, with a minute each, and the removal of the container's files.
const REMOVAL: Duration = Duration::from_secs(180);
/// Limit on the output that an error quotes, in bytes: its last words.
const LAST_WORDS: usize = 1000;
/// Limit on the output that is kept to quote from.
const KEPT: usize = 64 << 10;

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
    let ended = end(&running).await;
    let told = machine.init.exit_of(running.pid(), running.since());
    let exit = timeout(RIGHT_BEHIND, told).await;
    let removed = timeout(REMOVAL, runtime.delete(&spec.name, store)).await;
    removed.with_context(|| {
        format!(
            "the container of {PROGRAM} is not removed within {} s",
            REMOVAL.as_secs()
        )
    })??;
    let said = timeout(RIGHT_BEHIND, said).await;
    let said = said.map_or_else(|_| String::new(), Result::unwrap_or_default);
    ended.with_context(|| format!("{PROGRAM} said: {said}"))?;
    match exit {
        Ok(Exit::Code(0)) => Ok(()),
        Ok(exit) => bail!("{PROGRAM} {exit}: {said}"),
        Err(_) => bail!("nobody knows how {PROGRAM} ended: {said}"),
    }
}

/// Waits for its end, and kills it when that takes too long.
async fn end(running: &RunningContainer) -> anyhow::Result<()> {
    if let Ok(ended) = timeout(PATIENCE, running.wait()).await {
        return ended.context("wait for its end");
    }
    running.kill(Signal::KILL).context("end it")?;
    let killed = timeout(DEATH, running.wait()).await;
    killed
        .context("it hangs in the kernel: not even SIGKILL ends it; reboot the machine")?
        .context("wait for its end")?;
    bail!(
        "it did not end within {} s and was killed",
        PATIENCE.as_secs()
    )
}

/// Returns the end of its output.
async fn collect(output: OwnedFd) -> String {
    let Ok(output) = tokio::net::unix::pipe::Receiver::from_owned_fd(output) else {
        return String::new();
    };
    let (mut kept, mut piece) = (Vec::new(), vec![0; KEPT / 4]);
    let mut output = output;
    // Output that cannot be read is not shown.
    while let Ok(read @ 1..) = output.read(&mut piece).await {
        kept.extend_from_slice(&piece[..read]);
        let surplus = kept.len().saturating_sub(KEPT);
        kept.drain(..surplus);
    }
    let from = kept.len().saturating_sub(LAST_WORDS);
    String::from_utf8_lossy(&kept[from..]).trim().to_owned()
}
