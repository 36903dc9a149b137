//! A container that follows its image's name: rebuilds start by themselves and go back if they fail; versions wait for an approval.

use anyhow::{Result, ensure};
use instar_tests::{
    Ending, GREETER, GREETER_PORT, Greeter, ImageUnderTest, Instarctl, MachineConfig, Node,
    Outcome, Registry, Said, Scratch, Test, WITH_CGROUPS, chapters, greeter_image, tests,
    upgrade_and_follow,
};
use serde_json::Value;

use crate::PATIENCE;

const FOLLOWED: &str = "apiVersion: instar.dev/v1alpha1\nkind: ContainerUpdateConfig\nname: greeter\ninterval: 10s\nhealthy: 3s\n";
const RESTARTED: &str = "apiVersion: instar.dev/v1alpha1\nkind: ContainerUpgradeConfig\nname: greeter\nstrategy: restart\n";
const ENVIRONMENT: &str =
    "---\napiVersion: v1alpha1\nkind: EnvironmentConfig\nvariables: {no_proxy: example.org}\n";
const VERSION: &str = "org.opencontainers.image.version";

pub(crate) fn tests() -> Vec<Test> {
    tests![
        a_container_follows_its_images_name,
        a_machine_without_a_disk_remembers_it_over_an_upgrade
    ]
}

/// A node, its greeter, its client and its registry.
struct Subject {
    node: Node,
    greeter: Greeter,
    client: Instarctl,
    registry: Registry,
}

impl Subject {
    async fn boot(scratch: &Scratch, registry: Registry) -> Result<Self> {
        let host = registry.host_for_guest();
        let plan = Node::plan(scratch, &ImageUnderTest::first()?).blank_disk()?;
        let plan = plan
            .forward(GREETER_PORT)
            .configure(move |config| following(config.install_disk("/dev/vda"), &host));
        Self::of(plan.boot().await?, scratch, registry).await
    }

    /// No workload lives through an upgrade, so that /var in memory ends with each generation.
    async fn without_a_disk(scratch: &Scratch, registry: Registry) -> Result<Self> {
        let host = registry.host_for_guest();
        let plan = Node::plan(scratch, &ImageUnderTest::first()?).forward(GREETER_PORT);
        let plan = plan.configure(move |config| following(config, &host).document(RESTARTED));
        Self::of(plan.boot().await?, scratch, registry).await
    }

    async fn of(node: Node, scratch: &Scratch, registry: Registry) -> Result<Self> {
        node.wait_until_ready(PATIENCE).await?;
        Ok(Self {
            greeter: Greeter::of(&node)?,
            client: Instarctl::of(&node, scratch)?,
            registry,
            node,
        })
    }

    async fn update(&self) -> Result<Value> {
        let said = self
            .client
            .run(&["get", "updates", GREETER, "-o", "json"])
            .await?;
        ensure!(said.code == Some(0), "{said:?}");
        let shown: Value = serde_json::from_str(&said.output)?;
        Ok(shown["spec"].clone())
    }

    /// Waits until the update is in this state, with this image.
    async fn becomes(&self, state: &str, found: &str) -> Outcome {
        let what = format!("the update is {state}");
        self.node
            .wait_until(&what, PATIENCE, async || {
                let update = self.update().await?;
                let (is, image) = (&update["state"], &update["found"]);
                ensure!(is == state && image == found, "{update:#}");
                Ok(())
            })
            .await
    }

    async fn runs(&self, edition: &str) -> Outcome {
        self.node
            .wait_until("it runs the edition", PATIENCE, async || {
                let runs = self.greeter.get("/read/edition")?;
                ensure!(runs == edition, "it runs {runs}, not {edition}");
                Ok(())
            })
            .await
    }

    async fn approve(&self, digest: &str) -> Result<Said> {
        self.client
            .run(&["image", "approve", GREETER, digest])
            .await
    }

    async fn in_force(&self, digest: &str) -> Outcome {
        let update = self.update().await?;
        ensure!(update["inForce"] == digest, "not {digest}: {update:#}");
        Ok(())
    }
}

/// A config whose greeter follows its image's name.
fn following(config: MachineConfig, host: &str) -> MachineConfig {
    let image = format!("{host}/app:stable");
    config
        .registry(host)
        .greeter_at(GREETER, &image, GREETER_PORT, WITH_CGROUPS)
        .document(FOLLOWED)
}

/// Pushes the greeter behind the tag that the node follows; returns the digest.
fn push(registry: &Registry, edition: &str, version: &str, program: &str) -> Result<String> {
    let image = greeter_image(edition)?
        .entrypoint(&[program])
        .label(VERSION, version)
        .created("2026-11-25T22:00:00Z");
    Ok(image.push(registry, "app", "stable")?.digest)
}

async fn a_container_follows_its_images_name(scratch: Scratch) -> Outcome {
    let registry = Registry::start(&scratch)?;
    let first = push(&registry, "one", "1.0.0", "/greeter")?;
    let subject = Subject::boot(&scratch, registry).await?;
    subject.runs("one").await?;
    subject.becomes("current", "").await?;
    subject.in_force(&first).await?;
    chapters![
        a_rebuild_starts_by_itself(&subject),
        a_rebuild_that_fails_is_gone_back_from(&subject),
        another_version_waits_for_its_approval(&subject),
        after_a_power_cut_everything_is_as_it_was(subject, &scratch),
    ]
    .await
}

async fn a_rebuild_starts_by_itself(subject: &Subject) -> Outcome {
    let rebuilt = push(&subject.registry, "two", "1.0.0", "/greeter")?;
    subject.runs("two").await?;
    subject.becomes("current", "").await?;
    subject.in_force(&rebuilt).await
}

async fn a_rebuild_that_fails_is_gone_back_from(subject: &Subject) -> Outcome {
    let before = subject.update().await?["inForce"].clone();
    let broken = push(&subject.registry, "broken", "1.0.0", "/not-there")?;
    subject.becomes("returned", &broken).await?;
    subject.runs("two").await?;
    let update = subject.update().await?;
    ensure!(update["inForce"] == before, "{update:#}");
    let reason = update["reason"].as_str().unwrap_or_default();
    ensure!(reason.contains("not-there"), "{update:#}");
    let log = subject.client.run(&["logs", "machined"]).await?;
    let told = "its new image was not up in time, and the one before is started again";
    ensure!(log.output.contains(told), "{log:?}");
    // It is not tried again at the next look, which is ten seconds later.
    tokio::time::sleep(std::time::Duration::from_secs(15)).await;
    subject.becomes("returned", &broken).await
}

async fn another_version_waits_for_its_approval(subject: &Subject) -> Outcome {
    let newer = push(&subject.registry, "three", "2.0.0", "/greeter")?;
    subject.becomes("approval", &newer).await?;
    subject.runs("two").await?;
    let update = subject.update().await?;
    ensure!(
        update["reason"] == "2.0.0 is another version than 1.0.0",
        "{update:#}"
    );
    an_approval_is_for_one_image(subject).await?;
    an_edit_of_the_config_is_no_approval(subject, &newer).await?;
    let said = subject.approve(&newer).await?;
    ensure!(said.code == Some(0), "{said:?}");
    subject.runs("three").await?;
    subject.becomes("current", "").await
}

async fn an_approval_is_for_one_image(subject: &Subject) -> Outcome {
    let other = format!("sha256:{}", "f".repeat(64));
    let said = subject.approve(&other).await?;
    ensure!(
        said.code == Some(5) && said.complaint.contains("does not wait"),
        "{said:?}"
    );
    Ok(())
}

/// The container starts again, for its environment, and its name means the image that waits.
async fn an_edit_of_the_config_is_no_approval(subject: &Subject, newer: &str) -> Outcome {
    let node = &subject.node;
    let before = node.service_pid(GREETER).await?;
    let edited = format!("{}{ENVIRONMENT}", node.config());
    node.apply_as(node.identity(), edited).await?;
    let restarted = async || {
        ensure!(node.service_pid(GREETER).await? != before);
        Ok(())
    };
    node.wait_until("it starts again", PATIENCE, restarted)
        .await?;
    subject.runs("two").await?;
    subject.becomes("approval", newer).await
}

async fn after_a_power_cut_everything_is_as_it_was(subject: Subject, scratch: &Scratch) -> Outcome {
    let before = subject.update().await?;
    let Subject { node, registry, .. } = subject;
    let subject = Subject::of(node.power_cycle().await?, scratch, registry).await?;
    subject.runs("three").await?;
    subject.becomes("current", "").await?;
    let digest = before["inForce"].as_str().unwrap_or_default();
    subject.in_force(digest).await
}

async fn a_machine_without_a_disk_remembers_it_over_an_upgrade(scratch: Scratch) -> Outcome {
    let registry = Registry::start(&scratch)?;
    registry.push_installer_without_kernel(&ImageUnderTest::second()?)?;
    push(&registry, "one", "1.0.0", "/greeter")?;
    let subject = Subject::without_a_disk(&scratch, registry).await?;
    subject.runs("one").await?;
    let broken = push(&subject.registry, "broken", "1.0.0", "/not-there")?;
    subject.becomes("returned", &broken).await?;
    let image = subject.registry.installer_for_guest("v0.2.0");
    let followed = upgrade_and_follow(&subject.node, &image, PATIENCE).await?;
    ensure!(followed.ending == Ending::Done, "{followed:#?}");
    chapters![what_failed_before_the_upgrade_is_not_tried_again(
        &subject, &broken
    )]
    .await
}

async fn what_failed_before_the_upgrade_is_not_tried_again(
    subject: &Subject,
    broken: &str,
) -> Outcome {
    subject.runs("one").await?;
    let pid = subject.node.service_pid(GREETER).await?;
    // The next look at the registry is within ten seconds.
    tokio::time::sleep(std::time::Duration::from_secs(15)).await;
    subject.becomes("returned", broken).await?;
    ensure!(subject.node.service_pid(GREETER).await? == pid);
    let log = subject.client.run(&["logs", "machined"]).await?;
    ensure!(!log.output.contains("its new image"), "{log:?}");
    Ok(())
}
