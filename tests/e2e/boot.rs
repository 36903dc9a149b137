//! From power-on to an API that answers.

use anyhow::ensure;
use instar_tests::{Grpcio, ImageUnderTest, Node, Outcome, Scratch, Test, tests};

pub(crate) fn tests() -> Vec<Test> {
    tests![answers_with_its_version, answers_a_client_that_is_not_ours]
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

async fn answers_a_client_that_is_not_ours(scratch: Scratch) -> Outcome {
    let grpcio = Grpcio::ready(&scratch)?;
    let node = Node::plan(&scratch, &ImageUnderTest::first()?)
        .boot()
        .await?;
    let answer = grpcio.version(&node)?;
    ensure!(
        answer["messages"][0]["version"]["tag"] == "v0.1.0",
        "grpcio got {answer}"
    );
    Ok(())
}
