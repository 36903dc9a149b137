//! The config chooses one disk of several.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use instar_qemu::{DiskFormat, create_blank_disk};
use instar_tests::{
    Identity, ImageUnderTest, Instarctl, MachineConfig, Node, NodePlan, Outcome, Release, Said,
    Scratch, Talosctl, chapters,
};

use super::GIB;
use crate::PATIENCE;

/// The former content of the disks of [`the_disk_of_the_config_is_the_only_one_that_is_written`].
const OTHERS_DATA: &[u8] = b"somebody else's data, of no kind that anybody knows; ";

/// The selector of the disk that is chosen.
const LARGEST: &str = "disk.size > 1500u * MiB && !disk.readonly";

/// One disk is chosen; of the others not a byte changes, whatever the request. A node in maintenance mode first makes a
/// dry run, which names the obstacles, and then the installation.
pub(super) async fn the_disk_of_the_config_is_the_only_one_that_is_written(
    scratch: Scratch,
) -> Outcome {
    let disks = Disks::make(&scratch)?;
    let others = disks.digests_of_others()?;
    let blank = digest(&disks.chosen)?;
    let story = Story::begin(&scratch, &disks).await?;
    chapters![
        whoever_has_seen_the_console_is_answered(&story),
        a_dry_run_tells_what_would_be_done(&story),
        the_chosen_disk_is_still_blank(&disks, blank, "a dry run"),
        an_image_that_could_not_be_started_is_refused(&story),
        the_chosen_disk_is_still_blank(&disks, blank, "a config that was refused"),
        the_chosen_disk_is_taken(&story),
        the_machine_is_shut_down(&story.node),
        the_other_disks_are_as_before(&disks, others),
    ]
    .await
}

async fn a_dry_run_tells_what_would_be_done(story: &Story<'_>) -> Outcome {
    chapters![
        a_disk_that_cannot_be_taken_is_refused_with_the_reason(story),
        to_wipe_is_told_as_destruction(story),
        the_plan_for_the_chosen_disk_is_told(story),
    ]
    .await
}

async fn the_chosen_disk_is_still_blank(
    disks: &Disks,
    blank: blake3::Hash,
    after: &str,
) -> Outcome {
    let now = digest(&disks.chosen)?;
    ensure!(now == blank, "{after} wrote to the disk");
    Ok(())
}

async fn the_other_disks_are_as_before(disks: &Disks, before: Vec<blake3::Hash>) -> Outcome {
    for (file, before) in disks.others().into_iter().zip(before) {
        let now = digest(file)?;
        ensure!(now == before, "{} has changed", file.display());
    }
    Ok(())
}

struct Disks {
    foreign: PathBuf,
    unknown: PathBuf,
    small: PathBuf,
    read_only: PathBuf,
    chosen: PathBuf,
}

impl Disks {
    fn make(scratch: &Scratch) -> Result<Self> {
        Ok(Self {
            foreign: with_foreign_filesystem(scratch.join("foreign.img"))?,
            unknown: with_data_of_no_kind(scratch)?,
            small: blank(scratch.join("small.img"), 64 << 20)?,
            read_only: blank(scratch.join("read-only.img"), GIB)?,
            chosen: blank(scratch.join("chosen.img"), 2 * GIB)?,
        })
    }

    fn digests_of_others(&self) -> Result<Vec<blake3::Hash>> {
        let others = self.others().into_iter();
        others.map(|file| digest(file)).collect()
    }

    fn others(&self) -> [&PathBuf; 4] {
        [&self.foreign, &self.unknown, &self.small, &self.read_only]
    }
}

fn blank(file: PathBuf, bytes: u64) -> Result<PathBuf> {
    create_blank_disk(&file, DiskFormat::Raw, bytes)?;
    Ok(file)
}

fn with_foreign_filesystem(file: PathBuf) -> Result<PathBuf> {
    let file = blank(file, GIB)?;
    let mut mkfs = Command::new("mkfs.ext4");
    ensure!(mkfs.arg("-q").arg(&file).status()?.success());
    Ok(file)
}

fn with_data_of_no_kind(scratch: &Scratch) -> Result<PathBuf> {
    let file = scratch.write("unknown.img", OTHERS_DATA.repeat(1 << 14))?;
    std::fs::File::options()
        .write(true)
        .open(&file)?
        .set_len(GIB)?;
    Ok(file)
}

/// Plans the node. The read-only disk is `/dev/vde`.
fn plan_with(scratch: &Scratch, disks: &Disks) -> Result<NodePlan> {
    let read_only = disks.read_only.display();
    let read_only = format!("file={read_only},format=raw,if=virtio,readonly=on");
    Ok(Node::plan(scratch, &ImageUnderTest::first()?)
        .disk(&disks.foreign)
        .disk(&disks.unknown)
        .disk(&disks.small)
        .disk(&disks.chosen)
        .spec(|spec| spec.extra_argument("-drive").extra_argument(read_only)))
}

/// A node in maintenance mode, its client, and the fingerprint on its console.
struct Story<'a> {
    scratch: &'a Scratch,
    node: Node,
    client: Instarctl,
    address: String,
    fingerprint: String,
    config: MachineConfig,
}

impl<'a> Story<'a> {
    async fn begin(scratch: &'a Scratch, disks: &Disks) -> Result<Self> {
        let identity = Identity::administrator()?;
        let config = MachineConfig::new(&identity).hostname("node");
        let plan = plan_with(scratch, disks)?;
        let node = plan.without_config(identity).start()?;
        node.wait_for_line("machined: the API answers on port", PATIENCE)?;
        Ok(Self {
            scratch,
            address: node.endpoint()?,
            client: Instarctl::of(&node, scratch)?,
            // The console shows the fingerprint again with each new address; it is the same each time.
            fingerprint: node.fingerprint_on_console()?,
            config,
            node,
        })
    }

    async fn insecure(&self, arguments: &[&str]) -> Result<Said> {
        let pin = ["--cert-fingerprint", &self.fingerprint];
        let always = [&["--insecure", "-n", &self.address][..], &pin].concat();
        self.client.run(&[&always, arguments].concat()).await
    }

    /// Applies a config with this selector of the disk.
    async fn apply(&self, matches: &str, wipe: bool, more: &[&str]) -> Result<Said> {
        let document = format!(
            "apiVersion: v1alpha1\nkind: UnattendedInstallConfig\nprovisioning:\n  wipe: {wipe}\n  diskSelector:\n    match: {matches}\n"
        );
        let config = self.config.clone().document(&document).to_yaml();
        let file = self.scratch.write("config.yaml", config)?;
        let file = file.display().to_string();
        let apply = [&["apply-config", "--file", &file], more].concat();
        self.insecure(&apply).await
    }
}

async fn whoever_has_seen_the_console_is_answered(story: &Story<'_>) -> Outcome {
    let said = story.insecure(&["version"]).await?;
    ensure!(said.code == Some(0), "{said:?}");
    Ok(())
}

/// Disks that are refused, and words of the reason.
const REFUSED: [(&str, &[&str]); 6] = [
    (
        "disk.size >= 1u * GiB",
        &["more than one disk", "/dev/vda", "/dev/vdd"],
    ),
    (
        "disk.serial == \"nobody\"",
        &["no disk matches", "/dev/vda", "/dev/vdd"],
    ),
    (
        "disk.dev_path == \"/dev/vda\"",
        &["/dev/vda holds an ext2/3/4 filesystem", "set wipe"],
    ),
    (
        "disk.dev_path == \"/dev/vdb\"",
        &["/dev/vdb holds", "set wipe"],
    ),
    ("disk.dev_path == \"/dev/vdc\"", &["/dev/vdc has 64 MiB"]),
    ("disk.dev_path == \"/dev/vde\"", &["/dev/vde is read-only"]),
];

async fn a_disk_that_cannot_be_taken_is_refused_with_the_reason(story: &Story<'_>) -> Outcome {
    for (matches, said) in REFUSED {
        let refused = story.apply(matches, false, &["--dry-run"]).await?;
        ensure!(refused.code != Some(0), "{matches}: {refused:?}");
        let complaint = &refused.complaint;
        let is_told = said.iter().all(|part| complaint.contains(part));
        ensure!(is_told, "{matches}: {refused:?}");
    }
    Ok(())
}

async fn to_wipe_is_told_as_destruction(story: &Story<'_>) -> Outcome {
    let foreign = "disk.dev_path == \"/dev/vda\"";
    let by_force = story.apply(foreign, true, &["--dry-run"]).await?;
    ensure!(
        by_force.code == Some(0) && by_force.output.contains("DESTROYING"),
        "{by_force:?}"
    );
    Ok(())
}

async fn the_plan_for_the_chosen_disk_is_told(story: &Story<'_>) -> Outcome {
    let plan = story.apply(LARGEST, false, &["--dry-run"]).await?;
    let table = "/dev/vdd (2 GiB): write a new partition table";
    ensure!(
        plan.code == Some(0) && plan.output.contains(table) && plan.output.contains("3 EPHEMERAL"),
        "{plan:?}"
    );
    Ok(())
}

/// The machine was not started by UEFI.
async fn an_image_that_could_not_be_started_is_refused(story: &Story<'_>) -> Outcome {
    let image = "registry.example/installer:v1";
    let image = story.config.clone().install("/dev/vdd", image);
    let file = story.scratch.write("image.yaml", image.to_yaml())?;
    let file = file.display().to_string();
    let refused = story.insecure(&["apply-config", "--file", &file]).await?;
    ensure!(
        refused.code != Some(0) && refused.complaint.contains("UEFI"),
        "{refused:?}"
    );
    Ok(())
}

async fn the_chosen_disk_is_taken(story: &Story<'_>) -> Outcome {
    let taken = story.apply(LARGEST, false, &[]).await?;
    ensure!(taken.code == Some(0), "{taken:?}");
    let node = &story.node;
    node.wait_for_line("/var is the partition /dev/vdd3", PATIENCE)?;
    node.wait_until_ready(PATIENCE).await
}

async fn the_machine_is_shut_down(node: &Node) -> Outcome {
    let talosctl = Talosctl::of(node, Release::V1_13).await?;
    let said = talosctl.run("shutdown --wait=false").await;
    ensure!(said.code == Some(0), "{said:?}");
    ensure!(node.vm().wait_for_end(PATIENCE)?.is_clean());
    Ok(())
}

fn digest(file: &Path) -> Result<blake3::Hash> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(std::fs::File::open(file)?)?;
    Ok(hasher.finalize())
}
