//! Logs can be read after every kind of start, and a full disk does not make them a burden on the node.

use anyhow::ensure;
use instar_qemu::{DiskFormat, create_blank_disk};
use instar_tests::{
    Ending, GREETER, Greeter, ImageUnderTest, Instarctl, Node, OciImage, Outcome, Registry,
    Scratch, Test, chapters, plan_with_greeter, tests, upgrade_and_follow,
};

use crate::PATIENCE;

/// Small, so that it is full soon.
const DISK_BYTES: u64 = 256 << 20;

pub(crate) fn tests() -> Vec<Test> {
    tests![logs_are_kept_over_upgrades_and_reboots]
}

/// One boot serves all chapters.
async fn logs_are_kept_over_upgrades_and_reboots(scratch: Scratch) -> Outcome {
    let registry = Registry::start(&scratch)?;
    let node = start(&scratch, &registry).await?;
    let (greeter, instarctl) = (Greeter::of(&node)?, Instarctl::of(&node, &scratch)?);
    say(&node, &greeter, "in-the-beginning").await?;
    chapters![
        logs_fill_up_and_make_room(&node, &greeter),
        the_machines_own_log_says_that_it_booted(&node),
        logs_go_on_over_an_upgrade(&node, &greeter, &registry),
        logs_go_on_over_a_reboot(&node, &greeter, &instarctl),
        instarctl_shows_as_many_lines_as_it_is_asked_for(&node, &instarctl),
    ]
    .await
}

async fn start(scratch: &Scratch, registry: &Registry) -> anyhow::Result<Node> {
    let second = OciImage::read(&ImageUnderTest::second()?.installer())?;
    second.push(registry, "instar/installer", "v0.2.0")?;
    let disk = scratch.join("disk.img");
    create_blank_disk(&disk, DiskFormat::Raw, DISK_BYTES)?;
    let node = plan_with_greeter(scratch, registry, |config| config)?
        .disk(disk)
        .boot()
        .await?;
    node.wait_until_ready(PATIENCE).await?;
    Ok(node)
}

/// The full disk of the chapter before has not kept machined's log from its file.
async fn the_machines_own_log_says_that_it_booted(node: &Node) -> Outcome {
    let own = node.read("/var/log/machined.log").await?;
    ensure!(own.contains("booted v0.1.0"), "{own}");
    Ok(())
}

async fn logs_go_on_over_an_upgrade(
    node: &Node,
    greeter: &Greeter,
    registry: &Registry,
) -> Outcome {
    let image = registry.image_for_guest("instar/installer:v0.2.0");
    let followed = upgrade_and_follow(node, &image, PATIENCE).await?;
    ensure!(followed.ending == Ending::Done, "{followed:#?}");
    say(node, greeter, "after-the-upgrade").await?;
    heard_in_order(node, &["in-the-beginning", "after-the-upgrade"]).await
}

async fn logs_go_on_over_a_reboot(
    node: &Node,
    greeter: &Greeter,
    instarctl: &Instarctl,
) -> Outcome {
    let said = instarctl.run(&["reboot", "--wait"]).await?;
    ensure!(said.code == Some(0), "{said:#?}");
    node.wait_until("it is back", PATIENCE, async || greeter.greets())
        .await?;
    say(node, greeter, "after-the-reboot").await?;
    let words = ["in-the-beginning", "after-the-upgrade", "after-the-reboot"];
    heard_in_order(node, &words).await
}

async fn instarctl_shows_as_many_lines_as_it_is_asked_for(
    node: &Node,
    instarctl: &Instarctl,
) -> Outcome {
    let said = instarctl.run(&["logs", GREETER]).await?;
    ensure!(said.output.contains("in-the-beginning"), "{said:#?}");
    let lines = node.log(GREETER).await?.lines().count();
    for tail in [1, lines - 1, lines + 10] {
        let arguments = ["logs", GREETER, "--tail", &tail.to_string()];
        let shown = instarctl.run(&arguments).await?.output.lines().count();
        // The greeter's own health check adds a line a second.
        ensure!(
            (tail.min(lines)..tail.min(lines) + 15).contains(&shown),
            "of {lines} lines the last {tail} were asked for, {shown} came"
        );
    }
    Ok(())
}

/// Has the greeter print a word into its log.
async fn say(node: &Node, greeter: &Greeter, word: &str) -> Outcome {
    // The file does not exist: the request alone makes the greeter print the word.
    let _ = greeter.get(&format!("/read/{word}"));
    node.wait_until("its words are in its log", PATIENCE, async || {
        let log = node.log(GREETER).await?;
        ensure!(log.contains(word), "{log}");
        Ok(())
    })
    .await
}

/// Waits for a line of machined's own log.
async fn told(node: &Node, line: &str) -> Outcome {
    node.wait_until("machined has said so", PATIENCE, async || {
        let log = node.log("machined").await?;
        ensure!(log.contains(line), "{log}");
        Ok(())
    })
    .await
}

/// Checks that the log has each word once, in this order.
async fn heard_in_order(node: &Node, words: &[&str]) -> Outcome {
    let log = node.log(GREETER).await?;
    let places: Vec<usize> = words.iter().filter_map(|word| log.find(word)).collect();
    ensure!(
        places.len() == words.len() && places.is_sorted(),
        "{words:?} are at {places:?} of {log}"
    );
    for word in words {
        ensure!(
            log.matches(word).count() == 1,
            "{word} is there twice: {log}"
        );
    }
    Ok(())
}

/// A full disk stops the writing of logs to the disk; logs stay in memory, and the node works on.
async fn logs_fill_up_and_make_room(node: &Node, greeter: &Greeter) -> Outcome {
    let filled: u64 = greeter.get("/fill/data/ballast")?.parse()?;
    ensure!(filled > DISK_BYTES / 4, "only {filled} bytes fitted");
    // More lines than fit the rest of the log's last block.
    for number in 0..200 {
        // The file does not exist: the request alone makes the greeter print a line.
        let _ = greeter.get(&format!("/read/while-the-disk-is-full-{number}"));
    }
    say(node, greeter, "said-in-memory").await?;
    told(node, "the log of greeter is kept in memory alone").await?;
    greeter.get("/remove/data/ballast")?;
    told(node, "the log of greeter is on disk again").await?;
    let on_disk = node.read("/var/log/greeter.log").await?;
    ensure!(
        on_disk.contains("in-the-beginning") && on_disk.contains("said-in-memory"),
        "{on_disk}"
    );
    Ok(())
}
