//! A machine that another image replaces: nothing is left on EPHEMERAL, and the config stays.

use anyhow::ensure;
use instar_api::instar::ReplaceRequest;
use instar_tests::{
    Greeter, HangUp, ImageUnderTest, ImpatientCaller, Instarctl, MachineConfig, Node, Outcome,
    Registry, Scratch, Test, chapters, push_greeter, tests,
};
use prost::Message as _;
use tonic::Code;

use crate::PATIENCE;
use crate::installed::{OTHER_PORT, install_with};

/// A container that writes to the volume `data`.
const WRITER: &str = "writer";
const METHOD: &str = "/instar.UpgradeService/Replace";

pub(crate) fn tests() -> Vec<Test> {
    tests![
        a_replaced_machine_keeps_its_config_alone,
        a_machine_without_a_disk_is_not_replaced
    ]
}

/// The machine, its client and its registry.
struct Machine {
    node: Node,
    client: Instarctl,
    registry: Registry,
}

async fn a_replaced_machine_keeps_its_config_alone(scratch: Scratch) -> Outcome {
    let machine = Machine::install(&scratch).await?;
    chapters![
        a_dry_run_says_what_is_erased(&machine),
        a_machine_is_replaced(&machine),
        a_caller_who_hangs_up_ends_no_replacement(&machine),
        an_upgrade_keeps_the_volume(&machine),
        a_power_cut_leaves_nothing_either(machine),
    ]
    .await
}

fn with_writer(config: MachineConfig, image: &str) -> MachineConfig {
    let volume =
        "apiVersion: v1alpha1\nkind: UserVolumeConfig\nname: data\nvolumeType: directory\n";
    let mounts = "mounts:\n  - userVolume: {name: data, destination: /data, options: [rw]}\n";
    config
        .document(volume)
        .greeter_at(WRITER, image, OTHER_PORT, mounts)
}

impl Machine {
    async fn install(scratch: &Scratch) -> anyhow::Result<Self> {
        let registry = Registry::start(scratch)?;
        push_greeter(&registry)?;
        let image = registry.image_for_guest("greeter:v1");
        let more = move |config| with_writer(config, &image);
        let node = install_with(scratch, &registry, more).await?;
        let machine = Self {
            client: Instarctl::of(&node, scratch)?,
            node,
            registry,
        };
        machine.write().await?;
        Ok(machine)
    }

    fn image(&self, version: &str) -> String {
        self.registry.installer_for_guest(version)
    }

    /// Waits for the container; returns what its volume holds.
    async fn volume(&self) -> anyhow::Result<String> {
        self.node.wait_until_ready(PATIENCE).await?;
        let listed = async || Greeter::at(&self.node, OTHER_PORT)?.get("/list/data");
        self.node.wait_until("the volume", PATIENCE, listed).await
    }

    /// The number of installers that have done their work since the power came.
    fn installers_done(&self) -> usize {
        let console = self.node.vm().console();
        console.matches("upgrade: upgrade: done").count()
    }

    /// Waits until one more installer has done its work.
    async fn wait_for_installer(&self, before: usize) -> Outcome {
        let installed = async || {
            ensure!(self.installers_done() > before, "not yet");
            Ok(())
        };
        self.node
            .wait_until("the installer", PATIENCE, installed)
            .await
    }

    /// Writes to the volume.
    async fn write(&self) -> Outcome {
        self.volume().await?;
        Greeter::at(&self.node, OTHER_PORT)?.get("/sync/data/kept")?;
        ensure!(self.volume().await? == "kept\n");
        Ok(())
    }

    /// Checks that a version runs whose volume holds nothing, and writes to the volume again.
    async fn is_replaced_by(&self, version: &str) -> Outcome {
        let runs = async || {
            let runs = self.node.version().await?.tag;
            ensure!(runs == version, "{runs} runs");
            Ok(())
        };
        self.node.wait_until("the version", PATIENCE, runs).await?;
        let left = self.volume().await?;
        ensure!(left.is_empty(), "{left}");
        self.write().await
    }
}

async fn a_dry_run_says_what_is_erased(machine: &Machine) -> Outcome {
    let image = machine.image("v0.2.0");
    let plan = ["upgrade", "--wipe", "--dry-run", "--image", &image];
    let said = machine.client.run(&plan).await?;
    let erases = said
        .output
        .contains("with a reboot, and erase EPHEMERAL; nothing has changed");
    ensure!(said.code == Some(0) && erases, "{said:?}");
    ensure!(machine.volume().await? == "kept\n");
    Ok(())
}

async fn a_machine_is_replaced(machine: &Machine) -> Outcome {
    let image = machine.image("v0.2.0");
    let said = machine
        .client
        .run(&["upgrade", "--wipe", "--image", &image])
        .await?;
    println!("{}", said.output);
    ensure!(said.code == Some(0), "{said:?}");
    machine.is_replaced_by("v0.2.0").await
}

/// The caller has the answer, and hangs up.
async fn a_caller_who_hangs_up_ends_no_replacement(machine: &Machine) -> Outcome {
    let mut caller = ImpatientCaller::connect(&machine.node).await?;
    let request = ReplaceRequest {
        image: machine.image("v0.1.0"),
        force: false,
    };
    let message = request.encode_to_vec();
    // Before its image is here, the replacement would end with its caller (`one_at_a_time`). It is here when the answer comes.
    let answer = caller
        .call(METHOD, &message, PATIENCE, HangUp::Connection)
        .await?;
    ensure!(
        matches!(answer, Some((Code::Ok, _))),
        "it is not replaced: {answer:?}"
    );
    drop(caller);
    machine.is_replaced_by("v0.1.0").await
}

async fn an_upgrade_keeps_the_volume(machine: &Machine) -> Outcome {
    let image = machine.image("v0.2.0");
    let upgrade = ["upgrade", "--image", &image, "--reboot-mode", "powercycle"];
    let said = machine.client.run(&upgrade).await?;
    ensure!(said.code == Some(0), "{said:?}");
    ensure!(machine.volume().await? == "kept\n");
    Ok(())
}

/// The power is cut when the new version can boot, and perhaps before EPHEMERAL is erased.
async fn a_power_cut_leaves_nothing_either(machine: Machine) -> Outcome {
    let before = machine.installers_done();
    let image = machine.image("v0.1.0");
    let replace = ["upgrade", "--wipe", "--no-wait", "--image", &image];
    let said = machine.client.run(&replace).await?;
    ensure!(said.code == Some(0), "{said:?}");
    machine.wait_for_installer(before).await?;
    let node = machine.node.power_cycle().await?;
    let machine = Machine { node, ..machine };
    machine.is_replaced_by("v0.1.0").await
}

async fn a_machine_without_a_disk_is_not_replaced(scratch: Scratch) -> Outcome {
    let registry = Registry::start(&scratch)?;
    registry.push_installer(&ImageUnderTest::second()?)?;
    let host = registry.host_for_guest();
    let plan = Node::plan(&scratch, &ImageUnderTest::first()?);
    let plan = plan.configure(move |config| config.registry(&host));
    let node = plan.boot_until_ready(PATIENCE).await?;
    is_not_replaced(&node, &Instarctl::of(&node, &scratch)?, &registry).await
}

async fn is_not_replaced(node: &Node, client: &Instarctl, registry: &Registry) -> Outcome {
    let image = registry.installer_for_guest("v0.2.0");
    let said = client
        .run(&["upgrade", "--wipe", "--image", &image])
        .await?;
    ensure!(said.code == Some(5), "{said:?}");
    let words = "this machine does not boot from its disk";
    ensure!(said.complaint.contains(words), "{said:?}");
    let runs = node.version().await?.tag;
    ensure!(runs == "v0.1.0", "{runs} runs");
    Ok(())
}
