//! Really boots a state, with the real firmware, to a node that is ready.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use instar_base::lock::Lock as _;
use instar_pki::Role;
use instar_power_cuts::Verdict;
use instar_qemu::{Bus, Drive, VmSpec};

use super::sample::Sample;
use crate::firmware::uefi;
use crate::identity::Identity;
use crate::image_under_test::ImageUnderTest;
use crate::node::Node;
use crate::scratch::Scratch;

/// Timeout for an installation under emulation, on a host that runs other machines too.
const PATIENCE: Duration = Duration::from_secs(180);
/// Number of machines at once: each takes a processor of the host.
const AT_ONCE: usize = 2;

/// The medium that a machine is installed from, and the config that it gets after it has lost its own.
#[derive(Debug)]
pub struct Medium {
    /// The machine config.
    pub config: String,
    /// The test's identity towards the machine.
    pub identity: Identity,
}

/// Boots all samples, two at a time, to nodes that are ready and run the predicted version; returns the failed ones,
/// and why. `booted` is called after each.
pub fn boot_samples<'a>(
    scratch: &Scratch,
    samples: &[Sample<'a>],
    medium: &Medium,
    booted: impl Fn(&Sample<'a>, &Result<()>) + Sync,
) -> Result<Vec<(Sample<'a>, anyhow::Error)>> {
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(Vec::new());
    let worker = || -> Result<()> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(sample) = samples.get(number) else {
                return Ok(());
            };
            let own = scratch.below(&format!("sample{number}"))?;
            let outcome = runtime.block_on(boot(&own, sample, medium));
            booted(sample, &outcome);
            match outcome {
                // Each has a disk of hundreds of megabytes.
                Ok(()) => own.remove()?,
                Err(error) => {
                    let mut failed = failed.locked();
                    failed.push((*sample, error));
                }
            }
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(worker)).collect();
        workers
            .into_iter()
            .try_for_each(|worker| match worker.join() {
                Ok(done) => done,
                Err(panic) => std::panic::resume_unwind(panic),
            })
    })?;
    Ok(failed
        .into_inner()
        .unwrap_or_else(|poisoned| poisoned.into_inner()))
}

async fn boot(scratch: &Scratch, sample: &Sample<'_>, medium: &Medium) -> Result<()> {
    let scenario = sample.scenario;
    let disk = scratch.join("disk.img");
    scenario
        .recording
        .make_disk(&disk, sample.state)
        .with_context(|| format!("cannot make {}", disk.display()))?;
    let spec = VmSpec::uefi(uefi()?.variables(&scenario.variables)).drive(Drive::raw(&disk));
    let identity = medium.identity.with_role(Role::Admin)?;
    let expected = match sample.verdict {
        Verdict::Boots {
            version,
            has_config: true,
        } => {
            let node = Node::plan_from(scratch, spec)
                .without_config(identity)
                .boot()
                .await?;
            return is_well(&node, version).await;
        }
        // An erased config has to be applied again.
        Verdict::Boots { version, .. } => version.clone(),
        Verdict::Installs | Verdict::Fails(_) => ImageUnderTest::first()?.version().to_owned(),
    };
    let has_medium = matches!(sample.verdict, Verdict::Installs);
    let spec = match has_medium {
        true => spec.drive(Drive::raw(ImageUnderTest::first()?.iso()).on(Bus::Cd)),
        false => spec,
    };
    let node = Node::plan_from(scratch, spec)
        .config(medium.config.clone(), identity)
        .start()?;
    if has_medium {
        node.wait_for_line("installed; the machine reboots into it", PATIENCE)?;
        let mark = node.vm().console_mark()?;
        node.vm()
            .wait_for_line_after(mark, "as generation 1", PATIENCE)?;
    }
    node.wait_for_api(PATIENCE).await?;
    is_well(&node, &expected).await
}

async fn is_well(node: &Node, version: &str) -> Result<()> {
    node.wait_until_ready(PATIENCE).await?;
    let runs = node.version().await?.tag;
    ensure!(runs == version, "{runs} runs, {version} was foretold");
    Ok(())
}
