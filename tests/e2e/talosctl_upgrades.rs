//! The method by which two releases of talosctl upgrade: it depends on the server's version, and on flags.

use anyhow::ensure;
use instar_tests::{
    INSTALLER, ImageUnderTest, Node, OciImage, Outcome, Registry, Release, Said, Scratch, Talosctl,
    Test, rootfs_of_version, tests,
};

use crate::PATIENCE;

/// A version for which clients take the newer method.
const NEWER: &str = "v1.14.0-x.1";

pub(crate) fn tests() -> Vec<Test> {
    tests![upgrades_of_talosctl_go_the_way_that_the_version_chooses]
}

/// Checks that this version runs.
async fn runs(node: &Node, version: &str) -> Outcome {
    let runs = node.version().await?.tag;
    ensure!(runs == version, "{runs} runs");
    node.wait_until_ready(PATIENCE).await
}

async fn upgrades_of_talosctl_go_the_way_that_the_version_chooses(scratch: Scratch) -> Outcome {
    let registry = Registry::start(&scratch)?;
    let story = Story::begin(&scratch, &registry).await?;
    let kernel = story.node.kernel_boot_id().await?;
    an_upgrade_that_is_refused_changes_nothing(&story).await?;
    an_older_version_is_left_by_the_legacy_way_with_a_notice(&story).await?;
    a_newer_version_is_left_in_steps_of_which_the_first_may_fail(&story).await?;
    draining_takes_kubernetes_so_nothing_is_started(&story).await?;
    a_version_is_prepared_without_a_reboot(&story).await?;
    the_actor_of_a_call_picks_its_events(&story.node).await?;
    flags_that_the_newer_way_does_not_know_are_passed_over(&story).await?;
    who_does_not_wait_is_answered_when_the_upgrade_begins(&story).await?;
    ensure!(story.node.kernel_boot_id().await? == kernel, "it rebooted");
    Ok(())
}

/// A node, and versions for which clients take one method or the other.
struct Story<'a> {
    node: Node,
    registry: &'a Registry,
}

impl<'a> Story<'a> {
    async fn begin(scratch: &Scratch, registry: &'a Registry) -> anyhow::Result<Self> {
        let second = ImageUnderTest::second()?;
        for image in [ImageUnderTest::first()?, ImageUnderTest::second()?] {
            registry.push_installer(&image)?;
        }
        let rootfs = rootfs_of_version(scratch, &second, NEWER)?;
        OciImage::read(&second.installer())?
            .installing(NEWER, &rootfs)?
            .push(registry, INSTALLER, NEWER)?;
        let host = registry.host_for_guest();
        let node = Node::plan(scratch, &ImageUnderTest::first()?)
            .configure(move |config| config.registry(&host))
            .boot_until_ready(PATIENCE)
            .await?;
        Ok(Self { node, registry })
    }

    async fn upgrade(&self, release: Release, tag: &str, flags: &str) -> anyhow::Result<Said> {
        let image = self.registry.installer_for_guest(tag);
        let talosctl = Talosctl::of(&self.node, release).await?;
        let said = talosctl.run(&format!("upgrade -i {image} {flags}")).await;
        println!("{release:?} to {tag} {flags}: {:?}", said.code);
        Ok(said)
    }
}

/// The call may arrive before the subscription.
async fn an_upgrade_that_is_refused_changes_nothing(story: &Story<'_>) -> Outcome {
    let said = story.upgrade(Release::V1_14, "nowhere", "").await?;
    ensure!(
        said.code == Some(1) && said.complaint.contains("cannot be resolved"),
        "{said:?}"
    );
    let said = story.upgrade(Release::V1_14, NEWER, "-m force").await?;
    ensure!(said.code == Some(1), "{said:?}");
    runs(&story.node, "v0.1.0").await
}

/// Without `--drain=false` the client waits, whatever other flags say.
async fn an_older_version_is_left_by_the_legacy_way_with_a_notice(story: &Story<'_>) -> Outcome {
    let flags = "--wait=false --action-first";
    let said = story.upgrade(Release::V1_14, NEWER, flags).await?;
    ensure!(
        said.code == Some(0) && said.complaint.contains("is not available"),
        "{said:#?}"
    );
    runs(&story.node, NEWER).await
}

async fn a_newer_version_is_left_in_steps_of_which_the_first_may_fail(
    story: &Story<'_>,
) -> Outcome {
    let said = story.upgrade(Release::V1_14, "nowhere", "").await?;
    ensure!(
        said.code == Some(1) && said.complaint.contains("nowhere"),
        "{said:?}"
    );
    Ok(())
}

/// Draining is the default, between two steps.
async fn draining_takes_kubernetes_so_nothing_is_started(story: &Story<'_>) -> Outcome {
    let said = story.upgrade(Release::V1_14, "v0.2.0", "").await?;
    ensure!(
        said.code == Some(1)
            && said.output.contains("v0.2.0 is ready")
            && said.complaint.contains("no Kubernetes"),
        "{said:?}"
    );
    runs(&story.node, NEWER).await
}

async fn a_version_is_prepared_without_a_reboot(story: &Story<'_>) -> Outcome {
    let flags = "--no-reboot";
    let said = story.upgrade(Release::V1_13, "v0.1.0", flags).await?;
    ensure!(
        said.code == Some(0) && said.output.contains("v0.1.0 is ready"),
        "{said:?}"
    );
    runs(&story.node, NEWER).await
}

async fn flags_that_the_newer_way_does_not_know_are_passed_over(story: &Story<'_>) -> Outcome {
    let flags = "--drain=false --stage --preserve --force";
    let said = story.upgrade(Release::V1_13, "v0.2.0", flags).await?;
    ensure!(said.code == Some(0), "{said:#?}");
    runs(&story.node, "v0.2.0").await
}

async fn who_does_not_wait_is_answered_when_the_upgrade_begins(story: &Story<'_>) -> Outcome {
    let flags = "--legacy --drain=false --wait=false";
    let said = story.upgrade(Release::V1_13, NEWER, flags).await?;
    ensure!(
        said.code == Some(0) && !said.complaint.contains("not available"),
        "{said:?}"
    );
    let node = &story.node;
    node.wait_until("the upgrade that nobody waits for", PATIENCE, async || {
        runs(node, NEWER).await
    })
    .await
}

/// Picks the call's events from the whole history, with the last message of the preparation.
async fn the_actor_of_a_call_picks_its_events(node: &Node) -> Outcome {
    let talosctl = Talosctl::of(node, Release::V1_13).await?;
    let is_the_end = |line: &str| line.contains("sequence stageUpgrade STOP");
    let all = talosctl.run_until("events --tail -1", is_the_end).await;
    let last = all.output.lines().last().unwrap_or_default();
    let actor = last.split('"').nth(1).unwrap_or_default();
    ensure!(actor.len() == 36, "{all:?}");
    let of_actor = format!("events --tail -1 --actor-id {actor}");
    let own = talosctl.run_until(&of_actor, is_the_end).await;
    ensure!(
        own.output.lines().count() > 2 && own.output.lines().all(|line| line.contains(actor)),
        "{own:?}"
    );
    ensure!(own.output.lines().count() < all.output.lines().count());
    Ok(())
}
