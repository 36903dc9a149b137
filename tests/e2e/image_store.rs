//! The store of images on a disk: what it has taken once it does not take again, and it gives it back when the disk has damaged it.

use anyhow::{Context, Result, ensure};
use instar_tests::{
    Greeter, Instarctl, Node, OciImage, Outcome, Pushed, Registry, Scratch, Test, chapters,
    plan_with_greeter, push_greeter_edition, tests,
};

use crate::PATIENCE;

const EDITION: &str = "the first edition";

pub(crate) fn tests() -> Vec<Test> {
    tests![a_store_on_a_disk_gives_back_what_it_took]
}

/// A machine with a disk that runs the greeter, and the greeter's image.
struct Story {
    node: Node,
    registry: Registry,
    client: Instarctl,
    greeter: Greeter,
    /// The greeter's image in the store, as the greeter sees it.
    image: String,
    /// Two images on the same base.
    first: Pushed,
    second: Pushed,
}

impl Story {
    async fn begin(scratch: &Scratch) -> Result<Self> {
        let registry = Registry::start(scratch)?;
        let plan = plan_with_greeter(scratch, &registry, |config| config)?;
        let digest = push_greeter_edition(&registry, EDITION)?;
        let node = plan.blank_disk()?.boot_until_ready(PATIENCE).await?;
        let hex = digest.strip_prefix("sha256:").context("no sha256")?;
        Ok(Self {
            client: Instarctl::of(&node, scratch)?,
            greeter: Greeter::of(&node)?,
            image: format!("data/lib/instar/images/{hex}/rootfs"),
            first: push_on_base(&registry, "first")?,
            second: push_on_base(&registry, "second")?,
            node,
            registry,
        })
    }

    async fn pull(&self, name: &str) -> Outcome {
        let image = self.registry.image_for_guest(name);
        let said = self.client.run(&["image", "pull", &image]).await?;
        ensure!(said.code == Some(0), "{name}: {said:?}");
        Ok(())
    }

    async fn log(&self) -> Result<String> {
        Ok(self.client.run(&["logs", "machined"]).await?.output)
    }
}

/// Pushes an image of a large layer that all have, and a small one of its own.
fn push_on_base(registry: &Registry, name: &str) -> Result<Pushed> {
    let base = vec![7; 3 << 20];
    let image = OciImage::starting(&["/own"]).files(&[("base", &base)])?;
    let image = image.files(&[("own", name.as_bytes())])?;
    image.push(registry, name, "v1")
}

async fn a_store_on_a_disk_gives_back_what_it_took(scratch: Scratch) -> Outcome {
    let story = Story::begin(&scratch).await?;
    chapters![
        a_second_image_on_the_same_base_takes_only_what_differs(&story),
        a_changed_file_is_found_at_the_next_boot_and_healed_without_the_registry(&story),
        a_pull_of_what_is_here_needs_no_registry(&story),
    ]
    .await
}

/// The registry loses the base after the first pull.
async fn a_second_image_on_the_same_base_takes_only_what_differs(story: &Story) -> Outcome {
    story.pull("first:v1").await?;
    let lost = story.first.layers.first().context("no layer")?;
    std::fs::remove_file(story.registry.blob_file(lost)?)?;
    story.pull("second:v1").await
}

async fn a_changed_file_is_found_at_the_next_boot_and_healed_without_the_registry(
    story: &Story,
) -> Outcome {
    story
        .greeter
        .get(&format!("/write/{}/edition?damage", story.image))?;
    story.registry.freeze()?;
    let said = story.client.run(&["reboot"]).await?;
    ensure!(said.code == Some(0), "{said:?}");
    story.node.wait_until_ready(PATIENCE).await?;
    let edition = story.greeter.get("/read/edition")?;
    ensure!(edition == EDITION, "{edition}");
    the_log_tells_of_the_healing(story).await
}

/// The registry takes connections, and says nothing.
async fn a_pull_of_what_is_here_needs_no_registry(story: &Story) -> Outcome {
    story.pull("second:v1").await?;
    let digest = &story.second.digest;
    story.pull(&format!("second@{digest}")).await?;
    let (log, told) = (story.log().await?, "its registry is away");
    ensure!(log.contains(told), "no {told:?} in {log}");
    Ok(())
}

async fn the_log_tells_of_the_healing(story: &Story) -> Outcome {
    let log = story.log().await?;
    for words in [
        "/edition is not as it was unpacked",
        "is made again from the blobs",
    ] {
        ensure!(log.contains(words), "no {words:?} in {log}");
    }
    Ok(())
}
