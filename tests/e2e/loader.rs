//! A new boot loader: it replaces the old one after it has started the machine, and does no harm if it cannot.

use anyhow::{Result, ensure};
use instar_esp::{State, Volume as _, paths};
use instar_tests::{
    EspImage, ImageUnderTest, Instarctl, Node, OciImage, Outcome, Registry, Scratch, Test,
    chapters, tests,
};

use crate::PATIENCE;
use crate::installed::{INSTALLER, install_with};

const IN_IMAGE: &str = "usr/install/amd64/systemd-bootx64.efi";
const MARK: &str = "#### LoaderInfo: systemd-boot ";

/// machined's message about a new loader that the firmware did not start.
pub(crate) const OLD_ONE_STAYS: &str =
    "the new boot loader has not started this machine; the old one stays";

pub(crate) fn tests() -> Vec<Test> {
    tests![a_new_loader_stays_when_it_has_started_the_machine]
}

/// Returns an installer's image with another loader.
pub(crate) fn with_loader(image: &ImageUnderTest, loader: &[u8]) -> Result<OciImage> {
    let installer = OciImage::read(&image.installer())?;
    let release = installer.file("usr/install/amd64/release.json")?;
    let mut release: serde_json::Value = serde_json::from_slice(&release)?;
    release["loader"] = serde_json::json!({
        "blake3": blake3::hash(loader).to_hex().to_string(),
        "bytes": loader.len(),
    });
    installer.with_file(IN_IMAGE, loader)?.with_file(
        "usr/install/amd64/release.json",
        release.to_string().as_bytes(),
    )
}

/// Returns the image's loader with the version 999.
pub(crate) fn newer(image: &ImageUnderTest) -> Result<Vec<u8>> {
    let mut loader = std::fs::read(image.loader())?;
    let mut places = loader.windows(MARK.len());
    let at = places.position(|window| window == MARK.as_bytes());
    let at = at.unwrap_or_default() + MARK.len();
    ensure!(loader[at..].starts_with(b"257"), "not systemd-boot 257");
    loader[at..at + 3].copy_from_slice(b"999");
    Ok(loader)
}

async fn a_new_loader_stays_when_it_has_started_the_machine(scratch: Scratch) -> Outcome {
    let registry = Registry::start(&scratch)?;
    let node = install_with(&scratch, &registry, |config| config).await?;
    let client = Instarctl::of(&node, &scratch)?;
    push_loaders(&registry)?;
    let image = |tag: &str| registry.image_for_guest(&format!("{INSTALLER}:{tag}"));
    chapters![
        a_loader_that_starts_the_machine_stays(&node, &client, &image("newer")),
        the_old_loader_stays_where_the_new_one_does_not_start(&node, &client, &image("broken")),
        what_was_put_in_place_starts_the_machine(node),
        the_newer_loader_is_on_the_disk_and_no_try_was_lost(&scratch),
    ]
    .await
}

/// Pushes a newer loader, and one that no firmware loads.
fn push_loaders(registry: &Registry) -> Outcome {
    let image = ImageUnderTest::second()?;
    let broken = format!("no program, {MARK}1000 ####").into_bytes();
    for (tag, loader) in [("newer", newer(&image)?), ("broken", broken)] {
        with_loader(&image, &loader)?.push(registry, INSTALLER, tag)?;
    }
    Ok(())
}

/// The loader comes with a version that could start without the kernel.
async fn a_loader_that_starts_the_machine_stays(
    node: &Node,
    client: &Instarctl,
    image: &str,
) -> Outcome {
    let mark = node.vm().console_mark()?;
    for command in [
        &["upgrade", "--image", image, "--stage"][..],
        &["reboot", "--mode", "powercycle"],
    ] {
        let said = client.run(command).await?;
        ensure!(said.code == Some(0), "{command:?}: {said:?}");
    }
    let stays = "the new boot loader has started this machine, and stays";
    node.vm().wait_for_line_after(mark, stays, PATIENCE)?;
    node.wait_until_ready(PATIENCE).await
}

/// The loader comes with a version that reboots at once.
async fn the_old_loader_stays_where_the_new_one_does_not_start(
    node: &Node,
    client: &Instarctl,
    image: &str,
) -> Outcome {
    let mark = node.vm().console_mark()?;
    let upgrade = ["upgrade", "--image", image, "--reboot-mode", "powercycle"];
    let said = client.run(&upgrade).await?;
    ensure!(said.code == Some(0), "{said:?}");
    let vm = node.vm();
    vm.wait_for_line_after(mark, OLD_ONE_STAYS, PATIENCE)?;
    node.wait_until_ready(PATIENCE).await
}

/// The new loader starts the machine after a power cycle.
async fn what_was_put_in_place_starts_the_machine(node: Node) -> Outcome {
    let node = node.power_cycle().await?;
    node.wait_until_ready(PATIENCE).await?;
    node.end();
    Ok(())
}

async fn the_newer_loader_is_on_the_disk_and_no_try_was_lost(scratch: &Scratch) -> Outcome {
    let esp = EspImage::of_disk(&scratch.join("node.disk0.img"));
    let newer = newer(&ImageUnderTest::second()?)?;
    ensure!(esp.read(paths::LOADER)? == newer, "another loader");
    let state = State::read(&esp)?;
    ensure!(!state.has_new_loader, "the broken one is still there");
    let tried = state.entries.iter().any(|found| !found.name.is_blessed());
    ensure!(!tried, "a try was lost: {:?}", state.entries);
    Ok(())
}
