//! Pulls of images onto a disk that fails: no image is there by half, what runs goes on, and the next pull ends well.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use instar_tests::{
    Greeter, ImageUnderTest, Instarctl, Node, OciImage, Outcome, Registry, Said, Scratch,
    push_greeter,
};

use super::failing_disk::{Defect, FailingDisk, GIVEN_UP, failures, which_writes, writes};
use super::{DISK_BYTES, on_a_failing_disk};
use crate::PATIENCE;

/// The image that is pulled and removed in turn.
const NAME: &str = "pulled:v1";
/// Number of its files: enough for several blocks of directories.
const FILES: usize = 40;

pub(super) async fn an_io_error_at_any_write_of_a_pull_leaves_whole_images(
    scratch: Scratch,
) -> Outcome {
    fail_each_write_in_turn(scratch, Defect::Broken).await
}

pub(super) async fn a_torn_write_of_a_pull_leaves_whole_images(scratch: Scratch) -> Outcome {
    fail_each_write_in_turn(scratch, Defect::Tearing).await
}

/// A node with a disk on which one write fails, and an image that comes and goes.
struct Story {
    node: Node,
    failing: FailingDisk,
    client: Instarctl,
    image: String,
    /// The image's files in the store, as the greeter sees them.
    rootfs: String,
    _registry: Registry,
}

impl Story {
    async fn begin(scratch: &Scratch, defect: Defect) -> Result<Self> {
        let registry = Registry::start(scratch)?;
        push_greeter(&registry)?;
        let pushed = image()?.push(&registry, "pulled", "v1")?;
        let hex = pushed.digest.strip_prefix("sha256:").context("no sha256")?;
        let (disk, failing) = failing_disk(scratch, defect)?;
        let node = on_a_failing_disk(scratch, &registry, &disk, &failing, true).await?;
        Ok(Self {
            client: Instarctl::of(&node, scratch)?,
            image: registry.image_for_guest(NAME),
            rootfs: format!("data/lib/instar/images/{hex}/rootfs"),
            node,
            failing,
            _registry: registry,
        })
    }

    async fn ask(&self, action: &str) -> Result<Said> {
        self.client.run(&["image", action, &self.image]).await
    }

    /// Pulls and removes the image, with all its blobs.
    async fn turn(&self) -> Result<[Said; 2]> {
        Ok([self.ask("pull").await?, self.ask("remove").await?])
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

/// A disk with the first version.
fn failing_disk(scratch: &Scratch, defect: Defect) -> Result<(PathBuf, FailingDisk)> {
    let disk = scratch.join("disk.img");
    ImageUnderTest::first()?.put_on_disk(&disk, DISK_BYTES)?;
    let failing = FailingDisk::of(&disk, defect)?;
    Ok((disk, failing))
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

async fn fail_each_write_in_turn(scratch: Scratch, defect: Defect) -> Outcome {
    let mut story = Story::begin(&scratch, defect).await?;
    let all = writes_of_an_undisturbed_turn(&story).await?;
    let mut refused = 0;
    for write in which_writes(all)? {
        let tried = a_write_is_lost(story, write).await;
        let (after, was_refused) = tried.with_context(|| format!("write {write} of {all}"))?;
        refused += usize::from(was_refused);
        story = after;
    }
    println!(
        "{all} writes of a pull and a removal; {refused} of the turns that lost one were refused"
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

/// Returns whether the pull or the removal was refused.
async fn a_write_is_lost(story: Story, write: u64) -> Result<(Story, bool)> {
    let (said_before, before) = (story.node.vm().console().len(), failures(&story.node)?);
    story.failing.fail(story.node.vm(), Some(write))?;
    let turn = story.turn().await?;
    let was_refused = turn.iter().any(|said| said.code != Some(0));
    let failed = failures(&story.node)? > before;
    story.failing.fail(story.node.vm(), None)?;
    ensure!(failed || !was_refused, "no write failed: {turn:?}");
    let story = story.the_machine_goes_on(said_before).await?;
    the_next_pull_ends_well(&story).await?;
    Ok((story, was_refused))
}

/// The kernel reports a failed background write to the next caller, so that the first attempt may be refused.
async fn the_next_pull_ends_well(story: &Story) -> Outcome {
    let first = story.ask("pull").await?;
    if first.code != Some(0) {
        let again = story.ask("pull").await?;
        ensure!(again.code == Some(0), "{first:?}, and then {again:?}");
    }
    story.is_whole().await?;
    let said = story.ask("remove").await?;
    ensure!(said.code == Some(0), "{said:?}");
    Ok(())
}
