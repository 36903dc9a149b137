//! Clients that ask all the time notice nothing of upgrades without a reboot but a slower answer: no call fails, no connection is
//! refused.

use std::collections::BTreeSet;

use anyhow::{Context, ensure};
use instar_tests::{
    Ending, FollowedProgram, HttpServer, ImageUnderTest, Instarctl, MachineConfig, Node, Outcome,
    Registry, SHUT_GATE, Scratch, Test, chapters, tests, upgrade_and_follow,
};

use crate::PATIENCE;
use crate::callers::Callers;

/// The number of upgrades, unless `INSTAR_UPGRADES` (`make no-call-fails N=100`) sets another one.
const UPGRADES: usize = 3;
/// The words that `events` shows at the end of a boot.
const BOOTED: &str = "action=stop sequence=boot";

pub(crate) fn tests() -> Vec<Test> {
    tests![over_upgrades, over_a_rollback, streams_of_instarctl_go_on]
}

async fn over_upgrades(scratch: Scratch) -> Outcome {
    let (registry, node) = boot(&scratch, |config| config).await?;
    let upgrades = upgrades()?;
    let callers = Callers::begin(&node, &scratch).await?;
    chapters![
        upgrades_to_and_fro(&node, &registry, upgrades),
        none_of_them_lost_a_call(callers, upgrades + 1),
    ]
    .await
}

/// The version on trial answers until it gives itself up, as its gate asks for something that nobody answers.
async fn over_a_rollback(scratch: Scratch) -> Outcome {
    let never_well = HttpServer::failing()?;
    let url = never_well.url_for_guest("/healthz");
    let (registry, node) = boot(&scratch, move |config| {
        config.gate_asks_the_web(SHUT_GATE, &url)
    })
    .await?;
    let callers = Callers::begin(&node, &scratch).await?;
    chapters![
        a_version_that_does_not_prove_itself_is_taken_back(&node, &registry),
        // The old one, the one on trial, and the old one again.
        none_of_them_lost_a_call(callers, 3),
    ]
    .await
}

fn upgrades() -> anyhow::Result<usize> {
    match std::env::var("INSTAR_UPGRADES") {
        Ok(number) => number.parse().context("INSTAR_UPGRADES is no number"),
        Err(_) => Ok(UPGRADES),
    }
}

/// A registry with the images, and a node without a disk in the first version.
async fn boot(
    scratch: &Scratch,
    configure: impl FnOnce(MachineConfig) -> MachineConfig + Send + 'static,
) -> anyhow::Result<(Registry, Node)> {
    let registry = Registry::with_both_installers_without_kernel(scratch)?;
    let host = registry.host_for_guest();
    let node = Node::plan(scratch, &ImageUnderTest::first()?)
        .configure(move |config| configure(config.registry(&host)))
        .spec(|spec| spec.without_deadline())
        .boot_until_ready(PATIENCE)
        .await?;
    Ok((registry, node))
}

async fn upgrades_to_and_fro(node: &Node, registry: &Registry, upgrades: usize) -> Outcome {
    let kernel = node.kernel_boot_id().await?;
    let versions = [ImageUnderTest::second()?, ImageUnderTest::first()?];
    for (number, to) in (1..=upgrades).zip(versions.iter().cycle()) {
        let upgraded = upgrade(node, registry, to.version(), &Ending::Done).await;
        upgraded.with_context(|| format!("upgrade {number} of {upgrades}"))?;
        println!("upgrade {number} of {upgrades} is done");
    }
    let now = node.kernel_boot_id().await?;
    ensure!(now == kernel, "the kernel rebooted");
    Ok(())
}

async fn a_version_that_does_not_prove_itself_is_taken_back(
    node: &Node,
    registry: &Registry,
) -> Outcome {
    let name = registry.installer_for_guest("v0.2.0");
    let followed = upgrade_and_follow(node, &name, SHUT_GATE + PATIENCE).await?;
    ensure!(
        matches!(&followed.ending, Ending::Failed(why) if why.contains("the web")),
        "{followed:#?}"
    );
    node.wait_until_ready(PATIENCE).await?;
    let version = node.version().await?.tag;
    ensure!(version == "v0.1.0", "{version}");
    Ok(())
}

async fn upgrade(node: &Node, registry: &Registry, version: &str, ending: &Ending) -> Outcome {
    let name = registry.installer_for_guest(version);
    let followed = upgrade_and_follow(node, &name, PATIENCE).await?;
    ensure!(followed.ending == *ending, "{followed:#?}");
    Ok(())
}

async fn none_of_them_lost_a_call(callers: Callers, versions: usize) -> Outcome {
    let mut wrong = Vec::new();
    for (client, calling) in callers.end().await? {
        if !calling.failed.is_empty() || calling.versions != versions {
            wrong.push(format!("{client}, of {versions} versions: {calling:#?}"));
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// The streams that instarctl follows: the command of each, and words of the first generation and of the second.
const STREAMS: [(&[&str], &str, &str); 4] = [
    (&["events", "--tail", "-1"], BOOTED, BOOTED),
    (
        &["dmesg", "-f"],
        "generation 1 is healthy",
        "generation 2 is healthy",
    ),
    (
        &["logs", "-f", "machined"],
        "as generation 1",
        "as generation 2",
    ),
    (&["get", "versions", "-w"], "v0.1.0", "v0.2.0"),
];

/// Each tells something that only the next generation knows, and nothing twice.
async fn streams_of_instarctl_go_on(scratch: Scratch) -> Outcome {
    let (registry, node) = boot(&scratch, |config| config).await?;
    let instarctl = Instarctl::of(&node, &scratch)?;
    let mut followed = Vec::new();
    for (command, before, after) in STREAMS {
        let mut told = instarctl.follow(command)?;
        told.wait_for(before, PATIENCE, |line| line.contains(before))?;
        followed.push((command, before, after, told));
    }
    upgrade(&node, &registry, "v0.2.0", &Ending::Done).await?;
    for (command, before, after, told) in followed {
        went_on(told, before, after).with_context(|| format!("instarctl {command:?}"))?;
    }
    Ok(())
}

fn went_on(mut told: FollowedProgram, before: &str, after: &str) -> Outcome {
    told.wait_for(after, PATIENCE, |line| line.contains(after))?;
    let heard = told.heard();
    let distinct: BTreeSet<_> = heard.iter().collect();
    let (lines, distinct) = (heard.len(), distinct.len());
    println!("{lines} lines, {distinct} of them distinct");
    ensure!(distinct == lines, "it repeats itself: {heard:#?}");
    // A repeated record of the kernel's log has another time.
    let times_told = heard.iter().filter(|line| line.contains(before)).count();
    let is_told_of_each_generation = before == after;
    ensure!(
        times_told == 1 || is_told_of_each_generation,
        "it tells of {before:?} {times_told} times: {heard:#?}"
    );
    Ok(())
}
