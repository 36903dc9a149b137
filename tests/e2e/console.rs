//! The dashboard on a machine's own screen, read from the memory of its graphics card.

use anyhow::{Context as _, ensure};
use instar_tests::{
    ImageUnderTest, Node, NodePlan, Outcome, Registry, Scratch, Test, chapters, plan_with_greeter,
    tests,
};

use crate::PATIENCE;

/// Place and size of a VGA card's text memory; a character and its colour are two bytes.
const TEXT_MEMORY: u64 = 0xb8000;
const TEXT_BYTES: u64 = 0x8000;
const COLUMNS: usize = 80;
const ROWS: usize = 25;

pub(crate) fn tests() -> Vec<Test> {
    tests![
        the_screen_shows_the_machine_to_whoever_stands_before_it,
        the_screen_is_left_to_messages_when_told_so,
        there_is_no_dashboard_without_a_graphics_card
    ]
}

/// Adds a graphics card and a keyboard, and the usual command line for them.
pub(crate) fn with_screen(plan: NodePlan, arguments: &str) -> NodePlan {
    let arguments = format!("console=tty0 {arguments}");
    plan.spec(move |spec| {
        spec.extra_argument("-device")
            .extra_argument("VGA")
            .append(&arguments)
    })
}

/// Returns the card's text, line by line.
pub(crate) fn screen(node: &Node) -> anyhow::Result<String> {
    let file = node.vm().directory().join("text-memory");
    node.vm().qmp().execute(
        "pmemsave",
        serde_json::json!({ "val": TEXT_MEMORY, "size": TEXT_BYTES, "filename": file }),
    )?;
    let memory = std::fs::read(&file).context("no text memory")?;
    let characters: Vec<u8> = memory.iter().step_by(2).copied().collect();
    let lines = characters
        .chunks(COLUMNS)
        .map(|line| String::from_utf8_lossy(line).trim_end().to_owned());
    Ok(lines.collect::<Vec<_>>().join("\n").trim_end().to_owned())
}

/// Returns the first lines: the dashboard draws there, and scrolled messages may be anywhere.
fn front(screen: &str) -> String {
    screen.lines().take(ROWS).collect::<Vec<_>>().join("\n")
}

async fn shows(node: &Node, text: &str) -> Outcome {
    node.wait_until(
        &format!("the screen shows {text:?}"),
        PATIENCE,
        async || {
            let screen = screen(node)?;
            ensure!(screen.contains(text), "{screen}");
            Ok(())
        },
    )
    .await
}

async fn the_screen_shows_the_machine_to_whoever_stands_before_it(scratch: Scratch) -> Outcome {
    let registry = Registry::start(&scratch)?;
    let second = ImageUnderTest::second()?;
    registry.push_layout(&second.installer(), "instar/installer", second.version())?;
    let plan = plan_with_greeter(&scratch, &registry, |config| config)?.blank_disk()?;
    let node = with_screen(plan, "").boot().await?;
    node.wait_until_ready(PATIENCE).await?;
    chapters![
        the_summary_is_in_front(&node),
        keys_change_the_page_and_none_ends_it(&node),
        the_other_terminal_has_the_messages(&node),
        the_dashboard_is_locked_up(&node),
        the_next_generation_has_a_dashboard_of_its_own(&node, &registry),
    ]
    .await
}

async fn the_summary_is_in_front(node: &Node) -> Outcome {
    for text in [
        "Version     Instar v0.1.0",
        "running, ready",
        "10.0.2.15/24",
        "log: kernel (1 of ",
        "machined",
    ] {
        shows(node, text).await?;
    }
    println!("{}", front(&screen(node)?));
    Ok(())
}

/// None of the kernel's messages appear on the page either.
async fn keys_change_the_page_and_none_ends_it(node: &Node) -> Outcome {
    let pid = node.service_pid("dashboard").await?;
    node.vm().qmp().human("sendkey 2")?;
    shows(node, "COMMAND").await?;
    for key in ["q", "ctrl-c", "1"] {
        node.vm().qmp().human(&format!("sendkey {key}"))?;
    }
    shows(node, "Generation").await?;
    ensure!(node.service_pid("dashboard").await? == pid, "it was ended");
    Ok(())
}

async fn the_other_terminal_has_the_messages(node: &Node) -> Outcome {
    node.vm().qmp().human("sendkey alt-f1")?;
    node.wait_until("the messages are in front", PATIENCE, async || {
        let screen = screen(node)?;
        ensure!(!front(&screen).contains("q quit"), "{screen}");
        ensure!(screen.contains("machined: booted v0.1.0"), "{screen}");
        Ok(())
    })
    .await?;
    node.vm().qmp().human("sendkey alt-f2")?;
    node.wait_until("the dashboard is in front", PATIENCE, async || {
        let screen = screen(node)?;
        ensure!(front(&screen).contains("q quit"), "{screen}");
        Ok(())
    })
    .await
}

async fn the_next_generation_has_a_dashboard_of_its_own(
    node: &Node,
    registry: &Registry,
) -> Outcome {
    let pid = node.service_pid("dashboard").await?;
    let kernel = node.kernel_boot_id().await?;
    node.upgrade(&registry.image_for_guest("instar/installer:v0.2.0"))
        .await??;
    shows(node, "Version     Instar v0.2.0").await?;
    shows(node, "running, ready").await?;
    ensure!(
        node.kernel_boot_id().await? == kernel,
        "the kernel rebooted"
    );
    ensure!(node.service_pid("dashboard").await? != pid);
    Ok(())
}

async fn the_dashboard_is_locked_up(node: &Node) -> Outcome {
    let pid = node.service_pid("dashboard").await?;
    let status = node.read(&format!("/proc/{pid}/status")).await?;
    let resident = status.lines().find(|line| line.starts_with("VmRSS:"));
    println!("the dashboard's memory: {resident:?}");
    node.has_no_rights(pid, 51).await
}

async fn the_screen_is_left_to_messages_when_told_so(scratch: Scratch) -> Outcome {
    let plan = Node::plan(&scratch, &ImageUnderTest::first()?);
    let node = with_screen(plan, "instar.dashboard=off").boot().await?;
    node.wait_until_ready(PATIENCE).await?;
    shows(&node, "machined: booted v0.1.0").await?;
    ensure!(
        node.service("dashboard").await.is_err(),
        "there is a dashboard"
    );
    Ok(())
}

async fn there_is_no_dashboard_without_a_graphics_card(scratch: Scratch) -> Outcome {
    let node = Node::plan(&scratch, &ImageUnderTest::first()?)
        .boot()
        .await?;
    node.wait_until_ready(PATIENCE).await?;
    ensure!(
        node.service("dashboard").await.is_err(),
        "there is a dashboard"
    );
    Ok(())
}
