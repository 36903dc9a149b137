//! The smallest machine that is promised: it boots, installs itself, runs a container, and upgrades both ways.

use anyhow::ensure;
use instar_tests::{
    Ending, GREETER, GREETER_PORT, Greeter, HttpServer, ImageUnderTest, Instarctl, Node, OciImage,
    Outcome, Registry, Scratch, Test, push_greeter, tests, upgrade_and_follow,
};

use crate::PATIENCE;
use crate::installed::{INSTALLER, OTHER_PORT, ROLLED_BACK, install_planned};
use crate::workloads::Life;

/// docs/promises.md
const MEMORY_MIB: u32 = 256;

pub(crate) fn tests() -> Vec<Test> {
    tests![upgrades_without_a_disk, installs_and_upgrades_with_a_disk]
}

/// Without a disk images lie in memory too: that is the most that it can be asked for.
async fn upgrades_without_a_disk(scratch: Scratch) -> Outcome {
    let registry = Registry::start(&scratch)?;
    push_greeter(&registry)?;
    let second = ImageUnderTest::second()?;
    registry.push_layout(&second.installer(), INSTALLER, second.version())?;
    push_one_that_gives_up(&scratch, &registry)?;
    let host = registry.host_for_guest();
    let node = Node::plan(&scratch, &ImageUnderTest::first()?)
        .memory_mib(MEMORY_MIB)
        .forward(GREETER_PORT)
        .configure(move |config| config.registry(&host).greeter(&host))
        .boot()
        .await?;
    node.wait_until_ready(PATIENCE).await?;
    let greeter = Greeter::of(&node)?;
    greeter.greets()?;
    greeter.write_to_var("kept")?;
    let before = Life::of(&node, GREETER).await?;
    for (tag, runs) in [("v0.2.0", "v0.2.0"), (GIVES_UP, "v0.2.0")] {
        let image = registry.image_for_guest(&format!("{INSTALLER}:{tag}"));
        let followed = upgrade_and_follow(&node, &image, PATIENCE).await?;
        match followed.ending {
            Ending::Done if tag == runs => {}
            Ending::Failed(ref why) if why.contains(REASON) => {}
            _ => anyhow::bail!("{tag}: {followed:#?}"),
        }
        node.wait_until_ready(PATIENCE).await?;
        ensure!(node.version().await?.tag == runs);
        // What it is made of lies in memory that is not the generation's, so it lives through the change.
        let after = Life::of(&node, GREETER).await?;
        ensure!(after == before, "{before:#?}, and now {after:#?}");
    }
    ensure!(greeter.read_from_var("kept")? == "written by greeter\n");
    greeter.greets()
}

/// From the ISO, whose firmware and boot loader want memory as well.
async fn installs_and_upgrades_with_a_disk(scratch: Scratch) -> Outcome {
    let registry = Registry::start(&scratch)?;
    push_greeter(&registry)?;
    let web = HttpServer::start()?;
    web.serve("/healthz", "well");
    let healthz = web.url_for_guest("/healthz");
    let image = registry.image_for_guest("greeter:v1");
    let node = install_planned(
        &scratch,
        &registry,
        |plan| plan.memory_mib(MEMORY_MIB),
        move |config| {
            config
                .greeter_at(GREETER, &image, OTHER_PORT, "")
                .gate_asks_the_web("60s", &healthz)
        },
    )
    .await?;
    let (client, greeter) = (
        Instarctl::of(&node, &scratch)?,
        Greeter::at(&node, OTHER_PORT)?,
    );
    greeter.greets()?;
    let upgrade = async |tag: &str, mode: &[&str]| {
        let image = registry.image_for_guest(&format!("{INSTALLER}:{tag}"));
        let words = [&["upgrade", "--image", &image], mode].concat();
        client.run(&words).await
    };
    let works = async |version: &str| {
        node.wait_until_ready(PATIENCE).await?;
        let runs = node.version().await?.tag;
        ensure!(runs == version, "{runs} runs, and not {version}");
        greeter.greets()
    };
    let before = Life::of(&node, GREETER).await?;
    let said = upgrade("v0.2.0", &[]).await?;
    ensure!(said.code == Some(0), "without a reboot: {said:?}");
    works("v0.2.0").await?;
    web.take_away("/healthz");
    let said = upgrade("v0.1.0", &[]).await?;
    ensure!(
        said.code == ROLLED_BACK && said.complaint.contains("the web"),
        "{said:?}"
    );
    web.serve("/healthz", "well");
    works("v0.2.0").await?;
    let after = Life::of(&node, GREETER).await?;
    ensure!(after == before, "{before:#?}, and now {after:#?}");
    let said = upgrade("v0.1.0", &["--force", "--reboot-mode", "powercycle"]).await?;
    ensure!(said.code == Some(0), "by a reboot: {said:?}");
    works("v0.1.0").await?;
    let said = client.run(&["rollback"]).await?;
    ensure!(said.code == Some(0), "the rollback: {said:?}");
    works("v0.2.0").await
}

const GIVES_UP: &str = "v0.3.0";
const REASON: &str = "the moon is full";

fn push_one_that_gives_up(scratch: &Scratch, registry: &Registry) -> Outcome {
    OciImage::read(&ImageUnderTest::second()?.installer())?
        .giving_up(scratch, GIVES_UP, REASON)?
        .push(registry, INSTALLER, GIVES_UP)?;
    Ok(())
}
