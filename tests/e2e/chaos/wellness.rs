//! Checks that the node is well.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use instar_tests::{GREETER, Outcome};

use super::{ALONE, COUNTING, Chaos, HUNGRY, STARVING};

/// Timeout for a recovery: the longest pause before a service is started again is half a minute, a call of the runtime
/// may take a minute, and an upgrade may be under way, all on a busy host.
const PATIENCE: Duration = Duration::from_secs(240);
const ANSWER: Duration = Duration::from_secs(10);
/// The services that have to run. A bomb is not among them.
const SERVICES: [&str; 7] = [
    "apid", "machined", GREETER, ALONE, HUNGRY, STARVING, COUNTING,
];
const FILE: &str = "belongings";

impl Chaos {
    /// Waits until the node is ready, all services run and are healthy, and a new connection is answered.
    pub(super) async fn is_well(&self) -> Outcome {
        self.node
            .wait_until("it is well again", PATIENCE, async || {
                let answer = self.node.version_for_newcomers();
                tokio::time::timeout(ANSWER, answer).await??;
                self.all_run().await?;
                self.greeter.greets()
            })
            .await?;
        self.node.wait_until_ready(PATIENCE).await
    }

    async fn all_run(&self) -> Outcome {
        let services = self.node.services().await?;
        for name in SERVICES {
            let service = services.iter().find(|service| service.id == name);
            let service = service.with_context(|| format!("no service {name}"))?;
            let health = service.health.clone().unwrap_or_default();
            ensure!(
                service.state == "Running" && (health.unknown || health.healthy),
                "{name} is {}: {}",
                service.state,
                health.last_message
            );
        }
        Ok(())
    }
}

/// State that no fault may destroy.
pub(super) struct Belongings {
    kernel: String,
    config: String,
}

impl Belongings {
    pub(super) async fn of(chaos: &Chaos) -> anyhow::Result<Self> {
        chaos.greeter.write_to_var(FILE)?;
        Ok(Self {
            kernel: chaos.node.kernel_boot_id().await?,
            config: config(chaos).await?,
        })
    }

    /// Checks that the kernel is the same, so init has lived; that the config and a container's file are there; and
    /// that no two overlays write to the same directory.
    pub(super) async fn are_there(&self, chaos: &Chaos) -> Outcome {
        let kernel = chaos.node.kernel_boot_id().await?;
        ensure!(kernel == self.kernel, "the kernel rebooted");
        ensure!(chaos.greeter.read_from_var(FILE)? == "written by greeter\n");
        ensure!(config(chaos).await? == self.config, "another config");
        // A change of versions takes the saboteur away for a moment.
        let look = async || chaos.saboteur.layers();
        let layers = chaos
            .node
            .wait_until("the overlays are told", PATIENCE, look);
        for (directory, overlays) in layers.await? {
            ensure!(
                overlays.len() == 1,
                "{directory} is written to by {overlays:?}"
            );
        }
        Ok(())
    }
}

async fn config(chaos: &Chaos) -> anyhow::Result<String> {
    let words = ["get", "machineconfig", "v1alpha1", "-o", "yaml"];
    let said = chaos.client.run(&words).await?;
    ensure!(said.code == Some(0), "{said:?}");
    // The part before it has the resource's version and dates.
    let (_, config) = said.output.split_once("\nspec:").context("no spec")?;
    Ok(config.to_owned())
}
