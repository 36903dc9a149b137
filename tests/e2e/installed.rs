//! A machine that boots from its disk: installed, upgraded with and without a reboot, rolled back by a person and by itself.

use std::time::Duration;

use anyhow::{Context, ensure};
use instar_qemu::{Bus, Drive, VmSpec};
use instar_tests::{
    ImageUnderTest, Instarctl, MachineConfig, Node, NodePlan, OciImage, Outcome, Registry, Scratch,
    Test, tests, uefi,
};

use crate::PATIENCE;

/// Where a service of a test's own may listen.
pub(crate) const OTHER_PORT: u16 = 8085;
pub(crate) const INSTALLER: &str = "instar/installer";
/// Many boots of one machine, all through its firmware, on a host that runs others too.
const LIFETIME: Duration = Duration::from_secs(1200);
/// What instarctl ends with when a version was given up (its help).
pub(crate) const ROLLED_BACK: Option<i32> = Some(6);

pub(crate) fn tests() -> Vec<Test> {
    tests![
        from_a_cd_to_its_disk_and_on_from_there,
        a_version_that_does_not_start_is_given_up_after_three_tries
    ]
}

/// Boots the ISO with a blank disk beside it, and a config that has version v0.1.0 installed on that.
async fn install(scratch: &Scratch, registry: &Registry) -> anyhow::Result<Node> {
    install_with(scratch, registry, |config| config).await
}

/// The same with more in the config.
pub(crate) async fn install_with(
    scratch: &Scratch,
    registry: &Registry,
    more: impl FnOnce(MachineConfig) -> MachineConfig + 'static,
) -> anyhow::Result<Node> {
    install_planned(scratch, registry, |plan| plan, more).await
}

/// The same on a machine that is planned otherwise.
pub(crate) async fn install_planned(
    scratch: &Scratch,
    registry: &Registry,
    planned: impl FnOnce(NodePlan) -> NodePlan,
    more: impl FnOnce(MachineConfig) -> MachineConfig + 'static,
) -> anyhow::Result<Node> {
    for image in [ImageUnderTest::first()?, ImageUnderTest::second()?] {
        registry.push_layout(&image.installer(), INSTALLER, image.version())?;
    }
    let host = registry.host_for_guest();
    let image = registry.image_for_guest(&format!("{INSTALLER}:v0.1.0"));
    let iso = Drive::raw(ImageUnderTest::first()?.iso()).on(Bus::Cd);
    let plan = Node::plan_from(scratch, VmSpec::uefi(uefi()?))
        .blank_disk()?
        .forward(OTHER_PORT);
    let node = planned(plan)
        .spec(|spec| spec.drive(iso).deadline(LIFETIME))
        .configure(move |config| more(config.registry(&host).install("/dev/vda", &image)))
        .start()?;
    node.wait_for_line("the firmware has its entries for the boot loader", PATIENCE)?;
    node.wait_until_installed("v0.1.0", PATIENCE).await?;
    Ok(node)
}

async fn from_a_cd_to_its_disk_and_on_from_there(scratch: Scratch) -> Outcome {
    let registry = Registry::start(&scratch)?;
    let node = install(&scratch, &registry).await?;
    let client = Instarctl::of(&node, &scratch)?;

    let said = client.run(&["rollback"]).await?;
    ensure!(
        said.code != Some(0) && said.complaint.contains("no other version"),
        "a rollback to nothing: {said:?}"
    );
    let kernel = node.kernel_boot_id().await?;
    let second = registry.image_for_guest(&format!("{INSTALLER}:v0.2.0"));
    let said = client
        .run(&["upgrade", "--image", &second, "--reboot-mode", "powercycle"])
        .await?;
    ensure!(said.code == Some(0), "the upgrade by a reboot: {said:?}");
    ensure!(node.version().await?.tag == "v0.2.0");
    let rebooted = node.kernel_boot_id().await?;
    ensure!(rebooted != kernel, "it did not reboot");

    // Back, and there again: both versions are blessed.
    for version in ["v0.1.0", "v0.2.0"] {
        let said = client.run(&["rollback"]).await?;
        ensure!(said.code == Some(0), "the rollback to {version}: {said:?}");
        let runs = node.version().await?.tag;
        ensure!(runs == version, "{runs} runs");
        node.wait_until_ready(PATIENCE).await?;
    }

    // Without a reboot, and the power goes afterwards: what was upgraded to is what boots.
    let kernel = node.kernel_boot_id().await?;
    let first = registry.image_for_guest(&format!("{INSTALLER}:v0.1.0"));
    let said = client.run(&["upgrade", "--image", &first]).await?;
    ensure!(said.code == Some(0), "the soft upgrade: {said:?}");
    ensure!(node.kernel_boot_id().await? == kernel, "it rebooted");
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
    let said = client.run(&upgrade).await?;
    ensure!(
        said.code == ROLLED_BACK && said.complaint.contains("v0.2.0 was given up"),
        "{said:?}"
    );
    ensure!(node.version().await?.tag == "v0.1.0");
    let console = node.vm().console();
    let tries = console.matches("the image hashes to").count();
    ensure!(tries == 3, "it was tried {tries} times");
    // It is remembered, over reboots as well.
    node.wait_until_ready(PATIENCE).await?;
    let said = client.run(&upgrade).await?;
    ensure!(
        said.code != Some(0) && said.complaint.contains("failed here before"),
        "{said:?}"
    );
    Ok(())
}

/// An installer's image in whose UKI init expects another root filesystem than it finds.
fn broken(image: &ImageUnderTest) -> anyhow::Result<OciImage> {
    let digest = blake3::hash(&std::fs::read(image.rootfs())?).to_hex();
    let first = if digest.starts_with('0') { "1" } else { "0" };
    with_uki_text(image, &digest, &format!("{first}{}", &digest[1..]))
}

/// An installer's image in whose UKI one text, which is not in the root filesystem, is another one of the same length.
pub(crate) fn with_uki_text(
    image: &ImageUnderTest,
    from: &str,
    to: &str,
) -> anyhow::Result<OciImage> {
    const FOLDER: &str = "usr/install/amd64";
    ensure!(from.len() == to.len(), "{from:?} and {to:?}");
    let installer = OciImage::read(&image.installer())?;
    let rootfs = std::fs::read(image.rootfs())?;
    let parts = ["uki.head", "uki.tail"].map(|name| format!("{FOLDER}/{name}"));
    let mut contents = [installer.file(&parts[0])?, installer.file(&parts[1])?];
    let at = |content: &[u8]| {
        let mut windows = content.windows(from.len());
        windows.position(|window| window == from.as_bytes())
    };
    let found = contents.iter().map(|content| at(content));
    let (nth, place) = (0..)
        .zip(found)
        .find_map(|(nth, place)| Some((nth, place?)))
        .with_context(|| format!("the UKI does not say {from:?}"))?;
    contents[nth][place..place + to.len()].copy_from_slice(to.as_bytes());

    let uki = [&*contents[0], &*rootfs, &*contents[1]].concat();
    let release = installer.file(&format!("{FOLDER}/release.json"))?;
    let mut release: serde_json::Value = serde_json::from_slice(&release)?;
    release["uki"]["blake3"] = blake3::hash(&uki).to_hex().to_string().into();
    installer.with_file(&parts[nth], &contents[nth])?.with_file(
        &format!("{FOLDER}/release.json"),
        release.to_string().as_bytes(),
    )
}
