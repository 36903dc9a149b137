//! The owned disk over boots: made once, reused, and grown when the disk has grown.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use instar_pki::Role;
use instar_qemu::{ConsoleMark, DiskFormat, create_blank_disk};
use instar_tests::{
    Identity, ImageUnderTest, Instarctl, MachineConfig, Node, NodePlan, Outcome, Release, Said,
    Scratch, Talosctl, Test, chapters, tests,
};

use crate::PATIENCE;

const GIB: u64 = 1 << 30;

pub(crate) fn tests() -> Vec<Test> {
    tests![
        the_disk_is_made_then_reused_and_grown,
        the_disk_holds_the_config_over_a_reboot,
        the_disk_forgets_what_a_reset_wipes,
        a_machine_goes_on_after_a_reset_as_a_new_one,
        the_disk_of_the_config_is_the_only_one_that_is_written,
        a_missing_disk_is_reported_and_not_fatal
    ]
}

fn plan(scratch: &Scratch) -> Result<NodePlan> {
    Ok(Node::plan(scratch, &ImageUnderTest::first()?)
        .disk(scratch.join("disk.img"))
        .configure(|config| config.install_disk("/dev/vda")))
}

async fn the_disk_is_made_then_reused_and_grown(scratch: Scratch) -> Outcome {
    let disk = scratch.join("disk.img");
    create_blank_disk(&disk, DiskFormat::Raw, GIB)?;
    let node = plan(&scratch)?.name("first").boot().await?;
    chapters![
        a_partition_is_made(&node),
        a_shutdown_tells_its_end_to_whoever_listens(&node),
    ]
    .await?;
    drop(node);

    let file = std::fs::OpenOptions::new().write(true).open(&disk)?;
    file.set_len(2 * GIB)?;
    let node = plan(&scratch)?.name("second").boot().await?;
    chapters![the_partition_is_reused_and_grown(&node)].await
}

/// A machine that still boots refuses to be shut down.
async fn a_partition_is_made(node: &Node) -> Outcome {
    let made = node.wait_for_line("/var is the partition /dev/vda3", PATIENCE)?;
    ensure!(made.contains("new)"), "{made}");
    node.wait_until_ready(PATIENCE).await
}

/// Also to who subscribes after the call. Whoever follows a log hears of the end, and does not come back.
async fn a_shutdown_tells_its_end_to_whoever_listens(node: &Node) -> Outcome {
    let talosctl = Talosctl::of(node, Release::V1_14).await?;
    let (said, followed) = tokio::join!(
        talosctl.run("shutdown --force --action-first"),
        talosctl.run("dmesg -f")
    );
    ensure!(said.code == Some(0), "{said:#?}");
    ensure!(
        followed.code == Some(1) && followed.complaint.contains("Unavailable"),
        "{:?}",
        followed.complaint
    );
    ensure!(node.vm().wait_for_end(PATIENCE)?.is_clean());
    Ok(())
}

/// The kernel's own word: 4096 bytes a block, and all of the disk but EFI and STATE before it is the filesystem's.
async fn the_partition_is_reused_and_grown(node: &Node) -> Outcome {
    let reused = node.wait_for_line("/var is the partition /dev/vda3", PATIENCE)?;
    ensure!(
        reused.contains("reused)") && reused.contains("1.8 GiB"),
        "{reused}"
    );
    let grown = node.wait_for_line("resized filesystem to ", PATIENCE)?;
    let blocks = grown.rsplit(' ').next().unwrap_or_default().trim();
    let bytes = blocks.parse::<u64>()? * 4096;
    ensure!((2 * GIB - (160 << 20)..2 * GIB).contains(&bytes), "{grown}");
    Ok(())
}

/// What a machine was once told is enough for it to come back, and to be the same machine.
async fn the_disk_holds_the_config_over_a_reboot(scratch: Scratch) -> Outcome {
    create_blank_disk(&scratch.join("disk.img"), DiskFormat::Raw, GIB)?;
    let node = plan(&scratch)?.name("first").boot().await?;
    node.wait_until_ready(PATIENCE).await?;
    // What was written is on the disk, whatever happens next.
    let identity = node.end();
    let plan = plan(&scratch)?.name("second").without_config(identity);
    let node = plan.boot().await?;
    chapters![it_comes_back_as_it_was(&node), a_reset_turns_it_off(&node),].await
}

async fn it_comes_back_as_it_was(node: &Node) -> Outcome {
    node.wait_for_line("machine config: from STATE", PATIENCE)?;
    let reused = node.wait_for_line("/var is the partition /dev/vda3", PATIENCE)?;
    ensure!(reused.contains("reused)"), "{reused}");
    node.wait_until_ready(PATIENCE).await?;
    let hostname = node.hostname().await?;
    ensure!(hostname == "first", "it is called {hostname}");
    Ok(())
}

/// Without `--reboot` it is off afterwards, and a blank machine.
async fn a_reset_turns_it_off(node: &Node) -> Outcome {
    let talosctl = Talosctl::of(node, Release::V1_13).await?;
    let said = talosctl.run("reset").await;
    ensure!(said.code == Some(0), "{said:#?}");
    ensure!(node.vm().wait_for_end(PATIENCE)?.is_clean());
    Ok(())
}

/// A machine whose config is in no firmware: a reset that erases STATE leaves it without one.
struct ResetMachine {
    node: Node,
    client: Instarctl,
    /// The config's file.
    file: String,
    /// What the console said before this was before the last start.
    mark: ConsoleMark,
}

impl ResetMachine {
    fn start(scratch: &Scratch) -> Result<Self> {
        create_blank_disk(&scratch.join("disk.img"), DiskFormat::Raw, GIB)?;
        let identity = Identity::administrator()?;
        let config = MachineConfig::new(&identity).hostname("reset-me");
        let config = config.install_disk("/dev/vda").to_yaml();
        let file = scratch.write("config.yaml", config)?;
        let node = plan(scratch)?.without_config(identity).start()?;
        Ok(Self {
            client: Instarctl::of(&node, scratch)?,
            mark: node.vm().console_mark()?,
            file: file.display().to_string(),
            node,
        })
    }

    /// Brings the config to the machine that waits for one; its /var then is `new)` or `reused)`.
    async fn configure(&mut self, var: &str) -> Outcome {
        let (node, mark) = (&self.node, self.mark);
        for line in [
            "no machine config: maintenance mode",
            "the API answers on port",
        ] {
            node.vm().wait_for_line_after(mark, line, PATIENCE)?;
        }
        node.wait_until("it takes a config", PATIENCE, || self.takes_the_config())
            .await?;
        self.finds_var(var)?;
        node.wait_until_ready(PATIENCE).await?;
        self.mark = node.vm().console_mark()?;
        Ok(())
    }

    async fn takes_the_config(&self) -> Outcome {
        let (address, file) = (self.node.endpoint()?, &self.file);
        let apply = ["apply-config", "--insecure", "-n", &address, "-f", file];
        let said = self.client.run(&apply).await?;
        ensure!(said.code == Some(0), "{said:?}");
        Ok(())
    }

    fn finds_var(&self, state: &str) -> Outcome {
        let line = "/var is the partition /dev/vda3";
        let vm = self.node.vm();
        let line = vm.wait_for_line_after(self.mark, line, PATIENCE)?.text;
        ensure!(line.contains(state), "{line}");
        Ok(())
    }
}

async fn a_machine_goes_on_after_a_reset_as_a_new_one(scratch: Scratch) -> Outcome {
    let mut machine = ResetMachine::start(&scratch)?;
    machine.configure("new)").await?;
    chapters![
        a_reset_of_state_leaves_what_is_on_ephemeral(&mut machine),
        a_reset_of_the_disk_leaves_nothing(&mut machine),
        is_not_rebooted_by_others(&machine.node),
        after_a_reset_of_ephemeral_it_knows_who_it_is(&machine),
    ]
    .await
}

async fn a_reset_of_state_leaves_what_is_on_ephemeral(machine: &mut ResetMachine) -> Outcome {
    let talosctl = Talosctl::of(&machine.node, Release::V1_13).await?;
    let said = talosctl
        .run("reset --reboot --system-labels-to-wipe STATE")
        .await;
    ensure!(said.code == Some(0), "{said:#?}");
    machine.configure("reused)").await
}

async fn a_reset_of_the_disk_leaves_nothing(machine: &mut ResetMachine) -> Outcome {
    let reset = ["reset", "--reboot", "--graceful=false"];
    let said = machine.client.run(&reset).await?;
    ensure!(said.code == Some(0), "{said:?}");
    machine.configure("new)").await
}

async fn after_a_reset_of_ephemeral_it_knows_who_it_is(machine: &ResetMachine) -> Outcome {
    let node = &machine.node;
    let talosctl = Talosctl::of(node, Release::V1_14).await?;
    let said = talosctl
        .run("reset --reboot --action-first --graceful=false --system-labels-to-wipe EPHEMERAL")
        .await;
    ensure!(said.code == Some(0), "{said:#?}");
    node.wait_for_api(PATIENCE).await?;
    machine.finds_var("new)")?;
    ensure!(node.hostname().await? == "reset-me");
    Ok(())
}

async fn is_not_rebooted_by_others(node: &Node) -> Outcome {
    chapters![
        is_not_rebooted_by_who_may_only_look(node),
        does_not_answer_who_shows_no_certificate(node),
    ]
    .await
}

async fn is_not_rebooted_by_who_may_only_look(node: &Node) -> Outcome {
    let reader = node.identity().with_role(Role::Reader)?;
    let reader = Talosctl::by(node, &reader, Release::V1_14).await?;
    let said = reader.run("reboot").await;
    ensure!(said.code == Some(1), "{said:?}");
    ensure!(said.complaint.contains("not authorized"), "{said:?}");
    Ok(())
}

async fn does_not_answer_who_shows_no_certificate(node: &Node) -> Outcome {
    let said = match Talosctl::insecure(node, Release::V1_13).await {
        Ok(nobody) => nobody.run("version").await.code,
        Err(_) => Some(1),
    };
    ensure!(
        said == Some(1),
        "somebody without a certificate is answered"
    );
    Ok(())
}

/// Nothing of what was wiped can be read from the disk; the machine waits for a config, as a new one does.
async fn the_disk_forgets_what_a_reset_wipes(scratch: Scratch) -> Outcome {
    let disk = scratch.join("disk.img");
    create_blank_disk(&disk, DiskFormat::Raw, GIB)?;
    let plan = plan(&scratch)?.configure(with_the_mark);
    let node = plan.name("first").boot().await?;
    let client = Instarctl::of(&node, &scratch)?;
    chapters![
        the_config_is_on_the_disk(&node, &disk),
        a_partition_of_no_known_name_is_not_wiped(&client),
        state_and_ephemeral_are_wiped(&client, &node),
        the_config_is_not_on_the_disk(&disk),
        without_a_config_it_waits_for_one(&scratch, node.end()),
    ]
    .await
}

/// A name that is only in the config.
const MARK: &str = "a-name-that-is-only-in-the-config";

fn with_the_mark(config: MachineConfig) -> MachineConfig {
    config
        .install_disk("/dev/vda")
        .document(&format!("apiVersion: v1alpha1\nkind: UserVolumeConfig\nname: data\nvolumeType: directory\n# {MARK}\n"))
}

fn holds_the_mark(disk: &Path) -> Result<bool> {
    let bytes = std::fs::read(disk)?;
    Ok(bytes.windows(MARK.len()).any(|it| it == MARK.as_bytes()))
}

async fn the_config_is_on_the_disk(node: &Node, disk: &Path) -> Outcome {
    node.wait_until_ready(PATIENCE).await?;
    let is_there = holds_the_mark(disk)?;
    ensure!(is_there, "the config is not on the disk at all");
    Ok(())
}

async fn a_partition_of_no_known_name_is_not_wiped(client: &Instarctl) -> Outcome {
    let reset = ["reset", "--system-labels-to-wipe", "BOOT"];
    let said = client.run(&reset).await?;
    ensure!(said.code != Some(0), "{said:?}");
    let names = "EFI, STATE and EPHEMERAL";
    ensure!(said.complaint.contains(names), "{said:?}");
    Ok(())
}

async fn state_and_ephemeral_are_wiped(client: &Instarctl, node: &Node) -> Outcome {
    let reset = ["reset", "--system-labels-to-wipe", "STATE,EPHEMERAL"];
    let said = client.run(&reset).await?;
    ensure!(said.code == Some(0), "{said:?}");
    ensure!(node.vm().wait_for_end(PATIENCE)?.is_clean());
    Ok(())
}

async fn the_config_is_not_on_the_disk(disk: &Path) -> Outcome {
    ensure!(!holds_the_mark(disk)?, "the config is still on the disk");
    Ok(())
}

async fn without_a_config_it_waits_for_one(scratch: &Scratch, identity: Identity) -> Outcome {
    let plan = plan(scratch)?.name("second").without_config(identity);
    plan.start()?.wait_for_line("maintenance mode", PATIENCE)?;
    Ok(())
}

async fn a_missing_disk_is_reported_and_not_fatal(scratch: Scratch) -> Outcome {
    let node = Node::plan(&scratch, &ImageUnderTest::first()?)
        .boot()
        .await?;
    node.wait_for_line("/var is in memory", PATIENCE)?;
    node.wait_for_line("logs are kept in memory alone", PATIENCE)?;
    Ok(())
}

/// What the disks of [`the_disk_of_the_config_is_the_only_one_that_is_written`] have on them before.
const OTHERS_DATA: &[u8] = b"somebody else's data, of no kind that anybody knows; ";
/// The one disk that it is about.
const LARGEST: &str = "disk.size > 1500u * MiB && !disk.readonly";

/// One disk is chosen; of the others not a byte changes, whatever is asked for. A node in maintenance mode is asked what it
/// would do, which says what is in the way, and then told to do it.
async fn the_disk_of_the_config_is_the_only_one_that_is_written(scratch: Scratch) -> Outcome {
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

/// The read-only one is `/dev/vde`.
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

/// A node in maintenance mode, and whoever looks at its console.
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
            // The first that the console shows holds for all that follow as addresses come.
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

    /// With the disk that matches.
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

/// Disks that cannot be taken, and what is said of why.
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
