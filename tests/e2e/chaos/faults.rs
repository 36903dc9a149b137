//! The faults.

use std::fmt;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use instar_api::machine::ServiceRestartRequest;
use instar_tests::{BadLine, Greeter, Impairment, Outcome, Saboteur, Trouble};
use rustix::process::Signal;
use serde_json::json;

use super::changes::{in_short, is_busy};
use super::{ALONE, Chaos, HUNGRY_PORT, STARVING_PORT};
use crate::PATIENCE;

/// How long a temporary fault lasts.
const A_WHILE: Duration = Duration::from_secs(5);
/// Timeout for a process that runs, and for one that another program starts in a moment.
const NOW: Duration = Duration::from_secs(2);
const SOON: Duration = Duration::from_secs(20);
/// Limit on the wait for an upgrade's answer while a registry makes trouble.
const TROUBLED: Duration = Duration::from_secs(15);
/// How long the line is bad: a little more than three round trips with frames at their latest.
const BAD_WEATHER: Duration = Duration::from_secs(35);
const LATE: Duration = Duration::from_secs(5);
const YEAR: i64 = 365 * 24 * 3600;

/// A fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// SIGKILL to all processes of a program.
    Kill(&'static str),
    /// SIGSTOP without SIGCONT.
    Stop(&'static str),
    /// SIGSTOP, and SIGCONT a while later.
    StopForAWhile(&'static str),
    /// A signal to a program as soon as the console shows this line of an upgrade. SIGSTOP of a container lasts a while; nobody else would
    /// end it.
    At(Signal, &'static str, &'static str),
    /// A container fills /var.
    FullVar,
    /// A container takes all memory that its limit allows.
    OutOfMemory(u16),
    /// A container takes all process numbers that its limit allows.
    ForkBomb,
    /// The clock jumps, and back a while later.
    Clock(i64),
    /// The network's cable is unplugged for a while.
    Unplugged,
    /// Frames between the machine and all others are late, lost or doubled, for a while.
    BadLine(Impairment),
    /// An upgrade begins while its registry makes trouble.
    Registry(Trouble),
}

impl Fault {
    /// All faults, the quick ones first.
    const ALL: &[Fault] = &[
        Fault::Kill("apid"),
        Fault::Kill("machined"),
        Fault::Kill("greeter"),
        Fault::Unplugged,
        Fault::Registry(Trouble::Status(429)),
        Fault::Registry(Trouble::WrongBytes),
        Fault::BadLine(Impairment::Duplication(30)),
        Fault::OutOfMemory(HUNGRY_PORT),
        Fault::At(Signal::KILL, "machined", "taken over as process"),
        Fault::Clock(10),
        Fault::FullVar,
        Fault::Kill("crun"),
        Fault::StopForAWhile("greeter"),
        Fault::At(Signal::KILL, "machined", "upgrade: start"),
        Fault::Registry(Trouble::Reset),
        Fault::Stop("apid"),
        Fault::At(Signal::KILL, "machined", "upgrade: upgrade: done"),
        Fault::ForkBomb,
        Fault::BadLine(Impairment::Loss(20)),
        Fault::At(Signal::KILL, "machined", "upgrade: stopServices: done"),
        Fault::Registry(Trouble::Hang),
        Fault::OutOfMemory(STARVING_PORT),
        Fault::At(Signal::KILL, "machined", "upgrade: unmount: done"),
        Fault::Stop("machined"),
        Fault::BadLine(Impairment::Delay(LATE)),
        Fault::At(Signal::KILL, "machined", "starts, boot id"),
        Fault::Registry(Trouble::Slow),
        Fault::Clock(-10),
        Fault::At(Signal::KILL, "machined", "(next)"),
        Fault::Registry(Trouble::Status(500)),
        Fault::At(Signal::KILL, "machined", "initialize: loadConfig: done"),
        Fault::Stop("crun"),
        Fault::At(Signal::KILL, "machined", "boot: machine: done"),
        Fault::At(Signal::KILL, "machined", "boot: startServices: done"),
        Fault::At(Signal::KILL, "greeter", "upgrade: stopServices: done"),
        Fault::At(Signal::KILL, "apid", "taken over as process"),
        // Half a second later the runtime starts the installer.
        Fault::At(Signal::KILL, "crun", ": without a reboot"),
        Fault::At(Signal::STOP, "machined", "upgrade: stopServices: done"),
        Fault::At(Signal::KILL, "greeter", "taken over as process"),
        Fault::At(Signal::STOP, "apid", "initialize: loadConfig: done"),
        Fault::At(Signal::STOP, "machined", "taken over as process"),
        Fault::At(Signal::STOP, "greeter", "taken over as process"),
        Fault::At(Signal::KILL, "apid", "upgrade: upgrade: done"),
        Fault::At(Signal::STOP, "crun", ": without a reboot"),
        Fault::At(Signal::STOP, "machined", "boot: machine: done"),
    ];

    /// Returns all faults, or those whose names contain one of these words: `INSTAR_FAULTS=registry,SIGSTOP`.
    pub(super) fn chosen() -> anyhow::Result<Vec<Fault>> {
        let wanted = std::env::var("INSTAR_FAULTS").unwrap_or_default();
        let is_wanted = |fault: &&Fault| {
            let name = fault.to_string();
            wanted.split(',').any(|part| name.contains(part))
        };
        let chosen: Vec<_> = Fault::ALL.iter().filter(is_wanted).copied().collect();
        ensure!(!chosen.is_empty(), "no fault has {wanted:?} in its name");
        Ok(chosen)
    }

    /// Causes the fault. Returns the answers of calls that it made, for the table.
    pub(super) async fn strike(self, chaos: &Chaos) -> anyhow::Result<Vec<String>> {
        match self {
            Fault::ForkBomb => return fork_bomb(chaos).await,
            Fault::Registry(trouble) => return registry(chaos, trouble).await,
            Fault::Kill("crun") => with_the_runtime(chaos, Signal::KILL).await?,
            Fault::Stop("crun") => with_the_runtime(chaos, Signal::STOP).await?,
            Fault::Kill(program) => signal(chaos, program, Signal::KILL).await?,
            Fault::Stop(program) => signal(chaos, program, Signal::STOP).await?,
            Fault::At(sent, program, line) => return strike_at(chaos, sent, program, line).await,
            Fault::OutOfMemory(port) => take_all_memory(chaos, port)?,
            lasting => lasting.last(chaos).await?,
        }
        Ok(Vec::new())
    }

    /// Causes a temporary fault, and ends it.
    async fn last(self, chaos: &Chaos) -> Outcome {
        match self {
            Fault::StopForAWhile(program) => stop_for_a_while(chaos, program).await,
            Fault::FullVar => full_var(chaos).await,
            Fault::Clock(years) => set_clock_off(chaos, years).await,
            Fault::Unplugged => unplug(chaos).await,
            Fault::BadLine(impairment) => bad_line(chaos, impairment).await,
            other => anyhow::bail!("{other} is over at once"),
        }
    }
}

async fn stop_for_a_while(chaos: &Chaos, program: &str) -> Outcome {
    signal(chaos, program, Signal::STOP).await?;
    tokio::time::sleep(A_WHILE).await;
    signal(chaos, program, Signal::CONT).await
}

fn take_all_memory(chaos: &Chaos, port: u16) -> Outcome {
    let path = match port {
        STARVING_PORT => "/fill/memory/all",
        _ => "/fill/dev/shm/all",
    };
    // The container dies of it, and so does the connection.
    let _ = Greeter::at(&chaos.node, port)?.get(path);
    Ok(())
}

async fn set_clock_off(chaos: &Chaos, years: i64) -> Outcome {
    again(|| chaos.saboteur.set_clock_off(years * YEAR)).await?;
    tokio::time::sleep(A_WHILE).await;
    again(|| chaos.saboteur.set_clock_off(0)).await
}

async fn unplug(chaos: &Chaos) -> Outcome {
    plug(chaos, false)?;
    tokio::time::sleep(A_WHILE).await;
    plug(chaos, true)
}

impl Fault {
    /// Whether a kept container's log has every line of the time of the fault. machined has the newest lines in memory alone, for a moment,
    /// and for as long as the disk is full.
    pub(super) fn keeps_logs(self) -> bool {
        match self {
            Fault::Kill("machined") | Fault::Stop("machined") | Fault::At(_, "machined", _) => {
                false
            }
            // The kernel may choose machined.
            Fault::OutOfMemory(STARVING_PORT) => false,
            Fault::FullVar => false,
            _ => true,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Kill(program) => write!(f, "SIGKILL of {program}"),
            Fault::Stop(program) => write!(f, "SIGSTOP of {program}"),
            Fault::StopForAWhile(program) => write!(f, "SIGSTOP of {program} for {A_WHILE:?}"),
            Fault::At(sent, program, line) => write!(f, "{} at {line:?}", strike(*sent, program)),
            Fault::FullVar => f.write_str("a full /var"),
            Fault::OutOfMemory(STARVING_PORT) => f.write_str("a container takes all memory"),
            Fault::OutOfMemory(_) => f.write_str("a container takes more memory than it may"),
            Fault::ForkBomb => f.write_str("a fork bomb in a container"),
            Fault::Clock(years) => write!(f, "the clock jumps by {years} years for {A_WHILE:?}"),
            Fault::Unplugged => write!(f, "the network is unplugged for {A_WHILE:?}"),
            Fault::BadLine(impairment) => write!(f, "{impairment} for {BAD_WEATHER:?}"),
            Fault::Registry(trouble) => write!(f, "an upgrade, the registry: {trouble:?}"),
        }
    }
}

/// A signal and its program, in words.
fn strike(sent: Signal, program: &str) -> String {
    match (sent, program) {
        (Signal::STOP, "greeter") => format!("SIGSTOP of greeter for {A_WHILE:?}"),
        (Signal::STOP, program) => format!("SIGSTOP of {program}"),
        (_, program) => format!("SIGKILL of {program}"),
    }
}

/// Retries an order: the saboteur is started again with each generation, so it may be away for a moment.
async fn again(mut order: impl FnMut() -> Outcome) -> Outcome {
    let until = tokio::time::Instant::now() + PATIENCE;
    loop {
        match order() {
            Ok(()) => return Ok(()),
            Err(error) if tokio::time::Instant::now() >= until => return Err(error),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

async fn signal(chaos: &Chaos, program: &str, signal: Signal) -> Outcome {
    again(|| chaos.saboteur.signal(program, signal, NOW).map(drop)).await
}

/// Restarts a container, and sends the signal to the runtime that does it.
async fn with_the_runtime(chaos: &Chaos, signal: Signal) -> Outcome {
    let strike = async || strike_a_restart(chaos, signal).await;
    let what = "the runtime gets the signal";
    chaos.node.wait_until(what, PATIENCE, strike).await
}

async fn strike_a_restart(chaos: &Chaos, signal: Signal) -> Outcome {
    let saboteur: Saboteur = chaos.saboteur.clone();
    let waiting = tokio::task::spawn_blocking(move || saboteur.signal("crun", signal, SOON));
    let request = ServiceRestartRequest {
        id: ALONE.to_owned(),
    };
    // A machine during a change of versions refuses the call, and runs the runtime all the same.
    let _ = chaos.node.machine().await?.service_restart(request).await;
    waiting.await?.map(drop)
}

/// Begins an upgrade, and sends the signal when the console shows the line.
async fn strike_at(
    chaos: &Chaos,
    sent: Signal,
    program: &'static str,
    line: &str,
) -> anyhow::Result<Vec<String>> {
    let _alone = chaos.changing.lock().await;
    let mark = chaos.node.vm().console_mark()?;
    let runs = chaos.node.version().await?.tag;
    let other = if runs == "v0.1.0" { "v0.2.0" } else { "v0.1.0" };
    chaos.ask_when_free(other).await?;
    chaos.node.vm().wait_for_line_after(mark, line, PATIENCE)?;
    if program == "crun" {
        return strike_runtime(chaos, sent).await;
    }
    signal(chaos, program, sent).await?;
    if (sent, program) == (Signal::STOP, "greeter") {
        tokio::time::sleep(A_WHILE).await;
        signal(chaos, program, Signal::CONT).await?;
    }
    Ok(Vec::new())
}

/// The runtime runs for moments only, and the saboteur that waits for it ends with its generation.
async fn strike_runtime(chaos: &Chaos, sent: Signal) -> anyhow::Result<Vec<String>> {
    let saboteur = chaos.saboteur.clone();
    let striking = tokio::task::spawn_blocking(move || saboteur.signal("crun", sent, SOON));
    Ok(match striking.await? {
        Ok(_) => Vec::new(),
        Err(_) => vec!["there was no process of the runtime".to_owned()],
    })
}

async fn full_var(chaos: &Chaos) -> Outcome {
    chaos.greeter.get("/fill/data/ballast")?;
    tokio::time::sleep(A_WHILE).await;
    chaos.greeter.get("/remove/data/ballast").map(drop)
}

/// Starts threads, which stay until the container is ended.
async fn fork_bomb(chaos: &Chaos) -> anyhow::Result<Vec<String>> {
    let greeter = Greeter::at(&chaos.node, STARVING_PORT)?;
    let said = match greeter.get("/bomb") {
        Ok(threads) => format!("it has {}", threads.trim()),
        Err(_) => "it died of it".to_owned(),
    };
    tokio::time::sleep(A_WHILE).await;
    chaos.node.version_for_newcomers().await?;
    greeter.exit(1);
    Ok(vec![said])
}

fn plug(chaos: &Chaos, up: bool) -> Outcome {
    let mut qmp = chaos.node.vm().qmp();
    qmp.execute("set_link", json!({"name": "net0", "up": up}))
        .context("plug the network's cable")?;
    Ok(())
}

async fn bad_line(chaos: &Chaos, impairment: Impairment) -> Outcome {
    let line = BadLine::begin(&mut chaos.node.vm().qmp(), &chaos.scratch, impairment)?;
    tokio::time::sleep(BAD_WEATHER).await;
    line.mend(&mut chaos.node.vm().qmp())
}

async fn registry(chaos: &Chaos, trouble: Trouble) -> anyhow::Result<Vec<String>> {
    let _alone = chaos.changing.lock().await;
    let look = || said_beside_a_bad_registry(chaos, trouble);
    let said = chaos
        .node
        .wait_until("an upgrade is looked at", PATIENCE, look)
        .await?;
    Ok(vec![said])
}

/// Returns the answer to an upgrade while its registry makes trouble; an error if the machine is busy.
async fn said_beside_a_bad_registry(chaos: &Chaos, trouble: Trouble) -> anyhow::Result<String> {
    chaos.registry.set(trouble);
    let asked = tokio::time::timeout(TROUBLED, chaos.ask_for("v0.2.0")).await;
    chaos.registry.set(Trouble::None);
    match asked {
        Ok(Ok(())) => Ok("Upgrade was taken".to_owned()),
        Ok(Err(status)) if is_busy(&status) => Err(status.into()),
        Ok(Err(status)) => Ok(format!("Upgrade said {}", in_short(&status))),
        Err(_) => Ok(format!("Upgrade did not answer within {TROUBLED:?}")),
    }
}
