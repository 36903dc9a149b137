//! The smallest machine that is promised: it boots, runs a container and upgrades.

use anyhow::ensure;
use instar_tests::{
    Ending, GREETER, GREETER_PORT, Greeter, ImageUnderTest, Node, Outcome, Registry, Scratch, Test,
    push_greeter, tests, upgrade_and_follow,
};

use crate::PATIENCE;
use crate::workloads::Life;

/// docs/promises.md
const MEMORY_MIB: u32 = 384;

pub(crate) fn tests() -> Vec<Test> {
    tests![upgrades_without_a_disk]
}

/// Without a disk images lie in memory too: that is the most that it can be asked for.
async fn upgrades_without_a_disk(scratch: Scratch) -> Outcome {
    let registry = Registry::start(&scratch)?;
    push_greeter(&registry)?;
    let second = ImageUnderTest::second()?;
    registry.push_layout(&second.installer(), "instar/installer", second.version())?;
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
    let image = registry.image_for_guest("instar/installer:v0.2.0");
    let followed = upgrade_and_follow(&node, &image, PATIENCE).await?;
    ensure!(followed.ending == Ending::Done, "{followed:#?}");
    ensure!(node.version().await?.tag == "v0.2.0");
    // What it is made of lies in memory that is not the generation's, so it lives through the change.
    let after = Life::of(&node, GREETER).await?;
    ensure!(after == before, "{before:#?}, and now {after:#?}");
    ensure!(greeter.read_from_var("kept")? == "written by greeter\n");
    greeter.greets()
}
