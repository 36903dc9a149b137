//! From power-on to an API that answers.

use anyhow::ensure;
use instar_tests::{ImageUnderTest, Node, Outcome, Scratch, Test, tests};

pub(crate) fn tests() -> Vec<Test> {
    tests![answers_with_its_version]
}

async fn answers_with_its_version(scratch: Scratch) -> Outcome {
    let node = Node::plan(&scratch, &ImageUnderTest::first()?)
        .memory_mib(384)
        .boot()
        .await?;
    let version = node.version().await?;
    ensure!(version.tag == "v0.1.0", "it says {version:?}");
    Ok(())
}
