//! Which way two releases of talosctl take to another version: the server's own version decides, and flags.

use anyhow::ensure;
use instar_tests::{
    ImageUnderTest, Node, OciImage, Outcome, Registry, Release, Scratch, Talosctl, Test,
    rootfs_of_version, tests,
};

use crate::PATIENCE;
use crate::installed::INSTALLER;

/// One for which clients take the newer way.
const NEWER: &str = "v1.14.0-x.1";

pub(crate) fn tests() -> Vec<Test> {
    tests![go_the_way_that_the_version_chooses]
}

/// What must be so afterwards.
async fn runs(node: &Node, version: &str) -> Outcome {
    let runs = node.version().await?.tag;
    ensure!(runs == version, "{runs} runs");
    node.wait_until_ready(PATIENCE).await
}

async fn go_the_way_that_the_version_chooses(scratch: Scratch) -> Outcome {
    let registry = Registry::start(&scratch)?;
    let second = ImageUnderTest::second()?;
    for image in [ImageUnderTest::first()?, ImageUnderTest::second()?] {
        registry.push_layout(&image.installer(), INSTALLER, image.version())?;
    }
    let rootfs = rootfs_of_version(&scratch, &second, NEWER)?;
    OciImage::read(&second.installer())?
        .installing(NEWER, &rootfs)?
        .push(&registry, INSTALLER, NEWER)?;
    let host = registry.host_for_guest();
    let node = Node::plan(&scratch, &ImageUnderTest::first()?)
        .configure(move |config| config.registry(&host))
        .boot()
        .await?;
    node.wait_until_ready(PATIENCE).await?;
    let kernel = node.kernel_boot_id().await?;
    let [older, newer] = [Release::V1_13, Release::V1_14];
    let upgrade = async |release, tag: &str, flags: &str| {
        let image = registry.image_for_guest(&format!("{INSTALLER}:{tag}"));
        let talosctl = Talosctl::of(&node, release).await?;
        let said = talosctl.run(&format!("upgrade -i {image} {flags}")).await;
        println!("{release:?} to {tag} {flags}: {:?}", said.code);
        anyhow::Ok(said)
    };

    // A version below theirs: the legacy way, with a notice. The call may be there before the subscription.
    let said = upgrade(newer, "nowhere", "").await?;
    ensure!(
        said.code == Some(1) && said.complaint.contains("cannot be resolved"),
        "{said:?}"
    );
    let said = upgrade(newer, NEWER, "-m force").await?;
    ensure!(said.code == Some(1), "{said:?}");
    runs(&node, "v0.1.0").await?;
    // Without `--drain=false` it waits, whatever it is told.
    let said = upgrade(newer, NEWER, "--wait=false --action-first").await?;
    ensure!(
        said.code == Some(0) && said.complaint.contains("is not available"),
        "{said:#?}"
    );
    runs(&node, NEWER).await?;

    // One like theirs: in steps. Draining is the default, and takes Kubernetes: prepared, and not started.
    let said = upgrade(newer, "nowhere", "").await?;
    ensure!(
        said.code == Some(1) && said.complaint.contains("nowhere"),
        "{said:?}"
    );
    let said = upgrade(newer, "v0.2.0", "").await?;
    ensure!(
        said.code == Some(1)
            && said.output.contains("v0.2.0 is ready")
            && said.complaint.contains("no Kubernetes"),
        "{said:?}"
    );
    runs(&node, NEWER).await?;
    let said = upgrade(older, "v0.1.0", "--no-reboot").await?;
    ensure!(
        said.code == Some(0) && said.output.contains("v0.1.0 is ready"),
        "{said:?}"
    );
    runs(&node, NEWER).await?;
    the_actor_of_a_call_picks_its_events(&node).await?;
    // What the newer way does not know is passed over.
    let said = upgrade(older, "v0.2.0", "--drain=false --stage --preserve --force").await?;
    ensure!(said.code == Some(0), "{said:#?}");
    runs(&node, "v0.2.0").await?;

    // Who does not wait is answered when it begins.
    let said = upgrade(older, NEWER, "--legacy --drain=false --wait=false").await?;
    ensure!(
        said.code == Some(0) && !said.complaint.contains("not available"),
        "{said:?}"
    );
    node.wait_until("the upgrade that nobody waits for", PATIENCE, async || {
        runs(&node, NEWER).await
    })
    .await?;
    ensure!(node.kernel_boot_id().await? == kernel, "it rebooted");
    Ok(())
}

/// Of all that has happened, with what the preparation told last.
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
