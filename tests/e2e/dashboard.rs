//! `instarctl dashboard` on a terminal, as a person sees it.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use instar_tests::{
    GREETER, Greeter, ImageUnderTest, Instarctl, Node, Outcome, Registry, Scratch, Terminal, Test,
    chapters, plan_with_greeter, tests,
};

use crate::PATIENCE;
use crate::installed::INSTALLER;

/// The smallest terminal, which is the size of serial lines.
const SMALL: (u16, u16) = (80, 24);
/// The size on a serial line, which does not know the terminal's.
const UNKNOWN: (u16, u16) = (0, 0);
const UTF8: &[(&str, &str)] = &[("TERM", "xterm-256color"), ("LANG", "C.UTF-8")];
const SERIAL: &[(&str, &str)] = &[("TERM", "vt220"), ("LANG", "C")];
const END: &str = "\u{1b}[F";

pub(crate) fn tests() -> Vec<Test> {
    tests![the_dashboard_shows_a_node_through_an_upgrade_and_gives_the_terminal_back]
}

/// Waits until the screen shows this text.
async fn shows(node: &Node, terminal: &Terminal, text: &str) -> Outcome {
    let what = format!("the dashboard shows {text:?}");
    node.wait_until(&what, PATIENCE, async || terminal.shows(text))
        .await
}

async fn ends(node: &Node, terminal: &mut Terminal) -> Result<u32> {
    let terminal = std::cell::RefCell::new(terminal);
    node.wait_until("the dashboard ends", PATIENCE, async || {
        terminal.borrow_mut().ended()
    })
    .await
}

async fn the_dashboard_shows_a_node_through_an_upgrade_and_gives_the_terminal_back(
    scratch: Scratch,
) -> Outcome {
    let registry = registry_with_the_second_version(&scratch)?;
    let plan = plan_with_greeter(&scratch, &registry, |config| config)?;
    let node = plan.blank_disk()?.boot().await?;
    node.wait_until_ready(PATIENCE).await?;
    let instarctl = Instarctl::of(&node, &scratch)?;
    let arguments = ["dashboard", "--update-interval", "1s"];
    let mut terminal = instarctl.on_terminal(&arguments, UTF8, SMALL)?;
    chapters![
        the_dashboard_shows_the_whole_node(&node, &terminal),
        the_dashboard_follows_keys_and_sizes(&node, &mut terminal),
        the_dashboard_tells_that_a_node_is_away_and_back(&node, &terminal),
        the_dashboard_goes_on_through_an_upgrade(&node, &registry, &terminal),
        the_dashboard_ends_in_every_way_as_it_should(&node, &instarctl, &mut terminal),
    ]
    .await
}

fn registry_with_the_second_version(scratch: &Scratch) -> Result<Registry> {
    let registry = Registry::start(scratch)?;
    let second = ImageUnderTest::second()?;
    registry.push_layout(&second.installer(), INSTALLER, second.version())?;
    Ok(registry)
}

async fn the_dashboard_shows_the_whole_node(node: &Node, terminal: &Terminal) -> Outcome {
    chapters![
        the_dashboard_shows_what_the_node_is_does_and_says(node, terminal),
        the_dashboard_shows_the_generation(node, terminal),
        the_dashboard_shows_figures(node, terminal),
    ]
    .await
}

async fn the_dashboard_follows_keys_and_sizes(node: &Node, terminal: &mut Terminal) -> Outcome {
    chapters![
        the_dashboard_shows_another_log_and_processes_by_keys(node, terminal),
        the_dashboard_has_three_columns_on_a_larger_terminal(node, terminal),
        the_dashboard_takes_a_key_that_comes_with_a_new_size(node, terminal),
        only_what_changes_is_sent(node, terminal),
    ]
    .await
}

async fn the_dashboard_ends_in_every_way_as_it_should(
    node: &Node,
    instarctl: &Instarctl,
    terminal: &mut Terminal,
) -> Outcome {
    chapters![
        the_dashboard_gives_the_terminal_back_at_a_key(node, terminal),
        the_dashboard_gives_a_serial_line_back_when_told_to_end(node, instarctl),
        the_dashboard_ends_when_its_terminal_goes(node, instarctl),
        the_dashboard_says_what_is_wrong(instarctl),
    ]
    .await
}

async fn the_dashboard_shows_what_the_node_is_does_and_says(
    node: &Node,
    terminal: &Terminal,
) -> Outcome {
    for text in [
        "Version     Instar v0.1.0",
        "running, ready",
        "10.0.2.15/24",
        "vda 4.0 GiB",
        GREETER,
        "Running   OK",
        "log: kernel (1 of ",
        "machined",
    ] {
        shows(node, terminal, text).await?;
    }
    Ok(())
}

async fn the_dashboard_shows_the_generation(node: &Node, terminal: &Terminal) -> Outcome {
    let generation = node.boot_id().await?;
    shows(node, terminal, &generation[..28]).await
}

async fn the_dashboard_shows_figures(node: &Node, terminal: &Terminal) -> Outcome {
    node.wait_until("there are figures", PATIENCE, async || {
        let screen = terminal.screen();
        let cpu = screen.lines().find(|line| line.starts_with("CPU "));
        ensure!(cpu.is_some_and(|line| line.contains(" % ")), "{screen}");
        Ok(())
    })
    .await
}

async fn the_dashboard_shows_another_log_and_processes_by_keys(
    node: &Node,
    terminal: &mut Terminal,
) -> Outcome {
    terminal.press("\t")?;
    shows(node, terminal, "log: apid (2 of ").await?;
    terminal.press("2")?;
    shows(node, terminal, "COMMAND").await?;
    shows(node, terminal, "machined").await?;
    terminal.press("1")
}

async fn the_dashboard_has_three_columns_on_a_larger_terminal(
    node: &Node,
    terminal: &mut Terminal,
) -> Outcome {
    terminal.resize(140, 40)?;
    node.wait_until("three columns", PATIENCE, async || {
        let screen = terminal.screen();
        let titles = screen.lines().nth(1).unwrap_or_default();
        ensure!(
            titles.contains("services (") && titles.contains(" load "),
            "{screen}"
        );
        Ok(())
    })
    .await?;
    terminal.resize(80, 24)
}

/// Without a message from the node.
async fn the_dashboard_tells_that_a_node_is_away_and_back(
    node: &Node,
    terminal: &Terminal,
) -> Outcome {
    node.vm().pause()?;
    shows(node, terminal, "AWAY for ").await?;
    terminal.shows("Instar v0.1.0")?;
    node.vm().resume()?;
    node.wait_until("it is back", PATIENCE, async || {
        ensure!(!terminal.screen().contains("AWAY"), "{}", terminal.screen());
        Ok(())
    })
    .await
}

/// The upgrade is without a reboot: the same kernel boot, another generation and version.
async fn the_dashboard_goes_on_through_an_upgrade(
    node: &Node,
    registry: &Registry,
    terminal: &Terminal,
) -> Outcome {
    let (kernel, generation) = (node.kernel_boot_id().await?, node.boot_id().await?);
    let image = registry.image_for_guest(&format!("{INSTALLER}:v0.2.0"));
    node.upgrade(&image).await??;
    shows(node, terminal, "Version     Instar v0.2.0").await?;
    shows(node, terminal, "running, ready").await?;
    let after = node.boot_id().await?;
    ensure!(after != generation);
    shows(node, terminal, &format!("Generation  {}", &after[..28])).await?;
    shows(node, terminal, &format!("Kernel boot {}", &kernel[..28])).await?;
    Greeter::of(node)?.greets()
}

async fn the_dashboard_gives_the_terminal_back_at_a_key(
    node: &Node,
    terminal: &mut Terminal,
) -> Outcome {
    terminal.press(END)?;
    terminal.press("q")?;
    ensure!(ends(node, terminal).await? == 0);
    terminal.is_restored()
}

/// A key and a new size at the same moment both take effect.
async fn the_dashboard_takes_a_key_that_comes_with_a_new_size(
    node: &Node,
    terminal: &mut Terminal,
) -> Outcome {
    for _ in 0..20 {
        terminal.press("2")?;
        terminal.resize(140, 40)?;
        shows(node, terminal, "COMMAND").await?;
        terminal.press("1")?;
        terminal.resize(80, 24)?;
        shows(node, terminal, "Version     Instar v0.1.0").await?;
    }
    Ok(())
}

/// Ten seconds of an idle node send far less than a whole screen each.
async fn only_what_changes_is_sent(node: &Node, terminal: &mut Terminal) -> Outcome {
    shows(node, terminal, "running, ready").await?;
    let painted = bytes_of_a_whole_screen(node, terminal).await?;
    let before = terminal.bytes();
    tokio::time::sleep(Duration::from_secs(10)).await;
    let each = (terminal.bytes() - before) / 10;
    println!("a whole screen: {painted} bytes; each second of an idle node: {each} bytes");
    ensure!(each < 1000, "{each} bytes a second");
    Ok(())
}

/// A key paints the screen anew.
async fn bytes_of_a_whole_screen(node: &Node, terminal: &mut Terminal) -> Result<u64> {
    let before = terminal.bytes();
    terminal.press("\u{c}")?;
    node.wait_until("it is painted anew", PATIENCE, async || {
        let painted = terminal.bytes() - before;
        ensure!(painted > 1000, "{painted} bytes so far");
        Ok(painted)
    })
    .await
}

async fn the_dashboard_gives_a_serial_line_back_when_told_to_end(
    node: &Node,
    instarctl: &Instarctl,
) -> Outcome {
    let mut terminal = instarctl.on_terminal(&["dashboard"], SERIAL, UNKNOWN)?;
    shows(node, &terminal, "Version     Instar v0.2.0").await?;
    shows(node, &terminal, "log: kernel (1 of ").await?;
    ensure!(terminal.screen().is_ascii(), "{}", terminal.screen());
    let pid = i32::try_from(terminal.pid()?)?;
    let pid = rustix::process::Pid::from_raw(pid).context("no process")?;
    rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
    ensure!(ends(node, &mut terminal).await? == 0);
    terminal.is_restored()
}

async fn the_dashboard_ends_when_its_terminal_goes(node: &Node, instarctl: &Instarctl) -> Outcome {
    let terminal = instarctl.on_terminal(&["dashboard"], UTF8, SMALL)?;
    shows(node, &terminal, "Version     Instar v0.2.0").await?;
    let program = std::cell::RefCell::new(terminal.hang_up()?);
    node.wait_until("the dashboard ends", PATIENCE, async || {
        program.borrow_mut().ended()
    })
    .await
}

async fn the_dashboard_says_what_is_wrong(instarctl: &Instarctl) -> Outcome {
    let said = instarctl.run(&["dashboard"]).await?;
    ensure!(
        said.code == Some(2) && said.complaint.contains("needs a terminal"),
        "{said:?}"
    );
    Ok(())
}
