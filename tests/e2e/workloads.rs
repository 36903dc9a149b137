//! Containers that live through a change of generations, and containers that are restarted by it.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, ensure};
use instar_tests::{
    Ending, GREETER, Greeter, HttpServer, Instarctl, MachineConfig, Node, OPEN_GATE, Outcome,
    Registry, SHUT_GATE, Said, Scratch, Test, chapters, plan_with_greeter, tests,
    upgrade_and_follow,
};

use crate::PATIENCE;
use crate::installed::ROLLED_BACK;

/// A greeter without a network, which is kept.
const ALONE: &str = "alone";
/// A container for a connection that is held: a greeter serves one connection at a time.
const TALKS: &str = "talks";
const TALKS_PORT: u16 = 8081;
const BOUND: &str = "bound";
/// A container that could be kept, whose operator wants it restarted.
const RENEWED: &str = "renewed";

pub(crate) fn tests() -> Vec<Test> {
    tests![live_through_upgrades_and_a_rollback]
}

/// The constants of a process's life.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Life {
    pid: u32,
    /// Start time: field 22 of proc_pid_stat(5).
    started: String,
    cgroup: String,
    namespaces: String,
}

impl Life {
    pub(crate) async fn of(node: &Node, service: &str) -> anyhow::Result<Self> {
        let pid = node.service_pid(service).await?;
        let stat = node.read(&format!("/proc/{pid}/stat")).await?;
        let (_, fields) = stat.rsplit_once(") ").context("no name in stat")?;
        let started = fields.split(' ').nth(19).context("no start time")?;
        Ok(Life {
            pid,
            started: started.to_owned(),
            cgroup: node.read(&format!("/proc/{pid}/cgroup")).await?,
            namespaces: node.read(&format!("/proc/{pid}/mountinfo")).await?,
        })
    }
}

/// A connection whose request is half sent.
struct Connection(TcpStream);

impl Connection {
    fn open(node: &Node) -> anyhow::Result<Self> {
        let mut stream = TcpStream::connect(node.guest_port(TALKS_PORT)?)?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        stream.write_all(b"GET / HTTP/1.1\r\n")?;
        Ok(Connection(stream))
    }

    /// Sends the rest of the request and reads the answer.
    fn finish(mut self) -> Outcome {
        self.0
            .write_all(b"Host: greeter\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        self.0.read_to_string(&mut answer)?;
        ensure!(answer.contains("hello from "), "{answer:?}");
        Ok(())
    }
}

async fn live_through_upgrades_and_a_rollback(scratch: Scratch) -> Outcome {
    let mut workloads = Workloads::start(&scratch).await?;
    chapters![
        nothing_of_them_leads_into_the_generation(&workloads),
        a_dry_run_tells_who_lives_on(&workloads),
        they_live_through_an_upgrade(&workloads),
        others_begin_anew_and_were_told_why(&mut workloads),
        they_live_through_a_rollback(&workloads),
        they_live_through_an_upgrade_by_force(&workloads),
        an_operator_still_rules_them(&workloads),
    ]
    .await
}

/// A node, its containers' first processes, and the server that its gate asks.
struct Workloads {
    node: Node,
    client: Instarctl,
    registry: Registry,
    web: HttpServer,
    /// The lives of [`KEPT`].
    kept: [Life; 3],
    bound: Life,
    renewed: Life,
}

/// Containers that nothing ties to a generation.
const KEPT: [&str; 3] = [GREETER, ALONE, TALKS];

impl Workloads {
    async fn start(scratch: &Scratch) -> anyhow::Result<Self> {
        let registry = Registry::with_both_installers(scratch)?;
        let web = HttpServer::start()?;
        web.serve("/healthz", "well");
        let node = boot(scratch, &registry, &web).await?;
        let [greeter, alone, talks] = KEPT.map(|service| Life::of(&node, service));
        Ok(Self {
            kept: [greeter.await?, alone.await?, talks.await?],
            bound: Life::of(&node, BOUND).await?,
            renewed: Life::of(&node, RENEWED).await?,
            client: Instarctl::of(&node, scratch)?,
            node,
            registry,
            web,
        })
    }

    /// Upgrades to this image by `instarctl`; returns the output.
    async fn upgrade(&self, image: &str, more: &[&str]) -> anyhow::Result<Said> {
        let image = self.registry.image_for_guest(image);
        let upgrade = [&["upgrade", "--image", &image], more].concat();
        self.client.run(&upgrade).await
    }
}

async fn boot(scratch: &Scratch, registry: &Registry, web: &HttpServer) -> anyhow::Result<Node> {
    let (host, healthz) = (registry.host_for_guest(), web.url_for_guest("/healthz"));
    let plan = plan_with_greeter(scratch, registry, move |config| {
        with_containers(config.gate_asks_the_web(OPEN_GATE, &healthz), &host)
    })?;
    let plan = plan.blank_disk()?.forward(TALKS_PORT);
    let node = plan.boot_until_ready(PATIENCE).await?;
    let greeter = Greeter::of(&node)?;
    greeter.greets()?;
    greeter.write_to_var("before")?;
    Ok(node)
}

fn with_containers(config: MachineConfig, host: &str) -> MachineConfig {
    let image = format!("{host}/greeter:v1");
    let talks = format!("args: [\"{TALKS_PORT}\"]\nnetwork: {{mode: host}}\n");
    let bound = "mounts:\n  - hostPath: {source: /etc/os-release, destination: /os-release}\n";
    let restart = format!(
        "apiVersion: instar.dev/v1alpha1\nkind: ContainerUpgradeConfig\nname: {RENEWED}\nstrategy: restart\n"
    );
    config
        .container(ALONE, &image, "")
        .container(TALKS, &image, &talks)
        .container(BOUND, &image, bound)
        .container(RENEWED, &image, "")
        .document(&restart)
}

async fn nothing_of_them_leads_into_the_generation(workloads: &Workloads) -> Outcome {
    for life in &workloads.kept {
        ensure!(life.cgroup.starts_with("0::/workloads/"), "{life:#?}");
        ensure!(!life.namespaces.contains("/dev/loop"), "{life:#?}");
    }
    let renewed = &workloads.renewed;
    ensure!(
        !renewed.cgroup.starts_with("0::/workloads/"),
        "{renewed:#?}"
    );
    Ok(())
}

async fn a_dry_run_tells_who_lives_on(workloads: &Workloads) -> Outcome {
    let dry_run = ["--dry-run"];
    let said = workloads.upgrade("instar/installer:v0.2.0", &dry_run);
    let said = said.await?;
    ensure!(said.code == Some(0), "{said:?}");
    let told = format!("{said:?}");
    for expected in DRY_RUN {
        ensure!(told.contains(expected), "no {expected:?} in {told}");
    }
    for image in ["instar/installer:v9.9.9", "greeter:v1"] {
        let said = workloads.upgrade(image, &dry_run).await?;
        ensure!(said.code != Some(0), "{said:?}");
    }
    ensure!(workloads.node.version().await?.tag == "v0.1.0");
    Ok(())
}

const DRY_RUN: [&str; 3] = [
    "from v0.1.0 to v0.2.0 without a reboot",
    "its ContainerUpgradeConfig says restart",
    "lives on",
];

async fn they_live_through_an_upgrade(workloads: &Workloads) -> Outcome {
    let node = &workloads.node;
    let connection = Connection::open(node)?;
    an_upgrade(node, &workloads.registry, "v0.2.0").await?;
    they_live_on(node, &workloads.kept).await?;
    connection.finish()?;
    let greeter = Greeter::of(node)?;
    ensure!(greeter.read_from_var("before")? == "written by greeter\n");
    greeter.write_to_var("after")
}

async fn others_begin_anew_and_were_told_why(workloads: &mut Workloads) -> Outcome {
    let node = &workloads.node;
    it_began_anew(node, BOUND, &workloads.bound).await?;
    workloads.renewed = it_began_anew(node, RENEWED, &workloads.renewed).await?;
    those_that_ended_were_told_why(node).await
}

/// The containers live through an upgrade that fails its gate.
async fn they_live_through_a_rollback(workloads: &Workloads) -> Outcome {
    let node = &workloads.node;
    let connection = Connection::open(node)?;
    workloads.web.take_away("/healthz");
    a_rollback(workloads).await?;
    they_live_on(node, &workloads.kept).await?;
    it_began_anew(node, RENEWED, &workloads.renewed).await?;
    connection.finish()?;
    workloads.web.serve("/healthz", "well");
    Ok(())
}

async fn they_live_through_an_upgrade_by_force(workloads: &Workloads) -> Outcome {
    let node = &workloads.node;
    let connection = Connection::open(node)?;
    an_upgrade_by_force(workloads).await?;
    they_live_on(node, &workloads.kept).await?;
    connection.finish()?;
    let greeter = Greeter::of(node)?;
    ensure!(greeter.read_from_var("after")? == "written by greeter\n");
    Ok(())
}

async fn an_upgrade(node: &Node, registry: &Registry, version: &str) -> Outcome {
    let image = registry.installer_for_guest(version);
    let kernel = node.kernel_boot_id().await?;
    let followed = upgrade_and_follow(node, &image, PATIENCE).await?;
    ensure!(followed.ending == Ending::Done, "{followed:#?}");
    ensure!(node.version().await?.tag == version);
    ensure!(
        node.kernel_boot_id().await? == kernel,
        "the kernel rebooted"
    );
    Ok(())
}

/// An upgrade to the version that has just failed: it is refused without force.
async fn an_upgrade_by_force(workloads: &Workloads) -> Outcome {
    let said = workloads.upgrade("instar/installer:v0.1.0", &["--force"]);
    let said = said.await?;
    ensure!(said.code == Some(0), "{said:?}");
    ensure!(workloads.node.version().await?.tag == "v0.1.0");
    Ok(())
}

async fn a_rollback(workloads: &Workloads) -> Outcome {
    let node = &workloads.node;
    node.set_gate_timeout(SHUT_GATE).await?;
    let said = workloads.upgrade("instar/installer:v0.1.0", &[]).await?;
    ensure!(said.code == ROLLED_BACK, "{said:?}");
    node.wait_until_ready(PATIENCE).await?;
    node.set_gate_timeout(OPEN_GATE).await?;
    ensure!(node.version().await?.tag == "v0.2.0");
    Ok(())
}

async fn they_live_on(node: &Node, kept: &[Life; 3]) -> Outcome {
    for (service, before) in KEPT.into_iter().zip(kept) {
        let now = Life::of(node, service).await?;
        ensure!(now == *before, "{service}: {now:#?} was {before:#?}");
        its_events_live_on(node, service, now.pid).await?;
    }
    let console = node.vm().console();
    ensure!(!console.contains("the workloads end as well"), "{console}");
    Ok(())
}

async fn its_events_live_on(node: &Node, service: &str, pid: u32) -> Outcome {
    let events = node.service(service).await?.events.unwrap_or_default();
    let events = events.events;
    let starts = events.iter().filter(|event| event.state == "Starting");
    ensure!(starts.count() == 1, "{service} was started: {events:#?}");
    let taken_over = format!("taken over as process {pid}");
    let mut messages = events.iter().map(|event| &event.msg);
    ensure!(
        messages.any(|message| *message == taken_over),
        "{events:#?}"
    );
    Ok(())
}

async fn it_began_anew(node: &Node, service: &str, before: &Life) -> anyhow::Result<Life> {
    let now = node
        .wait_until("the container began anew", PATIENCE, async || {
            Life::of(node, service).await
        })
        .await?;
    ensure!(now.started != before.started, "{service}: {now:#?}");
    Ok(now)
}

async fn those_that_ended_were_told_why(node: &Node) -> Outcome {
    let console = node.vm().console();
    for (service, why) in [
        (BOUND, "it mounts \"/etc/os-release\""),
        (RENEWED, "its ContainerUpgradeConfig says restart"),
    ] {
        let told = format!("service {service} ends with this upgrade: {why}");
        ensure!(console.contains(&told), "no {told:?} in {console}");
        let told = format!("was ended with the generation before: {why}");
        let events = node.service(service).await?.events.unwrap_or_default();
        let mut events = events.events.iter();
        ensure!(events.any(|it| it.msg.starts_with(&told)), "no {told:?}");
    }
    Ok(())
}

/// A container that was taken over stops and starts as any other.
async fn an_operator_still_rules_them(workloads: &Workloads) -> Outcome {
    let (node, [before, ..]) = (&workloads.node, &workloads.kept);
    let id = GREETER.to_owned();
    let request = instar_api::machine::ServiceRestartRequest { id };
    node.machine().await?.service_restart(request).await?;
    let greeter = Greeter::of(node)?;
    node.wait_until("the greeter is another process", PATIENCE, async || {
        let now = Life::of(node, GREETER).await?;
        ensure!(now.started != before.started, "{now:#?}");
        greeter.greets()
    })
    .await
}
