//! A new boot loader: it takes the old one's place when it has started the machine, and costs nothing when it cannot.

use anyhow::ensure;
use instar_esp::{State, Volume as _, paths};
use instar_tests::{
    EspImage, ImageUnderTest, Instarctl, OciImage, Outcome, Registry, Scratch, Test, tests,
};

use crate::PATIENCE;
use crate::installed::{INSTALLER, install_with};

const IN_IMAGE: &str = "usr/install/amd64/systemd-bootx64.efi";
const MARK: &str = "#### LoaderInfo: systemd-boot ";

/// What machined says of a new loader that the firmware did not start.
pub(crate) const OLD_ONE_STAYS: &str =
    "the new boot loader has not started this machine; the old one stays";

pub(crate) fn tests() -> Vec<Test> {
    tests![a_new_loader_stays_when_it_has_started_the_machine]
}

/// An installer's image with another loader in it.
pub(crate) fn with_loader(image: &ImageUnderTest, loader: &[u8]) -> anyhow::Result<OciImage> {
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

/// The loader of the image, which says that it is of version 999.
pub(crate) fn newer(image: &ImageUnderTest) -> anyhow::Result<Vec<u8>> {
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
    let image = ImageUnderTest::second()?;
    let newer = newer(&image)?;
    // No firmware loads this.
    let broken = format!("no program, {MARK}1000 ####").into_bytes();
    for (tag, loader) in [("newer", &newer), ("broken", &broken)] {
        with_loader(&image, loader)?.push(&registry, INSTALLER, tag)?;
    }

    // It comes with a version that could start without the kernel, and with one that reboots at once.
    let newer_stays = "the new boot loader has started this machine, and stays";
    let firmware = ["reboot", "--mode", "powercycle"];
    let at_once = ["--reboot-mode", "powercycle"];
    for (tag, how, then, words) in [
        ("newer", &["--stage"][..], Some(&firmware[..]), newer_stays),
        ("broken", &at_once[..], None, OLD_ONE_STAYS),
    ] {
        let mark = node.vm().console_mark()?;
        let image = registry.image_for_guest(&format!("{INSTALLER}:{tag}"));
        let upgrade = [&["upgrade", "--image", &image], how].concat();
        for command in std::iter::once(&upgrade[..]).chain(then) {
            let said = client.run(command).await?;
            ensure!(said.code == Some(0), "{tag}: {said:?}");
        }
        node.vm().wait_for_line_after(mark, words, PATIENCE)?;
        node.wait_until_ready(PATIENCE).await?;
    }

    // What was put in place starts the machine by itself.
    let node = node.power_cycle().await?;
    node.wait_until_ready(PATIENCE).await?;
    node.end();
    let esp = EspImage::of_disk(&scratch.join("node.disk0.img"));
    ensure!(esp.read(paths::LOADER)? == newer, "another loader");
    let state = State::read(&esp)?;
    ensure!(!state.has_new_loader, "the broken one is still there");
    let tried = state.entries.iter().any(|found| !found.name.is_blessed());
    ensure!(!tried, "a try was lost: {:?}", state.entries);
    Ok(())
}
