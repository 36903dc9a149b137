//! Images that come onto a disk that fails, by a pull, by a bundle and by a pin: none is there by half, what runs goes on, and the next try
//! ends well.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use instar_tests::power_cuts::{is_collected, pin};
use instar_tests::{
    Greeter, ImageUnderTest, Instarctl, Node, OciImage, Outcome, Registry, Said, Scratch, bundle,
    push_greeter,
};
use serde_json::Value;

use super::failing_disk::{Defect, FailingDisk, GIVEN_UP, failures, which_writes, writes};
use super::{DISK_BYTES, on_a_failing_disk};
use crate::PATIENCE;

/// The image that comes and goes in turn.
const NAME: &str = "pulled:v1";
/// Timeout for a collection, which begins some seconds after a change.
const COLLECTION: Duration = Duration::from_secs(60);
/// Number of its files: enough for several blocks of directories.
const FILES: usize = 40;

/// The way in which an image comes and goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// It is pulled, and removed.
    Pull,
    /// A bundle brings it, and it is removed.
    Import,
    /// It is pinned; once it is unpinned, it is collected.
    Pin,
}

pub(super) async fn an_io_error_at_any_write_of_a_pull_leaves_whole_images(
    scratch: Scratch,
) -> Outcome {
    fail_each_write_in_turn(scratch, Way::Pull, Defect::Broken).await
}

pub(super) async fn a_torn_write_of_a_pull_leaves_whole_images(scratch: Scratch) -> Outcome {
    fail_each_write_in_turn(scratch, Way::Pull, Defect::Tearing).await
}

pub(super) async fn an_io_error_at_any_write_of_an_import_leaves_whole_images(
    scratch: Scratch,
) -> Outcome {
    fail_each_write_in_turn(scratch, Way::Import, Defect::Broken).await
}

pub(super) async fn a_torn_write_of_an_import_leaves_whole_images(scratch: Scratch) -> Outcome {
    fail_each_write_in_turn(scratch, Way::Import, Defect::Tearing).await
}

pub(super) async fn an_io_error_at_any_write_of_a_pin_and_a_collection_leaves_whole_images(
    scratch: Scratch,
) -> Outcome {
    fail_each_write_in_turn(scratch, Way::Pin, Defect::Broken).await
}

pub(super) async fn a_torn_write_of_a_pin_and_a_collection_leaves_whole_images(
    scratch: Scratch,
) -> Outcome {
    fail_each_write_in_turn(scratch, Way::Pin, Defect::Tearing).await
}

/// A node with a disk on which one write fails, and an image that comes and goes.
struct Story {
    node: Node,
    failing: FailingDisk,
    client: Instarctl,
    way: Way,
    image: String,
    /// A bundle with the image.
    bundle: PathBuf,
    /// The image's files in the store, as the greeter sees them.
    rootfs: String,
    _registry: Registry,
}

impl Story {
    async fn begin(scratch: &Scratch, way: Way, defect: Defect) -> Result<Self> {
        let registry = Registry::start(scratch)?;
        let pushed = image()?.push(&registry, "pulled", "v1")?;
        let hex = pushed.digest.strip_prefix("sha256:").context("no sha256")?;
        let bundle = bundle(&registry, scratch, "pulled.bundle", &[NAME]).await?;
        let (node, failing) = failing_node(scratch, &registry, defect).await?;
        Ok(Self {
            client: Instarctl::of(&node, scratch)?,
            way,
            image: registry.image_for_guest(NAME),
            bundle,
            rootfs: format!("data/lib/instar/images/{hex}/rootfs"),
            node,
            failing,
            _registry: registry,
        })
    }

    async fn ask(&self, action: &str) -> Result<Said> {
        self.client.run(&["image", action, &self.image]).await
    }

    /// Has the image come.
    async fn bring(&self) -> Result<Said> {
        match self.way {
            Way::Pull => self.ask("pull").await,
            Way::Import => {
                let bundle = self.bundle.to_string_lossy();
                let words = ["bundle", "upload", "--unchecked", &bundle];
                self.client.run(&words).await
            }
            Way::Pin => match self.ask("pin").await? {
                said if said.code == Some(0) => self.end_of_fetch().await,
                refused => Ok(refused),
            },
        }
    }

    /// Waits until the pinned image is here, or is said to be not; returns that as the end of a command.
    async fn end_of_fetch(&self) -> Result<Said> {
        let words = ["get", "pins", &self.image, "-o", "json"];
        let state = async || {
            let mut said = self.client.run(&words).await?;
            let shown: Value = serde_json::from_str(&said.output)?;
            let state = &shown["spec"]["state"];
            ensure!(state == "pinned" || state == "failed", "{shown:#}");
            if state == "failed" {
                said.code = Some(1);
            }
            Ok(said)
        };
        self.node.wait_until("its end", PATIENCE, state).await
    }

    /// Has the image go, with all its blobs.
    async fn take_away(&self) -> Result<Said> {
        let said = match self.way {
            Way::Pull | Way::Import => return self.ask("remove").await,
            Way::Pin => self.ask("unpin").await?,
        };
        let collected = is_collected(&self.node, &self.client, &self.image, COLLECTION);
        Ok(match collected.await {
            Ok(()) => said,
            // A collection that fails is tried again after the next change, or an hour later.
            Err(error) => Said {
                code: Some(1),
                complaint: format!("{error:#}"),
                ..said
            },
        })
    }

    async fn turn(&self) -> Result<[Said; 2]> {
        Ok([self.bring().await?, self.take_away().await?])
    }

    /// Brings the image on a disk that works again. The kernel reports a failed background write to the next caller, so that the first
    /// try may be refused.
    async fn bring_at_last(&self) -> Outcome {
        let first = match self.way {
            // A pin tries again by itself.
            Way::Pin => return pin(&self.node, &self.client, &self.image).await,
            Way::Pull | Way::Import => self.bring().await?,
        };
        if first.code != Some(0) {
            let again = self.bring().await?;
            ensure!(again.code == Some(0), "{first:?}, and then {again:?}");
        }
        Ok(())
    }

    async fn is_whole(&self) -> Outcome {
        let greeter = Greeter::of(&self.node)?;
        for number in 0..FILES {
            let read = greeter.get(&format!("/read/{}/{number}", self.rootfs))?;
            ensure!(read == content(number), "file {number} holds {read:?}");
        }
        Ok(())
    }

    /// Starts the machine again if the filesystem takes no writes any more.
    async fn the_machine_goes_on(self, said_before: usize) -> Result<Self> {
        let console = self.node.vm().console();
        let since = console.get(said_before..).context("a shorter console")?;
        if !since.contains(GIVEN_UP) {
            return Ok(self);
        }
        let node = self.node.power_cycle().await?;
        node.wait_until_ready(PATIENCE).await?;
        Ok(Self { node, ..self })
    }
}

/// A node with the first version that runs the greeter, on a disk with one failing write.
async fn failing_node(
    scratch: &Scratch,
    registry: &Registry,
    defect: Defect,
) -> Result<(Node, FailingDisk)> {
    push_greeter(registry)?;
    let disk = scratch.join("disk.img");
    ImageUnderTest::first()?.put_on_disk(&disk, DISK_BYTES)?;
    let failing = FailingDisk::of(&disk, defect)?;
    let node = on_a_failing_disk(scratch, registry, &disk, &failing, true).await?;
    Ok((node, failing))
}

fn image() -> Result<OciImage> {
    let files: Vec<(String, String)> = (0..FILES)
        .map(|number| (number.to_string(), content(number)))
        .collect();
    let files: Vec<(&str, &[u8])> = files
        .iter()
        .map(|(name, content)| (name.as_str(), content.as_bytes()))
        .collect();
    let (base, own) = files.split_at(FILES / 2);
    OciImage::starting(&["/0"]).files(base)?.files(own)
}

/// The content of a file: some blocks of text that differ from file to file.
fn content(number: usize) -> String {
    format!("{number:08} ").repeat(900 + 100 * number)
}

async fn fail_each_write_in_turn(scratch: Scratch, way: Way, defect: Defect) -> Outcome {
    let mut story = Story::begin(&scratch, way, defect).await?;
    let all = writes_of_an_undisturbed_turn(&story).await?;
    let mut refused = 0;
    for write in which_writes(all)? {
        let tried = a_write_is_lost(story, write).await;
        let (after, was_refused) = tried.with_context(|| format!("write {write} of {all}"))?;
        refused += usize::from(was_refused);
        story = after;
    }
    println!(
        "{all} writes of a {way:?} and a removal; {refused} of the turns that lost one were refused"
    );
    Ok(())
}

/// The first turn makes directories that stay.
async fn writes_of_an_undisturbed_turn(story: &Story) -> Result<u64> {
    let mut before = 0;
    for _ in 0..2 {
        before = writes(&story.node)?;
        for said in story.turn().await? {
            ensure!(said.code == Some(0), "{said:?}");
        }
    }
    Ok(writes(&story.node)? - before)
}

/// Returns whether the image's coming or going was refused.
async fn a_write_is_lost(story: Story, write: u64) -> Result<(Story, bool)> {
    let (said_before, before) = (story.node.vm().console().len(), failures(&story.node)?);
    story.failing.fail(story.node.vm(), Some(write))?;
    let turn = story.turn().await?;
    let was_refused = turn.iter().any(|said| said.code != Some(0));
    let failed = failures(&story.node)? > before;
    story.failing.fail(story.node.vm(), None)?;
    ensure!(failed || !was_refused, "no write failed: {turn:?}");
    let story = story.the_machine_goes_on(said_before).await?;
    the_next_try_ends_well(&story).await?;
    Ok((story, was_refused))
}

async fn the_next_try_ends_well(story: &Story) -> Outcome {
    story.bring_at_last().await?;
    story.is_whole().await?;
    let said = story.take_away().await?;
    ensure!(said.code == Some(0), "{said:?}");
    Ok(())
}
