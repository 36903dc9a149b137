//! The smallest supported machine: it boots, installs itself, runs a container, and upgrades both ways.

use anyhow::ensure;
use instar_tests::{
    Ending, GREETER, GREETER_PORT, Greeter, HttpServer, INSTALLER, ImageUnderTest, Instarctl,
    MachineConfig, Node, NodePlan, OPEN_GATE, OciImage, Outcome, Registry, SHUT_GATE, Said,
    Scratch, Test, chapters, push_greeter, tests, upgrade_and_follow,
};

use crate::PATIENCE;
use crate::installed::{OTHER_PORT, ROLLED_BACK, install_planned};
use crate::workloads::Life;

/// The memory of the smallest supported machine (docs/promises.md).
const MEMORY_MIB: u32 = 256;

pub(crate) fn tests() -> Vec<Test> {
    tests![upgrades_without_a_disk, installs_and_upgrades_with_a_disk]
}

/// Without a disk images are in memory too: no other machine needs as much.
async fn upgrades_without_a_disk(scratch: Scratch) -> Outcome {
    let registry = registry(&scratch)?;
    let node = without_a_disk(&scratch, &registry).await?;
    let before = Life::of(&node, GREETER).await?;
    chapters![
        an_upgrade_is_kept(&node, &registry.installer_for_guest("v0.2.0")),
        the_container_lives_on(&node, &before),
        an_upgrade_fails(&node, &registry.installer_for_guest(GIVES_UP)),
        the_container_lives_on(&node, &before),
        data_are_kept(&node),
    ]
    .await
}

fn registry(scratch: &Scratch) -> anyhow::Result<Registry> {
    let registry = Registry::start(scratch)?;
    push_greeter(&registry)?;
    registry.push_installer(&ImageUnderTest::second()?)?;
    push_one_that_gives_up(scratch, &registry)?;
    Ok(registry)
}

async fn without_a_disk(scratch: &Scratch, registry: &Registry) -> anyhow::Result<Node> {
    let host = registry.host_for_guest();
    let node = Node::plan(scratch, &ImageUnderTest::first()?)
        .memory_mib(MEMORY_MIB)
        .forward(GREETER_PORT)
        .configure(move |config| config.registry(&host).greeter(&host))
        .boot_until_ready(PATIENCE)
        .await?;
    let greeter = Greeter::of(&node)?;
    greeter.greets()?;
    greeter.write_to_var("kept")?;
    Ok(node)
}

async fn an_upgrade_is_kept(node: &Node, image: &str) -> Outcome {
    let followed = upgrade_and_follow(node, image, PATIENCE).await?;
    ensure!(followed.ending == Ending::Done, "{followed:#?}");
    Ok(())
}

async fn an_upgrade_fails(node: &Node, image: &str) -> Outcome {
    let followed = upgrade_and_follow(node, image, PATIENCE).await?;
    let Ending::Failed(why) = &followed.ending else {
        anyhow::bail!("{followed:#?}");
    };
    ensure!(why.contains(REASON), "{followed:#?}");
    Ok(())
}

/// The container's files are in memory that does not belong to the generation, so it lives through the change.
async fn the_container_lives_on(node: &Node, before: &Life) -> Outcome {
    node.wait_until_ready(PATIENCE).await?;
    ensure!(node.version().await?.tag == "v0.2.0");
    let after = Life::of(node, GREETER).await?;
    ensure!(after == *before, "{before:#?}, and now {after:#?}");
    Ok(())
}

async fn data_are_kept(node: &Node) -> Outcome {
    let greeter = Greeter::of(node)?;
    ensure!(greeter.read_from_var("kept")? == "written by greeter\n");
    greeter.greets()
}

/// The ISO's firmware and boot loader need memory as well.
async fn installs_and_upgrades_with_a_disk(scratch: Scratch) -> Outcome {
    let small = Installed::start(&scratch).await?;
    let before = Life::of(&small.node, GREETER).await?;
    chapters![
        upgrades_without_a_reboot(&small),
        goes_back_when_the_gate_gets_no_answer(&small),
        the_container_lives_on(&small.node, &before),
        upgrades_by_a_reboot(&small),
        rolls_back(&small),
    ]
    .await
}

/// The machine, and the server that its gate asks.
struct Installed {
    node: Node,
    client: Instarctl,
    greeter: Greeter,
    registry: Registry,
    web: HttpServer,
}

impl Installed {
    async fn start(scratch: &Scratch) -> anyhow::Result<Self> {
        let registry = Registry::start(scratch)?;
        push_greeter(&registry)?;
        let web = HttpServer::start()?;
        web.serve("/healthz", "well");
        let node = install(scratch, &registry, web.url_for_guest("/healthz")).await?;
        let greeter = Greeter::at(&node, OTHER_PORT)?;
        greeter.greets()?;
        Ok(Self {
            client: Instarctl::of(&node, scratch)?,
            greeter,
            node,
            registry,
            web,
        })
    }

    async fn upgrade(&self, tag: &str, mode: &[&str]) -> anyhow::Result<Said> {
        let image = self.registry.installer_for_guest(tag);
        let words = [&["upgrade", "--image", &image], mode].concat();
        self.client.run(&words).await
    }

    async fn works(&self, version: &str) -> Outcome {
        self.node.wait_until_ready(PATIENCE).await?;
        let runs = self.node.version().await?.tag;
        ensure!(runs == version, "{runs} runs, and not {version}");
        self.greeter.greets()
    }
}

async fn install(scratch: &Scratch, registry: &Registry, healthz: String) -> anyhow::Result<Node> {
    let image = registry.image_for_guest("greeter:v1");
    let with_greeter = move |config: MachineConfig| {
        let config = config.greeter_at(GREETER, &image, OTHER_PORT, "");
        config.gate_asks_the_web(OPEN_GATE, &healthz)
    };
    let small = |plan: NodePlan| plan.memory_mib(MEMORY_MIB);
    install_planned(scratch, registry, small, with_greeter).await
}

async fn upgrades_without_a_reboot(small: &Installed) -> Outcome {
    let said = small.upgrade("v0.2.0", &[]).await?;
    ensure!(said.code == Some(0), "without a reboot: {said:?}");
    small.works("v0.2.0").await
}

async fn goes_back_when_the_gate_gets_no_answer(small: &Installed) -> Outcome {
    small.web.take_away("/healthz");
    small.node.set_gate_timeout(SHUT_GATE).await?;
    let said = small.upgrade("v0.1.0", &[]).await?;
    ensure!(
        said.code == ROLLED_BACK && said.complaint.contains("the web"),
        "{said:?}"
    );
    small.web.serve("/healthz", "well");
    small.works("v0.2.0").await?;
    small.node.set_gate_timeout(OPEN_GATE).await
}

async fn upgrades_by_a_reboot(small: &Installed) -> Outcome {
    let by_a_reboot = ["--force", "--reboot-mode", "powercycle"];
    let said = small.upgrade("v0.1.0", &by_a_reboot).await?;
    ensure!(said.code == Some(0), "by a reboot: {said:?}");
    small.works("v0.1.0").await
}

async fn rolls_back(small: &Installed) -> Outcome {
    let said = small.client.run(&["rollback"]).await?;
    ensure!(said.code == Some(0), "the rollback: {said:?}");
    small.works("v0.2.0").await
}

const GIVES_UP: &str = "v0.3.0";
const REASON: &str = "the moon is full";

fn push_one_that_gives_up(scratch: &Scratch, registry: &Registry) -> Outcome {
    OciImage::read(&ImageUnderTest::second()?.installer())?
        .giving_up(scratch, GIVES_UP, REASON)?
        .push(registry, INSTALLER, GIVES_UP)?;
    Ok(())
}
