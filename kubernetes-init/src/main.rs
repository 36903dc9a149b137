//! PID 1 of the container of Kubernetes. It layers system extensions over the container's base, and runs the services that they start:
//! containerd and kubelet, whose pods live in the same container.
//!
//! ```text
//!   machined ──plan.json, SIGHUP──► kubernetes-init ──► overlay over /usr and /opt
//!            ◄──status.json──────                   ──► containerd, kubelet, each in a cgroup of its own ──► pods
//! ```
//!
//! - `start` below: from the start to the loop; `run`: the loop.
//! - `extensions`: from the plan to services; `layers`: their files over the base.
//! - `supervisor`, `service`: the decisions, without side effects; `processes`, `starter`, `output`, `notify`, `cgroups`: what carries them out.
//! - `shutdown`: the service that tells kubelet that everything ends, before it does.
//! - `reboot`: a reboot of the machine that waits; `reboot_commands`: the programs by which a pod asks for one.
//! - `report`: the status for machined; `ending`: the end of everything.
//!
//! The decision: a small program in one thread runs the units of extensions as they were published. systemd in the container was the other
//! choice: it is larger than the base, wants D-Bus and a journal, and one of its units that cannot start may end others, where a pod has to
//! outlive both kubelet and containerd. machined as the supervisor was a third: it ends at every upgrade without a reboot, and the children of
//! containerd need a parent that stays.
//!
//! It never gives up while the container is wanted: each error is in the status, and the rest goes on. Its own end is the end of all pods.

#![forbid(unsafe_code)]

mod cgroups;
mod ending;
mod environment;
mod extensions;
mod layers;
mod notify;
mod output;
mod processes;
mod reboot;
mod reboot_commands;
mod report;
mod run;
mod service;
mod shutdown;
mod signals;
mod starter;
mod supervisor;

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::{self, ExitCode};

use anyhow::{Result, ensure};
use instar_kubernetes_plan::{DIRECTORY, MACHINE_ID, OS_RELEASE};

use cgroups::Cgroups;
use layers::Layers;
use output::say;
use run::Container;
use signals::Signals;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = env::args_os().skip(1).collect();
    let called = env::args_os().next().unwrap_or_default();
    let name = Path::new(&called).file_name().and_then(OsStr::to_str);
    if let Some(program) = name.and_then(reboot_commands::called) {
        let words = arguments
            .iter()
            .map(|word| word.to_string_lossy().into_owned());
        return reboot_commands::run(program, &words.collect::<Vec<_>>());
    }
    if let [word, rest @ ..] = arguments.as_slice()
        && word == starter::WORD
    {
        return starter::run(rest);
    }
    match start() {
        Ok(container) => {
            container.run();
            ExitCode::SUCCESS
        }
        Err(error) => {
            say(&format!("kubernetes-init cannot start: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// The start, from top to bottom. Without cgroups, os-release or machine-id services run, too: the status says that these are missing.
fn start() -> Result<Container> {
    ensure!(
        process::id() == 1,
        "it is the first process of a container, and was started as another one"
    );
    let signals = Signals::take_over()?;
    layers::share_mounts()?;
    let directory = Path::new(DIRECTORY);
    let files = [
        (OS_RELEASE, "/etc/os-release"),
        (MACHINE_ID, "/etc/machine-id"),
    ]
    .map(|(name, over)| layers::put_over(&directory.join(name), over));
    let cgroups = Cgroups::set_up();
    let layers = Layers::new()?;
    let (cgroups, without) = match cgroups {
        Ok(cgroups) => {
            let enabled = cgroups.enable_controllers();
            (Some(cgroups), enabled.err())
        }
        Err(error) => (None, Some(error)),
    };
    let mut container = Container::new(directory, signals, layers, cgroups);
    let not_put = files.iter().filter_map(|put| put.as_ref().err());
    for error in without.iter().chain(not_put) {
        container.report().start_failed(error);
    }
    Ok(container)
}
