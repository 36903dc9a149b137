//! A machine whose config is damaged or gone: it restores the rest from the disk, and obeys no client that it did not
//! obey before.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use instar_qemu::{DiskFormat, create_blank_disk};
use instar_tests::{
    Identity, ImageUnderTest, Instarctl, MachineConfig, Node, NodePlan, Outcome, Said, Scratch,
    Test, chapters, tests,
};

use crate::PATIENCE;

const MIB: u64 = 1 << 20;
/// Offsets of the partitions on a disk that a node made: EFI starts at the first MiB, then STATE, then EPHEMERAL.
const STATE: u64 = 129 * MIB;
const EPHEMERAL: u64 = 153 * MIB;

pub(crate) fn tests() -> Vec<Test> {
    tests![
        a_lost_superblock_and_a_lost_config_are_no_way_in,
        after_a_reset_a_machine_is_open_again_and_without_a_memory_it_is_closed
    ]
}

/// A node's disk, and its config as a file.
struct Machine {
    scratch: Scratch,
    disk: PathBuf,
    config: String,
}

impl Machine {
    fn new(scratch: &Scratch, identity: &Identity) -> Result<Self> {
        let disk = scratch.join("disk.img");
        create_blank_disk(&disk, DiskFormat::Raw, 1 << 30)?;
        let config = MachineConfig::new(identity)
            .hostname("mine")
            .install_disk("/dev/vda");
        let config = scratch.write("config.yaml", config.to_yaml())?;
        Ok(Self {
            scratch: scratch.clone(),
            disk,
            config: config.display().to_string(),
        })
    }

    fn plan(&self, name: &str) -> Result<NodePlan> {
        Ok(Node::plan(&self.scratch, &ImageUnderTest::first()?)
            .name(name)
            .disk(&self.disk))
    }

    /// Boots the machine with only its disk.
    fn start(&self, name: &str, identity: Identity) -> Result<Node> {
        self.plan(name)?.without_config(identity).start()
    }

    /// Boots the machine for the first time, with its config.
    async fn begin(&self, identity: Identity) -> Result<Node> {
        let yaml = std::fs::read_to_string(&self.config)?;
        let node = self.plan("begin")?.config(yaml, identity).boot().await?;
        node.wait_until_ready(PATIENCE).await?;
        Ok(node)
    }

    /// Removes the config from STATE, and the record of the clients that may apply one.
    fn forget_state(&self) -> Outcome {
        self.remove(STATE, "/config.yaml")?;
        self.remove(STATE, "/trust.json")
    }

    /// Removes a file from a partition of the machine, which is off.
    fn remove(&self, partition: u64, file: &str) -> Outcome {
        let done = Command::new("debugfs")
            .args(["-w", "-R", &format!("rm {file}")])
            .arg(format!("{}?offset={partition}", self.disk.display()))
            .output()
            .context("cannot run debugfs")?;
        // debugfs ends with 0 even after a failure.
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        ensure!(
            done.status.success() && !said.contains("not found") && !said.contains("while"),
            "{file}: {said}"
        );
        Ok(())
    }
}

/// Turns the machine off, in order: everything is on its disk.
async fn turn_off(node: Node, client: &Instarctl) -> Result<Identity> {
    let said = client.run(&["shutdown", "--no-wait"]).await?;
    ensure!(said.code == Some(0), "{said:?}");
    ensure!(node.vm().wait_for_end(PATIENCE)?.is_clean());
    Ok(node.end())
}

/// A client without a certificate applies a config of its own.
async fn strangers_config(node: &Node, machine: &Machine, client: &Instarctl) -> Result<Said> {
    let config = MachineConfig::new(&Identity::administrator()?).install_disk("/dev/vda");
    let file = machine.scratch.write("strangers.yaml", config.to_yaml())?;
    let (address, file) = (node.endpoint()?, file.display().to_string());
    client
        .run(&["apply-config", "--insecure", "-n", &address, "-f", &file])
        .await
}

async fn a_lost_superblock_and_a_lost_config_are_no_way_in(scratch: Scratch) -> Outcome {
    let identity = Identity::administrator()?;
    let machine = Machine::new(&scratch, &identity)?;
    // The power is cut, and the first sectors of STATE are lost.
    let identity = machine.begin(identity).await?.end();
    let disk = File::options().write(true).open(&machine.disk)?;
    disk.write_all_at(&[0; 4096], STATE)?;
    let identity = without_a_superblock_the_machine_goes_on(&machine, identity).await?;
    machine.remove(STATE, "/config.yaml")?;
    without_a_config_the_machine_listens_to_its_administrator_alone(&machine, identity).await
}

async fn without_a_superblock_the_machine_goes_on(
    machine: &Machine,
    identity: Identity,
) -> Result<Identity> {
    let scratch = &machine.scratch;
    let (other, parted) = (foreign_disk(scratch)?, parted_disk(scratch)?);
    let plan = machine.plan("repaired")?.disk(&other).disk(&parted);
    let node = plan.without_config(identity).start()?;
    let client = Instarctl::of(&node, scratch)?;
    chapters![
        a_lost_superblock_is_repaired(&node),
        the_machine_wipes_nothing_of_its_own(&client),
        the_machine_wipes_a_disk_that_it_does_not_use(&client, &other),
        the_machine_drops_no_partition_of_its_own(&client),
        the_machine_drops_a_partition_and_no_other(&client, &parted),
    ]
    .await?;
    turn_off(node, &client).await
}

async fn without_a_config_the_machine_listens_to_its_administrator_alone(
    machine: &Machine,
    identity: Identity,
) -> Outcome {
    let node = machine.start("without", identity)?;
    let client = Instarctl::of(&node, &machine.scratch)?;
    chapters![
        a_stranger_is_refused(&node, machine, &client),
        the_machine_says_what_it_waits_for(&node, &client),
        an_administrator_brings_the_config_again(&node, machine, &client),
    ]
    .await
}

/// Makes a disk with a filesystem that no node made.
fn foreign_disk(scratch: &Scratch) -> Result<PathBuf> {
    let disk = scratch.join("other.img");
    create_blank_disk(&disk, DiskFormat::Raw, 256 * MIB)?;
    let made = Command::new("mkfs.ext4").arg("-q").arg(&disk).status()?;
    ensure!(made.success());
    Ok(disk)
}

/// Makes a disk with two partitions, the second with a name.
fn parted_disk(scratch: &Scratch) -> Result<PathBuf> {
    let disk = scratch.join("parted.img");
    create_blank_disk(&disk, DiskFormat::Raw, 64 * MIB)?;
    sgdisk(&["-n1:0:+16M", "-n2:0:+16M", "-c2:kept"], &disk)?;
    Ok(disk)
}

async fn a_lost_superblock_is_repaired(node: &Node) -> Outcome {
    node.wait_for_line("the superblock is gone, repairing", PATIENCE)?;
    node.wait_for_api(PATIENCE).await?;
    node.wait_until_ready(PATIENCE).await?;
    ensure!(node.hostname().await? == "mine");
    Ok(())
}

async fn a_stranger_is_refused(node: &Node, machine: &Machine, client: &Instarctl) -> Outcome {
    node.wait_for_line("maintenance mode: the API takes the certificates", PATIENCE)?;
    node.wait_for_line("machined: the API answers on port", PATIENCE)?;
    let refused = strangers_config(node, machine, client).await?;
    ensure!(refused.code != Some(0), "{refused:?}");
    Ok(())
}

/// The API answers a moment before the machine has begun to wait for a config.
async fn the_machine_says_what_it_waits_for(node: &Node, client: &Instarctl) -> Outcome {
    node.wait_until("it says what it waits for", PATIENCE, async || {
        let status = client.run(&["get", "machinestatus", "-o", "yaml"]).await?;
        ensure!(
            status.output.contains("maintenance") && status.output.contains("no machine config"),
            "{status:?}"
        );
        Ok(())
    })
    .await
}

async fn an_administrator_brings_the_config_again(
    node: &Node,
    machine: &Machine,
    client: &Instarctl,
) -> Outcome {
    let said = client.run(&["apply-config", "-f", &machine.config]).await?;
    ensure!(said.code == Some(0), "{said:?}");
    node.wait_until_ready(PATIENCE).await?;
    ensure!(node.hostname().await? == "mine");
    Ok(())
}

async fn the_machine_wipes_nothing_of_its_own(client: &Instarctl) -> Outcome {
    for (device, says) in [
        ("vda", "belongs to this machine"),
        ("vda3", "belongs"),
        ("vdz", "no block device"),
    ] {
        let said = client.run(&["wipe", "disk", "vdb", device]).await?;
        ensure!(said.code != Some(0), "{said:?}");
        ensure!(said.complaint.contains(says), "{said:?}");
    }
    Ok(())
}

/// Wipes a disk with foreign data.
async fn the_machine_wipes_a_disk_that_it_does_not_use(
    client: &Instarctl,
    other: &Path,
) -> Outcome {
    let is_blank = || -> Result<bool> {
        let mut head = vec![0; 4096];
        File::open(other)?.read_exact_at(&mut head, 0)?;
        Ok(head.iter().all(|byte| *byte == 0))
    };
    ensure!(!is_blank()?, "it is wiped already");
    let said = client.run(&["wipe", "disk", "vdb"]).await?;
    ensure!(said.code == Some(0), "{said:?}");
    ensure!(said.output.contains("wiped vdb"), "{said:?}");
    ensure!(is_blank()?, "it is not wiped");
    Ok(())
}

/// Runs sgdisk on a disk; returns its output.
fn sgdisk(arguments: &[&str], disk: &Path) -> Result<String> {
    let output = Command::new("sgdisk").args(arguments).arg(disk).output();
    let output = output.context("cannot run sgdisk")?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "{arguments:?}: {said}");
    Ok(said)
}

async fn drop_partition(client: &Instarctl, device: &str) -> Result<Said> {
    let arguments = ["wipe", "disk", "--drop-partition", device];
    client.run(&arguments).await
}

async fn the_machine_drops_no_partition_of_its_own(client: &Instarctl) -> Outcome {
    for (device, says) in [("vdc", "is a whole disk"), ("vda3", "belongs")] {
        let said = drop_partition(client, device).await?;
        ensure!(said.code != Some(0), "{said:?}");
        ensure!(said.complaint.contains(says), "{said:?}");
    }
    Ok(())
}

async fn the_machine_drops_a_partition_and_no_other(client: &Instarctl, parted: &Path) -> Outcome {
    let kept = sgdisk(&["-i2"], parted)?;
    let said = drop_partition(client, "vdc1").await?;
    ensure!(said.code == Some(0), "{said:?}");
    let verified = sgdisk(&["--verify"], parted)?;
    ensure!(verified.contains("No problems found"), "{verified}");
    ensure!(sgdisk(&["-i2"], parted)? == kept);
    ensure!(sgdisk(&["-i1"], parted)?.contains("does not exist"));
    the_kernel_has_forgotten_it_and_knows_the_other_one(client).await
}

async fn the_kernel_has_forgotten_it_and_knows_the_other_one(client: &Instarctl) -> Outcome {
    let again = drop_partition(client, "vdc1").await?;
    ensure!(again.code != Some(0), "{again:?}");
    ensure!(again.complaint.contains("no block device"), "{again:?}");
    let wiped = client.run(&["wipe", "disk", "vdc2"]).await?;
    ensure!(wiped.code == Some(0), "{wiped:?}");
    Ok(())
}

async fn after_a_reset_a_machine_is_open_again_and_without_a_memory_it_is_closed(
    scratch: Scratch,
) -> Outcome {
    let identity = Identity::administrator()?;
    let machine = Machine::new(&scratch, &identity)?;
    let node = machine.begin(identity).await?;
    let client = Instarctl::of(&node, &scratch)?;
    let identity = turn_off(node, &client).await?;
    // STATE does not name the permitted clients; EPHEMERAL does, and has no key to sign for the machine.
    machine.forget_state()?;
    let identity = by_ephemeral_the_machine_knows_its_administrator(&machine, identity).await?;
    // Nor does EPHEMERAL name them any more, but it holds data.
    machine.forget_state()?;
    machine.remove(EPHEMERAL, "/lib/instar/trust.json")?;
    let node = machine.start("closed", identity)?;
    let client = Instarctl::of(&node, &scratch)?;
    chapters![nobody_may_bring_a_config(&node, &machine, &client)].await
}

async fn by_ephemeral_the_machine_knows_its_administrator(
    machine: &Machine,
    identity: Identity,
) -> Result<Identity> {
    let node = machine.start("by-ephemeral", identity)?;
    let client = Instarctl::of(&node, &machine.scratch)?;
    chapters![
        a_stranger_is_refused(&node, machine, &client),
        an_administrator_resets_the_machine_by_its_fingerprint(&node, &client),
        after_the_reset_anybody_brings_a_config(&node, machine, &client),
    ]
    .await?;
    turn_off(node, &client).await
}

async fn an_administrator_resets_the_machine_by_its_fingerprint(
    node: &Node,
    client: &Instarctl,
) -> Outcome {
    let fingerprint = node.fingerprint_on_console()?;
    let mark = node.vm().console_mark()?;
    let mut reset = vec!["--cert-fingerprint", &fingerprint];
    reset.extend("reset --no-wait --reboot --system-labels-to-wipe STATE".split(' '));
    node.wait_until("its administrator resets it", PATIENCE, async || {
        let said = client.run(&reset).await?;
        ensure!(said.code == Some(0), "{said:?}");
        Ok(())
    })
    .await?;
    let vm = node.vm();
    vm.wait_for_line_after(mark, "maintenance mode: bring a config", PATIENCE)?;
    vm.wait_for_line_after(mark, "the API answers on port", PATIENCE)?;
    Ok(())
}

async fn after_the_reset_anybody_brings_a_config(
    node: &Node,
    machine: &Machine,
    client: &Instarctl,
) -> Outcome {
    let (address, config) = (node.endpoint()?, &machine.config);
    let apply = ["apply-config", "--insecure", "-n", &address, "-f", config];
    node.wait_until("it takes a config", PATIENCE, async || {
        let said = client.run(&apply).await?;
        ensure!(said.code == Some(0), "{said:?}");
        Ok(())
    })
    .await?;
    node.wait_until_ready(PATIENCE).await
}

async fn nobody_may_bring_a_config(node: &Node, machine: &Machine, client: &Instarctl) -> Outcome {
    node.wait_for_line("maintenance mode: nobody may bring a config", PATIENCE)?;
    node.wait_for_line("machined: the API answers on port", PATIENCE)?;
    node.wait_until("it says why it is closed", PATIENCE, async || {
        let refused = strangers_config(node, machine, client).await?;
        ensure!(
            refused.code != Some(0) && refused.complaint.contains("instar.maintenance=open"),
            "{refused:?}"
        );
        Ok(())
    })
    .await
}
