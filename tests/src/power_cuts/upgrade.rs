//! The stages of an upgrade with a reboot.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::recorded_node::RecordedNode;
use super::scenario::Setting;
use crate::image_under_test::ImageUnderTest;
use crate::instarctl::Instarctl;
use crate::node::Node;

/// Timeout for an upgrade under emulation, on a host that runs other machines too.
const PATIENCE: Duration = Duration::from_secs(180);

impl RecordedNode {
    /// Upgrades to the second version by a reboot, in two stages: `upgrade` until the version is tried, `bless` until
    /// it is kept. `image` is the installer's image, `config` the node's config.
    pub async fn upgrade(&mut self, client: &Instarctl, image: &str, config: &str) -> Result<()> {
        let version = ImageUnderTest::second()?.version();
        self.enter("upgrade", Setting::with_config(config))?;
        let command = ["upgrade", "--image", image, "--reboot-mode", "powercycle"];
        let tried = async {
            seen(self.node(), &format!("{version} is tried")).await?;
            self.enter("bless", Setting::with_config(config))
        };
        let (said, tried) = tokio::join!(client.run(&command), tried);
        tried?;
        let said = said?;
        ensure!(said.code == Some(0), "the upgrade: {said:?}");
        self.node().wait_until_ready(PATIENCE).await?;
        let runs = self.node().version().await?.tag;
        ensure!(runs == version, "{runs} runs");
        Ok(())
    }
}

/// Waits for words on a node's console, without blocking other waits.
pub async fn seen(node: &Node, words: &str) -> Result<()> {
    let console = async || {
        ensure!(
            node.vm().console().contains(words),
            "{words:?} is not on the console"
        );
        Ok(())
    };
    node.wait_until(words, PATIENCE, console).await
}
