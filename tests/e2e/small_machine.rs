//! The smallest machine that is promised: it boots, runs a container and upgrades.

use anyhow::ensure;
use instar_tests::{
    Ending, GREETER_PORT, Greeter, ImageUnderTest, Node, Outcome, Registry, Scratch, Test,
    push_greeter, tests, upgrade_and_follow,
};

use crate::PATIENCE;

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
    Greeter::of(&node)?.greets()?;
    let image = registry.image_for_guest("instar/installer:v0.2.0");
    let followed = upgrade_and_follow(&node, &image, PATIENCE).await?;
    ensure!(followed.ending == Ending::Done, "{followed:#?}");
    ensure!(node.version().await?.tag == "v0.2.0");
    Greeter::of(&node)?.greets()
}
