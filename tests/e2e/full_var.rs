//! A full /var, by bytes and by inodes, is in nobody's way but that of those who filled it.

use std::time::Duration;

use anyhow::{Context, ensure};
use instar_qemu::{Drive, VmSpec};
use instar_tests::{
    GREETER, GREETER_PORT, Greeter, HttpServer, ImageUnderTest, Instarctl, Node, Outcome, Registry,
    Scratch, Test, push_greeter, tests, uefi,
};

use crate::PATIENCE;
use crate::installed::{INSTALLER, ROLLED_BACK};

/// Small, so that it is full soon.
const DISK_BYTES: u64 = 288 << 20;
const LIFETIME: Duration = Duration::from_secs(900);
/// Not much more than the smallest machine that is promised.
const MEMORY_MIB: u32 = 512;
const BALLAST: &str = "ballast";

pub(crate) fn tests() -> Vec<Test> {
    tests![upgrades_and_rolls_back_all_the_same]
}

/// One machine, installed on its disk: an upgrade while /var has no bytes left, one that fails its gate while it has no inodes left,
/// and a rollback while it has neither.
async fn upgrades_and_rolls_back_all_the_same(scratch: Scratch) -> Outcome {
    let registry = Registry::start(&scratch)?;
    push_greeter(&registry)?;
    for image in [ImageUnderTest::first()?, ImageUnderTest::second()?] {
        registry.push_layout(&image.installer(), INSTALLER, image.version())?;
    }
    let web = HttpServer::start()?;
    web.serve("/healthz", "well");
    let gate = format!(
        "apiVersion: instar.dev/v1alpha1\nkind: UpgradeGateConfig\ntimeout: 60s\nprobes:\n  - name: the web\n    http: {{url: \"{}\"}}\n",
        web.url_for_guest("/healthz")
    );
    let disk = scratch.join("disk.img");
    ImageUnderTest::first()?.put_on_disk(&disk, DISK_BYTES)?;
    let host = registry.host_for_guest();
    let spec = VmSpec::uefi(uefi()?)
        .drive(Drive::raw(&disk))
        .deadline(LIFETIME);
    let node = Node::plan_from(&scratch, spec)
        .memory_mib(MEMORY_MIB)
        .forward(GREETER_PORT)
        .configure(move |config| {
            let config = config.registry(&host).install_disk("/dev/vda");
            config.greeter(&host).document(&gate)
        })
        .boot()
        .await?;
    node.wait_until_ready(PATIENCE).await?;
    let (greeter, client) = (Greeter::of(&node)?, Instarctl::of(&node, &scratch)?);
    let fill =
        || -> anyhow::Result<u64> { Ok(greeter.get(&format!("/fill/data/{BALLAST}"))?.parse()?) };
    let upgrade = async |version: &str| {
        let image = registry.image_for_guest(&format!("{INSTALLER}:{version}"));
        client.run(&["upgrade", "--image", &image]).await
    };

    let filled = fill()?;
    ensure!(filled > DISK_BYTES / 4, "only {filled} bytes fitted");
    let said = upgrade("v0.2.0").await?;
    ensure!(said.code == Some(0), "without bytes: {said:?}");
    works(&node, &greeter, "v0.2.0").await?;
    starts_again_in_memory(&node, &client, &greeter).await?;

    // Its inode is kept, to be filled once there is no other.
    greeter.get(&format!("/write/data/{BALLAST}"))?;
    let files: u64 = greeter.get("/spread/data/files")?.parse()?;
    println!("{filled} bytes, {files} files");
    web.take_away("/healthz");
    let said = upgrade("v0.1.0").await?;
    ensure!(
        said.code == ROLLED_BACK && said.complaint.contains("the web"),
        "without inodes: {said:?}"
    );
    works(&node, &greeter, "v0.2.0").await?;

    fill()?;
    // A version that is booted again passes its gate again.
    web.serve("/healthz", "well");
    let said = client.run(&["rollback"]).await?;
    ensure!(said.code == Some(0), "without either: {said:?}");
    works(&node, &greeter, "v0.1.0").await?;
    let still = greeter.get("/list/data/files")?.lines().count();
    ensure!(still as u64 == files, "of {files} files {still} are there");
    Ok(())
}

/// The greeter has lived through the upgrade. One that starts has no room for its own files on /var.
async fn starts_again_in_memory(node: &Node, client: &Instarctl, greeter: &Greeter) -> Outcome {
    let said = client.run(&["restart", GREETER]).await?;
    ensure!(said.code == Some(0), "{said:?}");
    let log = node.log("machined").await?;
    ensure!(
        log.contains("of memory take them"),
        "where is the greeter's layer? {log}"
    );
    node.wait_until("it greets again", PATIENCE, async || greeter.greets())
        .await?;
    Ok(())
}

async fn works(node: &Node, greeter: &Greeter, version: &str) -> Outcome {
    node.wait_until_ready(PATIENCE).await?;
    let runs = node.version().await?.tag;
    ensure!(runs == version, "{runs} runs, and not {version}");
    greeter.greets().context("ready, but not greeting")
}
