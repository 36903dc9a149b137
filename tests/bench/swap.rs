//! A machine with a disk and containers: the phases of its boot, of an upgrade without a reboot, and of a reboot; and
//! the upgrade's effect on its containers.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use instar_api::machine::{ImagePullRequest, RebootRequest};
use instar_qemu::Timing;
use instar_tests::{
    Held, HeldConnection, ImageUnderTest, MachineConfig, Node, Registry, Scratch, longest_pause,
    push_greeter,
};

use crate::COMMAND_LINE;
use crate::phases::{BOOT, DOWN, Phase, SOFT, between, from_line, milliseconds};
use crate::table::{Goal, Limit, Table};

const PATIENCE: Duration = Duration::from_secs(240);
/// The port of the container that is kept, which the host asks.
const PORT: u16 = 8081;
/// Containers that answer and containers that ask them, all in the guest, so that its own clock measures the time from answer to answer: the
/// ports of one that is kept, of its asker, of one that is restarted, and of its asker.
const ANSWERS: u16 = 8082;
const ASKS: u16 = 8083;
const BOUND_ANSWERS: u16 = 8084;
const ASKS_BOUND: u16 = 8085;
/// A container that ends and is started again is away for longer than this.
const LEAST_AWAY: Duration = Duration::from_millis(100);
/// A mount that makes a container end with its generation.
const BOUND: &str = "mounts:\n  - hostPath: {source: /etc/os-release, destination: /os-release}\n";

pub(crate) async fn measure(
    scratch: &Scratch,
    image: &ImageUnderTest,
    table: &mut Table,
) -> Result<()> {
    let scratch = scratch.below("swap")?;
    let registry = Registry::start(&scratch)?;
    let next = ImageUnderTest::second()?;
    let node = start(&scratch, image, &registry).await?;
    add_phases(table, "boot", &node.vm().console(), &BOOT);

    let connection = HeldConnection::open(node.guest_port(PORT)?)?;
    // The time until now does not count.
    for asker in [ASKS, ASKS_BOUND] {
        longest_pause(&node.guest_port(asker)?)?;
    }
    upgrade(&node, &registry, &next).await?;
    node.vm().wait_for_line_after(
        mark_of_next(&node)?,
        "machined: service bound: started",
        PATIENCE,
    )?;
    let held = connection.close()?;
    ensure!(held.answers > 10, "the container was not asked: {held:?}");
    let console = node.vm().console();
    let console = from_line(&console, "machined: upgrade to ");
    add_phases(table, "soft", console, &SOFT);
    add_containers(table, console, held)?;
    add_answers(table, &node).await?;
    let with_a_restart = upgrade_to_running(console)?;
    table.add(
        "upgrade_with_a_restart_to_running_ms",
        with_a_restart,
        Limit::None,
    );

    let without = with_kept(
        MachineConfig::new(node.identity()),
        &registry.host_for_guest(),
    );
    node.apply_as(node.identity(), without.to_yaml()).await?;
    upgrade(&node, &registry, image).await?;
    let console = node.vm().console();
    let back = from_line(&console, "machined: upgraded from");
    let back = from_line(back, "machined: upgrade to ");
    table.add(
        "upgrade_to_running_ms",
        upgrade_to_running(back)?,
        Goal(Limit::AtMost(3000.0)),
    );

    reboot(&node).await?;
    let console = node.vm().console();
    let down = from_line(&console, "machined: reboot asked for by");
    add_phases(table, "reboot", down, &DOWN);
    add_phases(table, "reboot", from_line(down, "Linux version"), &BOOT);
    Ok(())
}

async fn start(scratch: &Scratch, image: &ImageUnderTest, registry: &Registry) -> Result<Node> {
    push_greeter(registry)?;
    let host = registry.host_for_guest();
    let node = Node::plan(scratch, image)
        .memory_mib(384)
        .spec(|spec| {
            spec.command_line(COMMAND_LINE)
                .timing(Timing::InstructionsIdleOnHost)
        })
        .configure(move |config| with_asked(with_kept(config, &host), &host))
        .blank_disk()?
        .forward(PORT)
        .forward(ASKS)
        .forward(ASKS_BOUND)
        .boot()
        .await?;
    node.wait_until_ready(PATIENCE).await?;
    for name in ["kept", "bound", "answers", "asks", "asksbound"] {
        let line = format!("machined: service {name}: started");
        node.vm().wait_for_line(&line, PATIENCE)?;
    }
    Ok(node)
}

/// Returns the config with the container that is kept.
fn with_kept(config: MachineConfig, registry: &str) -> MachineConfig {
    let beat = format!("args: [\"beat\", \"{PORT}\"]\nnetwork: {{mode: host}}\n");
    config
        .install_disk("/dev/vda")
        .registry(registry)
        .container("kept", &format!("{registry}/greeter:v1"), &beat)
}

/// Adds the containers that are there for the first upgrade alone: they answer, or ask each other.
fn with_asked(config: MachineConfig, registry: &str) -> MachineConfig {
    let image = format!("{registry}/greeter:v1");
    let beats = |port: u16| format!("args: [\"beat\", \"{port}\"]\nnetwork: {{mode: host}}\n");
    let asks = |port: u16, own: u16| {
        format!("args: [\"asks\", \"127.0.0.1:{port}\", \"{own}\"]\nnetwork: {{mode: host}}\n")
    };
    let bound = format!("{}{BOUND}", beats(BOUND_ANSWERS));
    config
        .container("answers", &image, &beats(ANSWERS))
        .container("asks", &image, &asks(ANSWERS, ASKS))
        .container("bound", &image, &bound)
        .container("asksbound", &image, &asks(BOUND_ANSWERS, ASKS_BOUND))
}

/// The place on the console where the next generation starts.
fn mark_of_next(node: &Node) -> Result<instar_qemu::ConsoleMark> {
    Ok(node
        .vm()
        .wait_for_line("init: generation 2 starts", PATIENCE)?
        .end)
}

async fn reboot(node: &Node) -> Result<()> {
    let mark = node.vm().console_mark()?;
    let mut machine = node.machine().await?;
    machine.reboot(RebootRequest::default()).await?;
    let last = node
        .vm()
        .wait_for_line_after(mark, "reboot: Restarting system", PATIENCE)?;
    for text in ["machined: DHCP lease", "machined: service kept: started"] {
        node.vm().wait_for_line_after(last.end, text, PATIENCE)?;
    }
    Ok(())
}

fn add_phases(table: &mut Table, what: &str, console: &str, phases: &[Phase]) {
    for (phase, time) in milliseconds(console, phases) {
        match time {
            Some(time) => table.add(&format!("{what}_phase_{phase}_ms"), time, Limit::None),
            None => eprintln!("the console does not tell the phase {phase} of {what}"),
        }
    }
}

/// Adds the pauses of containers in an upgrade, and the upgrade's whole time.
fn add_containers(table: &mut Table, console: &str, held: Held) -> Result<()> {
    let pause = held.pause.as_secs_f64() * 1000.0;
    let goal = Goal(Limit::AtMost(10.0));
    table.add("kept_container_not_run_ms", pause, goal);
    let lost = f64::from(held.lost);
    table.add("kept_container_lost_connections", lost, Limit::AtMost(0.0));
    let away = between(
        console,
        Some("machined: service bound: stopped"),
        "machined: service bound: started",
    );
    let away = away.context("the console does not tell how long the other container was away")?;
    table.add(
        "restarted_container_stopped_to_started_ms",
        away.as_secs_f64() * 1000.0,
        Limit::None,
    );
    Ok(())
}

/// Adds how long the containers' answers stayed away from clients in the same machine.
async fn add_answers(table: &mut Table, node: &Node) -> Result<()> {
    let pause = longest_pause(&node.guest_port(ASKS)?)?;
    let goal = Goal(Limit::AtMost(10.0));
    table.add("kept_container_pause_ms", milliseconds_of(pause), goal);
    // The console tells of the start of a process, which answers a moment later.
    let asker = node.guest_port(ASKS_BOUND)?;
    let answers_again = async || {
        let pause = longest_pause(&asker)?;
        ensure!(pause > LEAST_AWAY, "its answers stayed away for {pause:?}");
        Ok(pause)
    };
    let what = "the restarted container answers again";
    let away = node.wait_until(what, PATIENCE, answers_again).await?;
    let goal = Goal(Limit::AtMost(1000.0));
    table.add("restarted_container_away_ms", milliseconds_of(away), goal);
    Ok(())
}

fn milliseconds_of(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// Milliseconds from the call for an upgrade to its commit.
fn upgrade_to_running(console: &str) -> Result<f64> {
    let time = between(console, Some(" asked for by "), "machined: upgraded from");
    let time = time.context("the console does not tell when the upgrade was kept")?;
    Ok(time.as_secs_f64() * 1000.0)
}

/// Upgrades to the image, which is pulled beforehand.
async fn upgrade(node: &Node, registry: &Registry, image: &ImageUnderTest) -> Result<()> {
    let version = image.version();
    registry.push_layout(&image.installer(), "instar/installer", version)?;
    let installer = registry.image_for_guest(&format!("instar/installer:{version}"));
    let pull = ImagePullRequest {
        reference: installer.clone(),
        ..ImagePullRequest::default()
    };
    node.machine().await?.image_pull(pull).await?;
    let mark = node.vm().console_mark()?;
    node.upgrade(&installer).await??;
    let kept = "machined: upgraded from";
    node.vm().wait_for_line_after(mark, kept, PATIENCE)?;
    node.wait_until_ready(PATIENCE).await?;
    ensure!(node.version().await?.tag == version);
    Ok(())
}
