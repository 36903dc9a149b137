//! The stages of an upgrade without a reboot, while a container that is kept writes to the machine's disk.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::recorded_node::RecordedNode;
use super::scenario::Setting;
use super::upgrade::seen;
use crate::container_writer::ContainerWriter;
use crate::greeter::{GREETER, Greeter};
use crate::image_under_test::ImageUnderTest;
use crate::instarctl::Instarctl;

/// Timeout for an upgrade under emulation, on a host that runs other machines too.
const PATIENCE: Duration = Duration::from_secs(180);
/// Interval between two checks of the upgrade.
const PAUSE: Duration = Duration::from_millis(100);
/// Time for which the recording goes on after the change.
const AFTER: Duration = Duration::from_secs(3);

/// The first stage of an upgrade without a reboot: the time before the change.
pub const BEFORE_CHANGE: &str = "soft";

impl RecordedNode {
    /// Upgrades to the second version without a reboot, in three stages: [`BEFORE_CHANGE`] while the installer works,
    /// `change` until the new version is kept, and `kept` while the greeter, which lives on, goes on writing. The
    /// greeter writes all the time, and flushes each write. `image` is the installer's image, `config` the node's
    /// config.
    pub async fn change_under(
        &mut self,
        client: &Instarctl,
        image: &str,
        config: &str,
    ) -> Result<()> {
        let version = ImageUnderTest::second()?.version();
        let runs = async || self.who_runs().await;
        let what = "the container runs";
        let (pid, kernel) = self.node().wait_until(what, PATIENCE, runs).await?;
        let writer = ContainerWriter::start(Greeter::of(self.node())?);
        self.enter(BEFORE_CHANGE, Setting::with_config(config))?;
        let changes = async {
            seen(self.node(), "machined: upgrade: upgrade: done").await?;
            self.enter("change", Setting::with_config(config))
        };
        let command = ["upgrade", "--image", image];
        let (said, changed) = tokio::join!(client.run(&command), changes);
        changed?;
        let said = said?;
        ensure!(said.code == Some(0), "the upgrade: {said:?}");
        self.node().wait_until_ready(PATIENCE).await?;
        self.enter("kept", Setting::with_config(config))?;
        let before = Instant::now();
        while before.elapsed() < AFTER {
            ensure!(
                !writer.has_failed(),
                "the container does not write any more"
            );
            tokio::time::sleep(PAUSE).await;
        }
        println!("{} writes of the container", writer.end()?);
        ensure!(
            self.who_runs().await? == (pid, kernel),
            "the container did not live on"
        );
        let runs = self.node().version().await?.tag;
        ensure!(runs == version, "{runs} runs");
        Ok(())
    }

    async fn who_runs(&self) -> Result<(u32, String)> {
        let node = self.node();
        Ok((
            node.service_pid(GREETER).await?,
            node.kernel_boot_id().await?,
        ))
    }
}
