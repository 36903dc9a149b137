//! `instar-qemu`: the VM harness as a command. See the library for the idea of a machine.

mod arguments;
mod detach;

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Parser;
use instar_qemu::{Ended, Vm, control, create_blank_disk};

use crate::arguments::{Arguments, Command, Machine};

fn main() -> ExitCode {
    match perform(Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("instar-qemu: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn perform(command: Command) -> Result<()> {
    match command {
        Command::Run(machine) => run(&machine),
        Command::Start(machine) => {
            detach::start(&machine.dir)?;
            show_forwards(&machine.dir)
        }
        Command::Status { dir } => {
            if !control::is_running(&dir) {
                bail!("no machine runs in {}", dir.display());
            }
            show_forwards(&dir)
        }
        Command::Stop { dir } => Ok(control::quit(&dir)?),
        Command::Reset { dir } => Ok(control::command(&dir, "system_reset")?),
        Command::PowerButton { dir } => Ok(control::command(&dir, "system_powerdown")?),
        Command::Wait { dir, text, within } => wait(&dir, &text, Duration::from_secs(within)),
        Command::Blank { file, size, format } => {
            Ok(create_blank_disk(&file, format.into(), size.0)?)
        }
    }
}

/// Runs the machine and copies its console, until it ends.
fn run(machine: &Machine) -> Result<()> {
    if machine.detached {
        detach::leave_terminal()?;
    }
    let vm = Vm::start(&machine.spec(), &machine.dir)?;
    let mut shown = 0;
    loop {
        let ended = vm.ended();
        let console = vm.console();
        // Detached, the console has its own file and this one would double it.
        if !machine.detached && console.len() > shown {
            std::io::stdout()
                .write_all(&console.as_bytes()[shown..])
                .context("cannot show the console")?;
            shown = console.len();
        }
        match ended {
            None => std::thread::sleep(Duration::from_millis(50)),
            Some(Ended::Exited(status)) if status.success() => return Ok(()),
            Some(ended) => bail!("the machine ended ({ended}){}", vm.evidence()),
        }
    }
}

fn show_forwards(directory: &Path) -> Result<()> {
    for (guest, host) in control::forwards(directory)? {
        println!("127.0.0.1:{host} is port {guest} of the machine");
    }
    Ok(())
}

fn wait(directory: &Path, text: &str, within: Duration) -> Result<()> {
    let until = Instant::now() + within;
    loop {
        let running = control::is_running(directory);
        let console = std::fs::read(directory.join("console.log")).unwrap_or_default();
        if let Some(line) = String::from_utf8_lossy(&console)
            .lines()
            .find(|line| line.contains(text))
        {
            println!("{line}");
            return Ok(());
        }
        if !running {
            bail!(
                "the machine in {} ended without a console line with {text:?}",
                directory.display()
            );
        }
        if Instant::now() >= until {
            bail!(
                "no console line with {text:?} within {} s, see {}",
                within.as_secs(),
                directory.display()
            );
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
