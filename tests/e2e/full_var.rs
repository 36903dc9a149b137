//! A full /var, by bytes and by inodes, disturbs only the containers that filled it.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use instar_qemu::{Drive, VmSpec};
use instar_tests::{
    GREETER, GREETER_PORT, Greeter, HttpServer, ImageUnderTest, Instarctl, Node, NodePlan,
    OPEN_GATE, Outcome, Registry, SHUT_GATE, Said, Scratch, Test, chapters, push_greeter, tests,
    uefi,
};

use crate::PATIENCE;
use crate::installed::{INSTALLER, ROLLED_BACK};

/// Small, so that it is full soon.
const DISK_BYTES: u64 = 288 << 20;
const LIFETIME: Duration = Duration::from_secs(900);
/// Not much more than the smallest supported machine has, in MiB.
const MEMORY_MIB: u32 = 512;
const BALLAST: &str = "ballast";

pub(crate) fn tests() -> Vec<Test> {
    tests![
        a_full_var_hinders_neither_upgrade_nor_rollback,
        a_full_var_in_memory_hinders_no_upgrade,
    ]
}

/// A machine that is installed on a small disk, and the means to fill it.
struct Crammed {
    node: Node,
    registry: Registry,
    /// The server of `/healthz`, which the upgrade's gate asks for.
    web: HttpServer,
    greeter: Greeter,
    client: Instarctl,
}

impl Crammed {
    async fn boot(scratch: &Scratch) -> Result<Self> {
        let registry = Registry::start(scratch)?;
        push_greeter(&registry)?;
        registry.push_both_installers()?;
        let web = HttpServer::start()?;
        web.serve("/healthz", "well");
        let plan = plan(scratch, &registry, web.url_for_guest("/healthz"))?;
        let node = plan.boot().await?;
        node.wait_until_ready(PATIENCE).await?;
        Ok(Self {
            greeter: Greeter::of(&node)?,
            client: Instarctl::of(&node, scratch)?,
            node,
            registry,
            web,
        })
    }

    fn fill(&self) -> Result<u64> {
        let filled = self.greeter.get(&format!("/fill/data/{BALLAST}"))?;
        Ok(filled.parse()?)
    }

    async fn upgrade(&self, version: &str) -> Result<Said> {
        let image = self
            .registry
            .image_for_guest(&format!("{INSTALLER}:{version}"));
        self.client.run(&["upgrade", "--image", &image]).await
    }
}

fn plan(scratch: &Scratch, registry: &Registry, healthz: String) -> Result<NodePlan> {
    let disk = scratch.join("disk.img");
    ImageUnderTest::first()?.put_on_disk(&disk, DISK_BYTES)?;
    let host = registry.host_for_guest();
    let spec = VmSpec::uefi(uefi()?)
        .drive(Drive::raw(&disk))
        .deadline(LIFETIME);
    Ok(Node::plan_from(scratch, spec)
        .memory_mib(MEMORY_MIB)
        .forward(GREETER_PORT)
        .configure(move |config| {
            let config = config.registry(&host).install_disk("/dev/vda");
            config.greeter(&host).gate_asks_the_web(OPEN_GATE, &healthz)
        }))
}

async fn a_full_var_hinders_neither_upgrade_nor_rollback(scratch: Scratch) -> Outcome {
    let crammed = Crammed::boot(&scratch).await?;
    let Crammed {
        node,
        client,
        greeter,
        ..
    } = &crammed;
    chapters![
        an_upgrade_works_while_var_has_no_bytes_left(&crammed),
        a_container_starts_again_in_memory(node, client, greeter),
        a_version_fails_its_gate_while_var_has_no_inodes_left(&crammed),
        a_rollback_works_while_var_has_neither(&crammed),
    ]
    .await
}

/// The installer has memory of its own, and the full /var takes none of it.
async fn a_full_var_in_memory_hinders_no_upgrade(scratch: Scratch) -> Outcome {
    let registry = Registry::with_both_installers(&scratch)?;
    let node = without_a_disk(&scratch, &registry).await?;
    let (greeter, client) = (Greeter::of(&node)?, Instarctl::of(&node, &scratch)?);
    let filled = greeter.get(&format!("/fill/data/{BALLAST}"))?;
    println!("{filled} bytes");
    ensure!(filled.parse::<u64>()? > 64 << 20, "{filled} bytes fitted");
    let image = registry.installer_for_guest("v0.2.0");
    let said = client.run(&["upgrade", "--image", &image]).await?;
    ensure!(said.code == Some(0), "{said:?}");
    works(&node, &greeter, "v0.2.0").await
}

async fn without_a_disk(scratch: &Scratch, registry: &Registry) -> Result<Node> {
    push_greeter(registry)?;
    let host = registry.host_for_guest();
    Node::plan(scratch, &ImageUnderTest::first()?)
        .memory_mib(MEMORY_MIB)
        .forward(GREETER_PORT)
        .configure(move |config| config.registry(&host).greeter(&host))
        .boot_until_ready(PATIENCE)
        .await
}

async fn an_upgrade_works_while_var_has_no_bytes_left(crammed: &Crammed) -> Outcome {
    let filled = crammed.fill()?;
    println!("{filled} bytes");
    ensure!(filled > DISK_BYTES / 4, "only {filled} bytes fitted");
    let said = crammed.upgrade("v0.2.0").await?;
    ensure!(said.code == Some(0), "without bytes: {said:?}");
    works(&crammed.node, &crammed.greeter, "v0.2.0").await
}

/// The ballast's inode is allocated before, so that the file can be filled when there are no inodes left.
async fn a_version_fails_its_gate_while_var_has_no_inodes_left(crammed: &Crammed) -> Outcome {
    let greeter = &crammed.greeter;
    crammed.node.set_gate_timeout(SHUT_GATE).await?;
    greeter.get(&format!("/write/data/{BALLAST}"))?;
    let files = greeter.get("/spread/data/files")?;
    println!("{files} files");
    crammed.web.take_away("/healthz");
    let said = crammed.upgrade("v0.1.0").await?;
    ensure!(
        said.code == ROLLED_BACK && said.complaint.contains("the web"),
        "without inodes: {said:?}"
    );
    works(&crammed.node, greeter, "v0.2.0").await
}

/// A version that is booted again passes its gate again.
async fn a_rollback_works_while_var_has_neither(crammed: &Crammed) -> Outcome {
    let greeter = &crammed.greeter;
    let files = greeter.get("/list/data/files")?.lines().count();
    crammed.fill()?;
    crammed.web.serve("/healthz", "well");
    crammed.node.set_gate_timeout(OPEN_GATE).await?;
    let said = crammed.client.run(&["rollback"]).await?;
    ensure!(said.code == Some(0), "without either: {said:?}");
    works(&crammed.node, greeter, "v0.1.0").await?;
    let still = greeter.get("/list/data/files")?.lines().count();
    ensure!(
        still == files && files > 0,
        "of {files} files {still} are there"
    );
    Ok(())
}

/// The greeter has lived through the upgrade; after a restart it has no room for its own files on /var.
async fn a_container_starts_again_in_memory(
    node: &Node,
    client: &Instarctl,
    greeter: &Greeter,
) -> Outcome {
    let said = client.run(&["restart", GREETER]).await?;
    ensure!(said.code == Some(0), "{said:?}");
    // The call has stopped the container; its start goes on.
    node.wait_until("its files are in memory", PATIENCE, async || {
        let log = node.log("machined").await?;
        ensure!(log.contains("memory takes them"), "{log}");
        Ok(())
    })
    .await?;
    node.wait_until("it greets again", PATIENCE, async || greeter.greets())
        .await
}

async fn works(node: &Node, greeter: &Greeter, version: &str) -> Outcome {
    node.wait_until_ready(PATIENCE).await?;
    let runs = node.version().await?.tag;
    ensure!(runs == version, "{runs} runs, and not {version}");
    greeter.greets().context("ready, but not greeting")
}
