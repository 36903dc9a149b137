//! The owned disk over boots: made once, reused, and grown when the disk has grown.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::ensure;
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

fn plan(scratch: &Scratch) -> anyhow::Result<NodePlan> {
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
    let disk = scratch.join("disk.img");
    create_blank_disk(&disk, DiskFormat::Raw, GIB)?;
    let node = plan(&scratch)?.name("first").boot().await?;
    node.wait_until_ready(PATIENCE).await?;
    // What was written is on the disk, whatever happens next.
    let identity = node.end();

    let node = Node::plan(&scratch, &ImageUnderTest::first()?)
        .name("second")
        .disk(&disk)
        .without_config(identity)
        .boot()
        .await?;
    node.wait_for_line("machine config: from STATE", PATIENCE)?;
    let reused = node.wait_for_line("/var is the partition /dev/vda3", PATIENCE)?;
    ensure!(reused.contains("reused)"), "{reused}");
    node.wait_until_ready(PATIENCE).await?;
    let hostname = node.hostname().await?;
    ensure!(hostname == "first", "it is called {hostname}");

    // Without `--reboot` it is off afterwards, and a blank machine.
    let talosctl = Talosctl::of(&node, Release::V1_13).await?;
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
    fn start(scratch: &Scratch) -> anyhow::Result<Self> {
        let disk = scratch.join("disk.img");
        create_blank_disk(&disk, DiskFormat::Raw, GIB)?;
        let identity = Identity::administrator()?;
        let config = MachineConfig::new(&identity)
            .hostname("reset-me")
            .install_disk("/dev/vda");
        let file = scratch.write("config.yaml", config.to_yaml())?;
        let node = Node::plan(scratch, &ImageUnderTest::first()?)
            .disk(&disk)
            .without_config(identity)
            .start()?;
        Ok(Self {
            client: Instarctl::of(&node, scratch)?,
            mark: node.vm().console_mark()?,
            file: file.display().to_string(),
            node,
        })
    }

    /// Brings the config to the machine that waits for one; its /var then is `new)` or `reused)`.
    async fn configure(&mut self, var: &str) -> Outcome {
        let (vm, mark) = (self.node.vm(), self.mark);
        vm.wait_for_line_after(mark, "no machine config: maintenance mode", PATIENCE)?;
        vm.wait_for_line_after(mark, "the API answers on port", PATIENCE)?;
        let (address, file) = (self.node.endpoint()?, &self.file);
        let apply = ["apply-config", "--insecure", "-n", &address, "-f", file];
        let takes_it = async || {
            let said = self.client.run(&apply).await?;
            ensure!(said.code == Some(0), "{said:?}");
            Ok(())
        };
        self.node
            .wait_until("it takes a config", PATIENCE, takes_it)
            .await?;
        self.finds_var(var)?;
        self.node.wait_until_ready(PATIENCE).await?;
        self.mark = self.node.vm().console_mark()?;
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

/// Not by who may only look, nor by who shows no certificate.
async fn is_not_rebooted_by_others(node: &Node) -> Outcome {
    let reader = node.identity().with_role(Role::Reader)?;
    let reader = Talosctl::by(node, &reader, Release::V1_14).await?;
    let said = reader.run("reboot").await;
    ensure!(
        said.code == Some(1) && said.complaint.contains("not authorized"),
        "{said:?}"
    );
    let nobody = Talosctl::insecure(node, Release::V1_13).await;
    let said = match nobody {
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
    const MARK: &str = "a-name-that-is-only-in-the-config";
    let disk = scratch.join("disk.img");
    create_blank_disk(&disk, DiskFormat::Raw, GIB)?;
    let node = Node::plan(&scratch, &ImageUnderTest::first()?)
        .name("first")
        .disk(&disk)
        .configure(|config| {
            config
                .install_disk("/dev/vda")
                .document(&format!("apiVersion: v1alpha1\nkind: UserVolumeConfig\nname: data\nvolumeType: directory\n# {MARK}\n"))
        })
        .boot()
        .await?;
    node.wait_until_ready(PATIENCE).await?;
    let holds_the_mark = || -> anyhow::Result<bool> {
        let bytes = std::fs::read(&disk)?;
        Ok(bytes.windows(MARK.len()).any(|it| it == MARK.as_bytes()))
    };
    ensure!(holds_the_mark()?, "the config is not on the disk at all");

    let client = Instarctl::of(&node, &scratch)?;
    let said = client
        .run(&["reset", "--system-labels-to-wipe", "BOOT"])
        .await?;
    ensure!(
        said.code != Some(0) && said.complaint.contains("EFI, STATE and EPHEMERAL"),
        "{said:?}"
    );
    let said = client
        .run(&["reset", "--system-labels-to-wipe", "STATE,EPHEMERAL"])
        .await?;
    ensure!(said.code == Some(0), "{said:?}");
    ensure!(node.vm().wait_for_end(PATIENCE)?.is_clean());
    ensure!(!holds_the_mark()?, "the config is still on the disk");
    let identity = node.end();

    let node = Node::plan(&scratch, &ImageUnderTest::first()?)
        .name("second")
        .disk(&disk)
        .without_config(identity)
        .start()?;
    node.wait_for_line("maintenance mode", PATIENCE)?;
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
    let before = disks.others().map(|file| digest(file));
    let blank = digest(&disks.chosen)?;
    let story = Story::begin(&scratch, &disks).await?;
    whoever_has_seen_the_console_is_answered(&story).await?;
    a_disk_that_cannot_be_taken_is_refused_with_the_reason(&story).await?;
    to_wipe_is_told_as_destruction(&story).await?;
    the_plan_for_the_chosen_disk_is_told(&story).await?;
    ensure!(
        digest(&disks.chosen)? == blank,
        "a dry run wrote to the disk"
    );
    an_image_that_could_not_be_started_is_refused(&story).await?;
    ensure!(
        digest(&disks.chosen)? == blank,
        "a config that was refused wrote to the disk"
    );
    the_chosen_disk_is_taken(&story).await?;
    the_machine_is_shut_down(&story.node).await?;
    for (file, before) in disks.others().into_iter().zip(before) {
        ensure!(digest(file)? == before?, "{} has changed", file.display());
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
    fn make(scratch: &Scratch) -> anyhow::Result<Self> {
        let disks = Self {
            foreign: scratch.join("foreign.img"),
            unknown: scratch.write("unknown.img", OTHERS_DATA.repeat(1 << 14))?,
            small: scratch.join("small.img"),
            read_only: scratch.join("read-only.img"),
            chosen: scratch.join("chosen.img"),
        };
        create_blank_disk(&disks.foreign, DiskFormat::Raw, GIB)?;
        let mut mkfs = Command::new("mkfs.ext4");
        ensure!(mkfs.arg("-q").arg(&disks.foreign).status()?.success());
        std::fs::File::options()
            .write(true)
            .open(&disks.unknown)?
            .set_len(GIB)?;
        create_blank_disk(&disks.small, DiskFormat::Raw, 64 << 20)?;
        create_blank_disk(&disks.read_only, DiskFormat::Raw, GIB)?;
        create_blank_disk(&disks.chosen, DiskFormat::Raw, 2 * GIB)?;
        Ok(disks)
    }

    fn others(&self) -> [&PathBuf; 4] {
        [&self.foreign, &self.unknown, &self.small, &self.read_only]
    }
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
    async fn begin(scratch: &'a Scratch, disks: &Disks) -> anyhow::Result<Self> {
        let identity = Identity::administrator()?;
        let config = MachineConfig::new(&identity).hostname("node");
        let read_only = disks.read_only.display();
        let read_only = format!("file={read_only},format=raw,if=virtio,readonly=on");
        let node = Node::plan(scratch, &ImageUnderTest::first()?)
            .disk(&disks.foreign)
            .disk(&disks.unknown)
            .disk(&disks.small)
            .disk(&disks.chosen)
            .spec(|spec| spec.extra_argument("-drive").extra_argument(read_only))
            .without_config(identity)
            .start()?;
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

    async fn insecure(&self, arguments: &[&str]) -> anyhow::Result<Said> {
        let always = [
            "--insecure",
            "--cert-fingerprint",
            &self.fingerprint,
            "-n",
            &self.address,
        ];
        self.client.run(&[&always, arguments].concat()).await
    }

    /// With the disk that matches.
    async fn apply(&self, matches: &str, wipe: bool, more: &[&str]) -> anyhow::Result<Said> {
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

async fn a_disk_that_cannot_be_taken_is_refused_with_the_reason(story: &Story<'_>) -> Outcome {
    for (matches, said) in [
        (
            "disk.size >= 1u * GiB",
            &["more than one disk", "/dev/vda", "/dev/vdd"][..],
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
    ] {
        let refused = story.apply(matches, false, &["--dry-run"]).await?;
        ensure!(
            refused.code != Some(0) && said.iter().all(|part| refused.complaint.contains(part)),
            "{matches}: {refused:?}"
        );
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

fn digest(file: &Path) -> anyhow::Result<blake3::Hash> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(std::fs::File::open(file)?)?;
    Ok(hasher.finalize())
}
