//! Containers that live through a change of generations, and those that do not.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, ensure};
use instar_tests::{
    Ending, GREETER, Greeter, HttpServer, ImageUnderTest, Instarctl, Node, Outcome, Registry,
    Scratch, Test, plan_with_greeter, tests, upgrade_and_follow,
};

use crate::PATIENCE;
use crate::installed::ROLLED_BACK;

/// A greeter without a network, and one that mounts a file of the operating system.
const ALONE: &str = "alone";
/// One for a connection that is held: a greeter serves one at a time.
const TALKS: &str = "talks";
const TALKS_PORT: u16 = 8081;
const BOUND: &str = "bound";
/// One that could be kept, and whose operator wants it started again.
const RENEWED: &str = "renewed";

pub(crate) fn tests() -> Vec<Test> {
    tests![live_through_upgrades_and_a_rollback]
}

/// What stays the same of a process for as long as it lives.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Life {
    pid: u32,
    /// Field 22 of proc_pid_stat(5).
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

    /// Sends the rest and takes the answer.
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
    let registry = Registry::start(&scratch)?;
    for image in [ImageUnderTest::first()?, ImageUnderTest::second()?] {
        registry.push_layout(&image.installer(), "instar/installer", image.version())?;
    }
    let host = registry.host_for_guest();
    let web = HttpServer::start()?;
    web.serve("/healthz", "well");
    let healthz = web.url_for_guest("/healthz");
    let node = plan_with_greeter(&scratch, &registry, move |config| {
        let image = format!("{host}/greeter:v1");
        let bound = "mounts:\n  - hostPath: {source: /etc/os-release, destination: /os-release}\n";
        config
            .gate_asks_the_web("60s", &healthz)
            .container(ALONE, &image, "")
            .container(
                TALKS,
                &image,
                &format!("args: [\"{TALKS_PORT}\"]\nnetwork: {{mode: host}}\n"),
            )
            .container(BOUND, &image, bound)
            .container(RENEWED, &image, "")
            .document(&format!(
                "apiVersion: instar.dev/v1alpha1\nkind: ContainerUpgradeConfig\nname: {RENEWED}\nstrategy: restart\n"
            ))
    })?
    .blank_disk()?
    .forward(TALKS_PORT)
    .boot()
    .await?;
    node.wait_until_ready(PATIENCE).await?;
    let greeter = Greeter::of(&node)?;
    greeter.greets()?;
    greeter.write_to_var("before")?;
    let kept = [
        Life::of(&node, GREETER).await?,
        Life::of(&node, ALONE).await?,
        Life::of(&node, TALKS).await?,
    ];
    nothing_of_them_leads_into_the_generation(&kept)?;
    let bound = Life::of(&node, BOUND).await?;
    let renewed = Life::of(&node, RENEWED).await?;
    ensure!(
        !renewed.cgroup.starts_with("0::/workloads/"),
        "{renewed:#?}"
    );
    let connection = Connection::open(&node)?;

    a_dry_run_tells_who_lives_on(&node, &registry, &scratch).await?;
    an_upgrade(&node, &registry, "v0.2.0").await?;
    they_live_on(&node, &kept).await?;
    connection.finish()?;
    ensure!(greeter.read_from_var("before")? == "written by greeter\n");
    greeter.write_to_var("after")?;
    it_began_anew(&node, BOUND, &bound).await?;
    let renewed = it_began_anew(&node, RENEWED, &renewed).await?;
    those_that_ended_were_told_why(&node)?;
    // An upgrade that fails its gate, and the way back from it.
    let connection = Connection::open(&node)?;
    web.take_away("/healthz");
    a_rollback(&node, &registry, &scratch).await?;
    they_live_on(&node, &kept).await?;
    it_began_anew(&node, RENEWED, &renewed).await?;
    connection.finish()?;
    web.serve("/healthz", "well");
    // And back, by another upgrade.
    let connection = Connection::open(&node)?;
    an_upgrade_by_force(&node, &registry, &scratch).await?;
    they_live_on(&node, &kept).await?;
    connection.finish()?;
    ensure!(greeter.read_from_var("after")? == "written by greeter\n");
    its_operator_still_rules(&node, &kept).await
}

fn nothing_of_them_leads_into_the_generation(kept: &[Life]) -> Outcome {
    for life in kept {
        ensure!(life.cgroup.starts_with("0::/workloads/"), "{life:#?}");
        ensure!(!life.namespaces.contains("/dev/loop"), "{life:#?}");
    }
    Ok(())
}

async fn a_dry_run_tells_who_lives_on(
    node: &Node,
    registry: &Registry,
    scratch: &Scratch,
) -> Outcome {
    let client = Instarctl::of(node, scratch)?;
    let ask = async |image: &str| {
        let image = registry.image_for_guest(image);
        client
            .run(&["upgrade", "--image", &image, "--dry-run"])
            .await
    };
    let said = ask("instar/installer:v0.2.0").await?;
    ensure!(said.code == Some(0), "{said:?}");
    let told = format!("{said:?}");
    for expected in [
        "from v0.1.0 to v0.2.0 without a reboot",
        "its ContainerUpgradeConfig says restart",
        "lives on",
    ] {
        ensure!(told.contains(expected), "no {expected:?} in {told}");
    }
    let said = ask("instar/installer:v9.9.9").await?;
    ensure!(said.code != Some(0), "{said:?}");
    let said = ask("greeter:v1").await?;
    ensure!(said.code != Some(0), "{said:?}");
    ensure!(node.version().await?.tag == "v0.1.0");
    Ok(())
}

async fn an_upgrade(node: &Node, registry: &Registry, version: &str) -> Outcome {
    let image = registry.image_for_guest(&format!("instar/installer:{version}"));
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

/// To the version that has just failed: it is refused otherwise.
async fn an_upgrade_by_force(node: &Node, registry: &Registry, scratch: &Scratch) -> Outcome {
    let image = registry.image_for_guest("instar/installer:v0.1.0");
    let client = Instarctl::of(node, scratch)?;
    let said = client
        .run(&["upgrade", "--image", &image, "--force"])
        .await?;
    ensure!(said.code == Some(0), "{said:?}");
    ensure!(node.version().await?.tag == "v0.1.0");
    Ok(())
}

async fn a_rollback(node: &Node, registry: &Registry, scratch: &Scratch) -> Outcome {
    let image = registry.image_for_guest("instar/installer:v0.1.0");
    let client = Instarctl::of(node, scratch)?;
    let said = client.run(&["upgrade", "--image", &image]).await?;
    ensure!(said.code == ROLLED_BACK, "{said:?}");
    node.wait_until_ready(PATIENCE).await?;
    ensure!(node.version().await?.tag == "v0.2.0");
    Ok(())
}

async fn they_live_on(node: &Node, kept: &[Life; 3]) -> Outcome {
    for (service, before) in [GREETER, ALONE, TALKS].into_iter().zip(kept) {
        let now = Life::of(node, service).await?;
        ensure!(now == *before, "{service}: {now:#?} was {before:#?}");
        let events = node
            .service(service)
            .await?
            .events
            .unwrap_or_default()
            .events;
        // Its events live on as well.
        let starts = events.iter().filter(|event| event.state == "Starting");
        ensure!(starts.count() == 1, "{service} was started: {events:#?}");
        let taken_over = format!("taken over as process {}", now.pid);
        let mut messages = events.iter().map(|event| &event.msg);
        ensure!(
            messages.any(|message| *message == taken_over),
            "{events:#?}"
        );
    }
    let console = node.vm().console();
    ensure!(!console.contains("the workloads end as well"), "{console}");
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

fn those_that_ended_were_told_why(node: &Node) -> Outcome {
    let console = node.vm().console();
    for (service, why) in [
        (BOUND, "it mounts \"/etc/os-release\""),
        (RENEWED, "its ContainerUpgradeConfig says restart"),
    ] {
        let told = format!("service {service} ends with this upgrade: {why}");
        ensure!(console.contains(&told), "no {told:?} in {console}");
    }
    Ok(())
}

/// A container that was taken over stops and starts as any other.
async fn its_operator_still_rules(node: &Node, kept: &[Life; 3]) -> Outcome {
    let mut machine = node.machine().await?;
    let request = instar_api::machine::ServiceRestartRequest {
        id: GREETER.to_owned(),
    };
    machine.service_restart(request).await?;
    let greeter = Greeter::of(node)?;
    node.wait_until("the greeter is another process", PATIENCE, async || {
        let now = Life::of(node, GREETER).await?;
        ensure!(now.started != kept[0].started, "{now:#?}");
        greeter.greets()
    })
    .await?;
    Ok(())
}
