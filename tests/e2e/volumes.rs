//! User volumes: made, mounted into the right containers, and there again after every kind of start.

use anyhow::ensure;
use instar_api::machine::ServiceEvent;
use instar_pki::Role;
use instar_tests::{
    Ending, Greeter, ImageUnderTest, MachineConfig, Node, Outcome, Registry, Release, Scratch,
    Talosctl, Test, chapters, push_greeter, tests, upgrade_and_follow,
};

use crate::PATIENCE;

/// A container that runs as another user than root, and writes.
const WRITER: &str = "writer";
const WRITER_PORT: u16 = 8083;
/// A container with the same volume, read-only.
const READER: &str = "reader";
const READER_PORT: u16 = 8084;

pub(crate) fn tests() -> Vec<Test> {
    tests![
        volumes_outlive_upgrades_and_reboots,
        volumes_of_other_types_are_reported_and_waited_for,
    ]
}

fn directory(name: &str) -> String {
    format!("apiVersion: v1alpha1\nkind: UserVolumeConfig\nname: {name}\nvolumeType: directory\n")
}

fn mounting(volume: &str, options: &str) -> String {
    format!(
        "mounts:\n  - userVolume: {{name: {volume}, destination: /data, options: [{options}]}}\n"
    )
}

/// A node with a volume that one container writes to and another one reads.
struct Shared {
    node: Node,
    registry: Registry,
    writer: Greeter,
    reader: Greeter,
}

impl Shared {
    async fn boot(scratch: &Scratch) -> anyhow::Result<Self> {
        let registry = Registry::start(scratch)?;
        push_greeter(&registry)?;
        registry.push_installer(&ImageUnderTest::second()?)?;
        let host = registry.host_for_guest();
        let plan = Node::plan(scratch, &ImageUnderTest::first()?).blank_disk()?;
        let plan = plan.forward(WRITER_PORT).forward(READER_PORT);
        let plan = plan.configure(move |config| with_writer_and_reader(config, &host));
        let node = plan.boot_until_ready(PATIENCE).await?;
        Ok(Self {
            writer: Greeter::at(&node, WRITER_PORT)?,
            reader: Greeter::at(&node, READER_PORT)?,
            node,
            registry,
        })
    }

    /// Checks that the file belongs to the writer, and that the reader can read it.
    async fn is_kept(&self) -> anyhow::Result<String> {
        for path in ["/owner/data", "/owner/data/kept"] {
            let owner = self.writer.get(path)?;
            ensure!(owner == "1234:1234", "{path}: it belongs to {owner}");
        }
        ensure!(self.reader.get("/read/data/kept")? == "written by greeter\n");
        self.writer.get("/write/data/again")
    }
}

fn with_writer_and_reader(config: MachineConfig, host: &str) -> MachineConfig {
    let image = format!("{host}/greeter:v1");
    let mut writes = mounting("data", "rw");
    writes.push_str("runAs: {uid: 1234, gid: 1234}\n");
    config
        .install_disk("/dev/vda")
        .registry(host)
        .document(&directory("data"))
        .greeter_at(WRITER, &image, WRITER_PORT, &writes)
        .greeter_at(READER, &image, READER_PORT, &mounting("data", ""))
}

async fn volumes_outlive_upgrades_and_reboots(scratch: Scratch) -> Outcome {
    let shared = Shared::boot(&scratch).await?;
    chapters![
        a_volume_is_written_by_those_alone_who_asked_to(&shared),
        a_volume_outlives_an_upgrade(&shared),
        a_volume_outlives_a_reboot_by_an_operator(&shared),
    ]
    .await
}

async fn a_volume_is_written_by_those_alone_who_asked_to(shared: &Shared) -> Outcome {
    shared.writer.greets()?;
    shared.writer.get("/write/data/kept")?;
    ensure!(shared.node.read("/var/mnt/data/kept").await? == "written by greeter\n");
    ensure!(
        shared.reader.get("/write/data/kept").is_err(),
        "a mount that nobody asked to write to can be written to"
    );
    shared.is_kept().await.map(drop)
}

async fn a_volume_outlives_an_upgrade(shared: &Shared) -> Outcome {
    let image = shared.registry.installer_for_guest("v0.2.0");
    let followed = upgrade_and_follow(&shared.node, &image, PATIENCE).await?;
    ensure!(followed.ending == Ending::Done, "{followed:#?}");
    shared.is_kept().await.map(drop)
}

/// The operator may reboot the node and not read its files: talosctl then checks less.
async fn a_volume_outlives_a_reboot_by_an_operator(shared: &Shared) -> Outcome {
    let node = &shared.node;
    let kernel = node.kernel_boot_id().await?;
    let operator = node.identity().with_role(Role::Operator)?;
    let operator = Talosctl::by(node, &operator, Release::V1_13).await?;
    let said = operator.run("reboot -m powercycle").await;
    ensure!(said.code == Some(0), "{said:#?}");
    ensure!(node.kernel_boot_id().await? != kernel);
    let kept = async || shared.is_kept().await;
    node.wait_until("it is there after the reboot", PATIENCE, kept)
        .await
        .map(drop)
}

async fn volumes_of_other_types_are_reported_and_waited_for(scratch: Scratch) -> Outcome {
    let plan = Node::plan(&scratch, &ImageUnderTest::first()?);
    let node = plan.configure(with_a_partition).boot().await?;
    node.wait_for_line("UserVolumeConfig.volumeType: volumes of the type", PATIENCE)?;
    node.wait_until("it says what it waits for", PATIENCE, async || {
        let events = node.service(WRITER).await?.events.unwrap_or_default();
        let events = events.events;
        let is_meant = |event: &ServiceEvent| {
            event.state == "Waiting"
                && event.msg.contains("user volume large")
                && event.msg.contains("partition")
        };
        ensure!(events.iter().any(is_meant), "{events:#?}");
        Ok(())
    })
    .await
}

/// There is no disk and no registry: the start fails before it needs them.
fn with_a_partition(config: MachineConfig) -> MachineConfig {
    let image = "nowhere.example/greeter:v1";
    config
        .document("apiVersion: v1alpha1\nkind: UserVolumeConfig\nname: large\n")
        .container(WRITER, image, &mounting("large", "rw"))
}
