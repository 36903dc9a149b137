//! A machine that boots from its disk: installed, upgraded with and without a reboot, rolled back by a person and by itself.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use instar_esp::State;
use instar_qemu::{Bus, Drive, VmSpec};
use instar_tests::{
    Channels, EspImage, ImageUnderTest, Instarctl, MachineConfig, Node, NodePlan, OciImage,
    Outcome, Registry, Scratch, Test, chapters, tests, uefi,
};

pub(crate) use instar_tests::INSTALLER;

use crate::PATIENCE;
use crate::channel::shut;

/// A free port for a test's own service.
pub(crate) const OTHER_PORT: u16 = 8085;
/// Limit on the test: many boots of one machine, all through its firmware, on a host that runs others too.
const LIFETIME: Duration = Duration::from_secs(1200);
/// Time until a machine has looked at the versions on its disk: two minutes after its start, and some more on a busy host.
const LOOKED_AT: Duration = Duration::from_secs(240);
/// instarctl's exit code when a version was given up (its help).
pub(crate) const ROLLED_BACK: Option<i32> = Some(6);

pub(crate) fn tests() -> Vec<Test> {
    tests![
        from_a_cd_to_its_disk_and_on_from_there,
        a_version_that_does_not_start_is_given_up_after_three_tries
    ]
}

/// Boots the ISO with a blank disk beside it, and a config that installs version v0.1.0 on that disk.
async fn install(scratch: &Scratch, registry: &Registry) -> Result<Node> {
    install_with(scratch, registry, |config| config).await
}

/// As [`install`], with additions to the config.
pub(crate) async fn install_with(
    scratch: &Scratch,
    registry: &Registry,
    more: impl FnOnce(MachineConfig) -> MachineConfig + 'static,
) -> Result<Node> {
    install_planned(scratch, registry, |plan| plan, more).await
}

/// As [`install`], on a machine with another plan.
pub(crate) async fn install_planned(
    scratch: &Scratch,
    registry: &Registry,
    planned: impl FnOnce(NodePlan) -> NodePlan,
    more: impl FnOnce(MachineConfig) -> MachineConfig + 'static,
) -> Result<Node> {
    registry.push_both_installers()?;
    let host = registry.host_for_guest();
    let image = registry.image_for_guest(&format!("{INSTALLER}:v0.1.0"));
    let iso = Drive::raw(ImageUnderTest::first()?.iso()).on(Bus::Cd);
    let plan = Node::plan_from(scratch, VmSpec::uefi(uefi()?)).blank_disk()?;
    let node = planned(plan.forward(OTHER_PORT))
        .spec(|spec| spec.drive(iso).deadline(LIFETIME))
        .configure(move |config| more(config.registry(&host).install("/dev/vda", &image)))
        .start()?;
    node.wait_for_line("the firmware has its entries for the boot loader", PATIENCE)?;
    node.wait_until_installed("v0.1.0", PATIENCE).await?;
    Ok(node)
}

async fn from_a_cd_to_its_disk_and_on_from_there(scratch: Scratch) -> Outcome {
    let registry = Registry::start(&scratch)?;
    let channels = Channels::serve(&scratch, &registry)?;
    let node = install_a_follower(&scratch, &registry, &channels).await?;
    let client = Instarctl::of(&node, &scratch)?;
    let image = |version: &str| registry.installer_for_guest(version);
    chapters![
        there_is_nothing_to_roll_back_to(&client),
        an_upgrade_by_a_reboot_starts_the_other_version(&node, &client, &image("v0.2.0")),
        rollbacks_lead_back_and_there_again(&node, &client),
        a_version_that_rots_is_not_gone_back_to(&node, &client, &scratch),
        a_soft_upgrade_does_not_reboot(&node, &client, &image("v0.1.0")),
        a_channel_does_not_lead_to_what_was_left(&node, &client, &channels, &image("v0.2.0")),
        after_a_power_cut_the_upgrades_version_boots(node),
    ]
    .await
}

async fn install_a_follower(
    scratch: &Scratch,
    registry: &Registry,
    channels: &Channels,
) -> Result<Node> {
    channels.publish(&["create", "stable"])?;
    let follows = channels.document("stable", &shut()?)?;
    install_with(scratch, registry, move |it| it.document(&follows)).await
}

async fn there_is_nothing_to_roll_back_to(client: &Instarctl) -> Outcome {
    let said = client.run(&["rollback"]).await?;
    ensure!(said.code != Some(0), "a rollback to nothing: {said:?}");
    ensure!(said.complaint.contains("no other version"), "{said:?}");
    Ok(())
}

async fn an_upgrade_by_a_reboot_starts_the_other_version(
    node: &Node,
    client: &Instarctl,
    image: &str,
) -> Outcome {
    let kernel = node.kernel_boot_id().await?;
    let upgrade = ["upgrade", "--image", image, "--reboot-mode", "powercycle"];
    let said = client.run(&upgrade).await?;
    ensure!(said.code == Some(0), "the upgrade by a reboot: {said:?}");
    ensure!(node.version().await?.tag == "v0.2.0");
    let rebooted = node.kernel_boot_id().await?;
    ensure!(rebooted != kernel, "it did not reboot");
    Ok(())
}

/// Both versions are blessed.
async fn rollbacks_lead_back_and_there_again(node: &Node, client: &Instarctl) -> Outcome {
    for version in ["v0.1.0", "v0.2.0"] {
        let said = client.run(&["rollback"]).await?;
        ensure!(said.code == Some(0), "the rollback to {version}: {said:?}");
        let runs = node.version().await?.tag;
        ensure!(runs == version, "{runs} runs");
        node.wait_until_ready(PATIENCE).await?;
    }
    Ok(())
}

/// Not by force either: no word mends it.
async fn a_version_that_rots_is_not_gone_back_to(
    node: &Node,
    client: &Instarctl,
    scratch: &Scratch,
) -> Outcome {
    let mut esp = EspImage::of_disk(&scratch.join("node.disk0.img"));
    let state = State::read(&esp)?;
    let mut entries = state.whole_entries();
    let other = entries.find(|entry| entry.name.version.to_string() == "v0.1.0");
    esp.rot(&other.context("no v0.1.0")?.slot.uki_path())?;
    let said = client.run(&["rollback", "--force"]).await?;
    ensure!(said.code != Some(0), "{said:?}");
    ensure!(said.complaint.contains("would not start"), "{said:?}");
    ensure!(node.version().await?.tag == "v0.2.0");
    chapters![it_is_told_before_somebody_needs_it(node, client)].await
}

async fn it_is_told_before_somebody_needs_it(node: &Node, client: &Instarctl) -> Outcome {
    let told = async || {
        let get = ["get", "conditions", "VersionUnbootable"];
        let said = client.run(&get).await?;
        ensure!(said.output.contains("UkiDamaged"), "{said:?}");
        ensure!(said.output.contains("v0.1.0"), "{said:?}");
        Ok(())
    };
    node.wait_until("the rotten version is told", LOOKED_AT, told)
        .await
}

/// A person went back from it: the channel's offer does not lead there again.
async fn a_channel_does_not_lead_to_what_was_left(
    node: &Node,
    client: &Instarctl,
    channels: &Channels,
    image: &str,
) -> Outcome {
    channels.add("stable", image, &[])?;
    let held = async || {
        client.run(&["follow", "check"]).await?;
        let said = client.run(&["follow", "status", "-o", "json"]).await?;
        let why = "a person went back from it to v0.1.0";
        ensure!(said.output.contains(why), "{said:?}");
        Ok(())
    };
    node.wait_until("v0.2.0 is held", PATIENCE, held).await
}

async fn a_soft_upgrade_does_not_reboot(node: &Node, client: &Instarctl, image: &str) -> Outcome {
    let kernel = node.kernel_boot_id().await?;
    let said = client.run(&["upgrade", "--image", image]).await?;
    ensure!(said.code == Some(0), "the soft upgrade: {said:?}");
    ensure!(node.kernel_boot_id().await? == kernel, "it rebooted");
    Ok(())
}

async fn after_a_power_cut_the_upgrades_version_boots(node: Node) -> Outcome {
    let node = node.power_cycle().await?;
    let runs = node.version().await?.tag;
    ensure!(runs == "v0.1.0", "{runs} runs after the power was cut");
    Ok(())
}

async fn a_version_that_does_not_start_is_given_up_after_three_tries(scratch: Scratch) -> Outcome {
    let registry = Registry::start(&scratch)?;
    let node = install(&scratch, &registry).await?;
    broken(&ImageUnderTest::second()?)?.push(&registry, INSTALLER, "broken")?;
    let client = Instarctl::of(&node, &scratch)?;
    let image = registry.image_for_guest(&format!("{INSTALLER}:broken"));
    let upgrade = ["upgrade", "--image", &image, "--reboot-mode", "powercycle"];
    chapters![
        an_upgrade_to_a_broken_version_ends_with_a_rollback(&node, &client, &upgrade),
        a_broken_version_is_tried_three_times(&node),
        a_broken_version_is_remembered_over_reboots(&node, &client, &upgrade),
    ]
    .await
}

async fn an_upgrade_to_a_broken_version_ends_with_a_rollback(
    node: &Node,
    client: &Instarctl,
    upgrade: &[&str],
) -> Outcome {
    let said = client.run(upgrade).await?;
    ensure!(said.code == ROLLED_BACK, "{said:?}");
    let words = "v0.2.0 was given up";
    ensure!(said.complaint.contains(words), "{said:?}");
    ensure!(node.version().await?.tag == "v0.1.0");
    Ok(())
}

async fn a_broken_version_is_tried_three_times(node: &Node) -> Outcome {
    let console = node.vm().console();
    let tries = console.matches("the image hashes to").count();
    ensure!(tries == 3, "it was tried {tries} times");
    Ok(())
}

async fn a_broken_version_is_remembered_over_reboots(
    node: &Node,
    client: &Instarctl,
    upgrade: &[&str],
) -> Outcome {
    node.wait_until_ready(PATIENCE).await?;
    let said = client.run(upgrade).await?;
    ensure!(said.code != Some(0), "{said:?}");
    ensure!(said.complaint.contains("failed here before"), "{said:?}");
    Ok(())
}

/// Returns an installer's image in whose UKI init expects another root filesystem than it finds.
fn broken(image: &ImageUnderTest) -> Result<OciImage> {
    let digest = blake3::hash(&std::fs::read(image.rootfs())?).to_hex();
    let first = if digest.starts_with('0') { "1" } else { "0" };
    with_uki_text(image, &digest, &format!("{first}{}", &digest[1..]))
}

/// Returns an installer's image with one text in its UKI, outside of the root filesystem, replaced by another one of
/// the same length.
pub(crate) fn with_uki_text(image: &ImageUnderTest, from: &str, to: &str) -> Result<OciImage> {
    const HEAD: &str = "usr/install/amd64/uki.head";
    const TAIL: &str = "usr/install/amd64/uki.tail";
    let installer = OciImage::read(&image.installer())?;
    let (mut head, mut tail) = (installer.file(HEAD)?, installer.file(TAIL)?);
    let is_said = replace(&mut head, from, to)? || replace(&mut tail, from, to)?;
    ensure!(is_said, "the UKI does not say {from:?}");
    let rootfs = std::fs::read(image.rootfs())?;
    let uki = [&*head, &*rootfs, &*tail].concat();
    let installer = installer.files(&[(HEAD, &head), (TAIL, &tail)])?;
    with_release_of(&uki, installer)
}

/// Replaces a text; returns whether it was there.
fn replace(content: &mut [u8], from: &str, to: &str) -> Result<bool> {
    ensure!(from.len() == to.len(), "{from:?} and {to:?}");
    let mut windows = content.windows(from.len());
    let Some(at) = windows.position(|window| window == from.as_bytes()) else {
        return Ok(false);
    };
    content[at..at + to.len()].copy_from_slice(to.as_bytes());
    Ok(true)
}

/// Returns the image with the digest of another UKI.
fn with_release_of(uki: &[u8], installer: OciImage) -> Result<OciImage> {
    const RELEASE: &str = "usr/install/amd64/release.json";
    let mut release: serde_json::Value = serde_json::from_slice(&installer.file(RELEASE)?)?;
    release["uki"]["blake3"] = blake3::hash(uki).to_hex().to_string().into();
    installer.with_file(RELEASE, release.to_string().as_bytes())
}
