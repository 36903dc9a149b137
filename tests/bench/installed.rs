//! A machine that boots from its disk: the time of its installation, and the outage of an upgrade by a reboot.
//!
//! Both include the firmware, and no clock of the guest runs through a reset, so these times are the host's. Each is
//! compared with a boot of the same machine on the same host right after it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use instar_api::machine::{RebootRequest, UpgradeRequest, upgrade_request::RebootMode};
use instar_qemu::{Bus, Drive, VmSpec};
use instar_tests::{ImageUnderTest, Node, OutageProbe, Registry, Scratch, uefi};

use crate::table::{Limit, Table};

const PATIENCE: Duration = Duration::from_secs(600);
/// A document that installs the version on the CD, and boots it from the disk.
const INSTALL: &str = "apiVersion: v1alpha1\nkind: UnattendedInstallConfig\nreboot: true\nprovisioning:\n  diskSelector:\n    match: disk.dev_path == \"/dev/vda\"\n";

pub(crate) async fn measure(
    scratch: &Scratch,
    image: &ImageUnderTest,
    table: &mut Table,
) -> Result<()> {
    let scratch = scratch.below("installed")?;
    let registry = Registry::start(&scratch)?;
    let next = ImageUnderTest::second()?;
    registry.push_layout(&next.installer(), "instar/installer", next.version())?;

    let begin = Instant::now();
    let node = install(&scratch, image, &registry).await?;
    let install = begin.elapsed();
    let begin = Instant::now();
    let node = node.power_cycle().await?;
    node.wait_until_ready(PATIENCE).await?;
    let boot = begin.elapsed();
    table.add("install_seconds", install.as_secs_f64(), Limit::None);
    table.add("installed_boot_seconds", boot.as_secs_f64(), Limit::None);
    table.add(
        "install_over_boot_ratio",
        install.as_secs_f64() / boot.as_secs_f64(),
        Limit::AtMost(3.0),
    );

    let node = Arc::new(node);
    let name = format!("instar/installer:{}", next.version());
    let request = UpgradeRequest {
        image: registry.image_for_guest(&name),
        preserve: true,
        reboot_mode: RebootMode::Powercycle.into(),
        ..UpgradeRequest::default()
    };
    let mut machine = node.machine().await?;
    let upgrade = away(&node, async { machine.upgrade(request).await.map(drop) }).await?;
    ensure!(node.version().await?.tag == next.version());
    let mut machine = node.machine().await?;
    let reboot = async { machine.reboot(RebootRequest::default()).await.map(drop) };
    let reboot = away(&node, reboot).await?;
    table.add("upgrade_by_reboot_away_seconds", upgrade, Limit::None);
    table.add("reboot_away_seconds", reboot, Limit::None);
    table.add(
        "upgrade_over_reboot_away_ratio",
        upgrade / reboot,
        Limit::AtMost(1.3),
    );
    Ok(())
}

/// Installs, from power-on with a CD and a blank disk to a ready machine that was booted from its disk.
async fn install(scratch: &Scratch, image: &ImageUnderTest, registry: &Registry) -> Result<Node> {
    let cd = Drive::raw(image.iso()).on(Bus::Cd);
    let host = registry.host_for_guest();
    let node = Node::plan_from(scratch, VmSpec::uefi(uefi()?))
        .blank_disk()?
        .spec(|spec| spec.drive(cd))
        .configure(move |config| config.registry(&host).document(INSTALL))
        .start()?;
    node.wait_until_installed(image.version(), PATIENCE).await?;
    Ok(node)
}

/// Timeout for one answer, with a new connection.
const ANSWER: Duration = Duration::from_secs(3);

/// Returns the seconds from the last answer of the running kernel to the first of the next one.
async fn away(
    node: &Arc<Node>,
    act: impl Future<Output = Result<(), tonic::Status>>,
) -> Result<f64> {
    let (asked, began) = (node.clone(), Instant::now());
    let mut probe = OutageProbe::start(
        move || {
            let node = asked.clone();
            // A connection to the former kernel may never get an error.
            async move { tokio::time::timeout(ANSWER, node.kernel_boot_id()).await? }
        },
        move || Ok(began.elapsed()),
    );
    probe.warm().await?;
    act.await.context("the node refused it")?;
    let outage = probe.outage(PATIENCE).await?;
    node.wait_until_ready(PATIENCE).await?;
    Ok(outage.length.as_secs_f64())
}
