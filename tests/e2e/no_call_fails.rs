//! Clients that ask all the time notice nothing of upgrades without a reboot but a slower answer: no call fails, no connection is
//! refused. They are used as their users use them, and try nothing again by themselves.

use std::collections::BTreeSet;

use anyhow::{Context, ensure};
use instar_tests::{
    Calling, Ending, Grpcio, ImageUnderTest, Instarctl, Node, OciImage, Outcome, Registry, Scratch,
    SteadyCalls, Test, tests, upgrade_and_follow,
};
use serde_json::Value;

use crate::PATIENCE;

/// `INSTAR_UPGRADES=100` asks for more.
const UPGRADES: usize = 3;
/// What `events` shows at the end of a boot.
const BOOTED: &str = "action=stop sequence=boot";

pub(crate) fn tests() -> Vec<Test> {
    tests![over_upgrades, streams_of_instarctl_go_on]
}

async fn over_upgrades(scratch: Scratch) -> Outcome {
    let grpcio = Grpcio::ready(&scratch)?;
    let images = [ImageUnderTest::second()?, ImageUnderTest::first()?];
    let (registry, node) = boot(&scratch, &images).await?;
    let kernel = node.kernel_boot_id().await?;

    let end = scratch.join("no-more-calls");
    let mut python = grpcio.call_on_and_on(&node, &end)?;
    python.wait_for("its first answers", PATIENCE, |line| line.contains("calls"))?;
    let way_in = node.way_in(node.identity())?;
    let over_one = SteadyCalls::over(way_in.connect().await?);
    let anew = SteadyCalls::anew(way_in);

    let upgrades = match std::env::var("INSTAR_UPGRADES") {
        Ok(number) => number.parse().context("INSTAR_UPGRADES is no number")?,
        Err(_) => UPGRADES,
    };
    for (number, image) in (1..=upgrades).zip(images.iter().cycle()) {
        let name = registry.image_for_guest(&format!("instar/installer:{}", image.version()));
        let followed = upgrade_and_follow(&node, &name, PATIENCE)
            .await
            .with_context(|| format!("upgrade {number} of {upgrades}"))?;
        ensure!(
            followed.ending == Ending::Done,
            "upgrade {number} of {upgrades}: {followed:#?}"
        );
    }
    ensure!(
        node.kernel_boot_id().await? == kernel,
        "the kernel rebooted"
    );
    std::fs::write(&end, "")?;
    let found = [
        ("tonic, one channel", over_one.end().await?),
        ("tonic, a connection for each call", anew.end().await?),
    ];
    let line = python.wait_for("what it found", PATIENCE, |line| line.contains("slowest"))?;
    let said: Value = serde_json::from_str(&line)?;
    let found = found.into_iter().chain([
        (
            "grpcio, one channel",
            Calling::told_by(&said["one channel"])?,
        ),
        (
            "grpcio, a channel for each call",
            Calling::told_by(&said["anew"])?,
        ),
    ]);
    let found: Vec<_> = found.collect();
    println!("{upgrades} upgrades");
    for (client, found) in &found {
        println!("{client}: {found}");
    }
    for (client, found) in &found {
        ensure!(found.failed.is_empty(), "{client}: {found:#?}");
        ensure!(
            found.versions == upgrades + 1,
            "{client} missed an upgrade: {found:#?}"
        );
    }
    Ok(())
}

/// A registry with the images, and a node without a disk in the first version.
async fn boot(scratch: &Scratch, images: &[ImageUnderTest]) -> anyhow::Result<(Registry, Node)> {
    let registry = Registry::start(scratch)?;
    for image in images {
        // Kernel and initramfs are in the second layer: without a reboot nobody wants them.
        OciImage::read(&image.installer())?
            .first_layer_alone()
            .push(&registry, "instar/installer", image.version())?;
    }
    let host = registry.host_for_guest();
    let node = Node::plan(scratch, &ImageUnderTest::first()?)
        .configure(move |config| config.registry(&host))
        .spec(|spec| spec.without_deadline())
        .boot()
        .await?;
    node.wait_until_ready(PATIENCE).await?;
    Ok((registry, node))
}

/// Each tells something that only the next generation knows, and nothing twice.
async fn streams_of_instarctl_go_on(scratch: Scratch) -> Outcome {
    let (registry, node) = boot(&scratch, &[ImageUnderTest::second()?]).await?;
    let instarctl = Instarctl::of(&node, &scratch)?;
    let streams: [(&[&str], &str, &str); 4] = [
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
    let mut followed = Vec::new();
    for (command, before, after) in streams {
        let mut told = instarctl.follow(command)?;
        told.wait_for(before, PATIENCE, |line| line.contains(before))?;
        followed.push((command, after, told));
    }
    let name = registry.image_for_guest("instar/installer:v0.2.0");
    let upgraded = upgrade_and_follow(&node, &name, PATIENCE).await?;
    ensure!(upgraded.ending == Ending::Done, "{upgraded:#?}");
    for (command, after, told) in &mut followed {
        told.wait_for(after, PATIENCE, |line| line.contains(*after))
            .with_context(|| format!("instarctl {command:?}"))?;
        let heard = told.heard();
        let distinct: BTreeSet<_> = heard.iter().collect();
        println!(
            "instarctl {command:?} went on: {} lines, {} of them distinct",
            heard.len(),
            distinct.len()
        );
        ensure!(
            distinct.len() == heard.len(),
            "instarctl {command:?} repeats itself: {heard:#?}"
        );
    }
    Ok(())
}
