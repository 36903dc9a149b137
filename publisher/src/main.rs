//! `instar-channel`: makes channels of releases in a folder, and serves them.
//!
//! A folder of channels is all that there is: `NAME/releases-v1.json`, its signature, and `NAME/approvals`. Any web server can serve it, and
//! a copy of it is a mirror; `instar-channel serve` also answers with the newest version, as system-upgrade-controller's channels expect.
//!
//! The decision: a channel is signed files, and this program has no state beside them. A service with a database, as of other update servers, was
//! the other choice: machines would have to trust it and reach it, and a place without a network could not have a copy.

#![forbid(unsafe_code)]

mod command_line;
mod folder;
mod keep_file;
mod keys;
mod lifetime;
mod publish;
mod registries;
mod serve;
mod sources;

use std::process::ExitCode;

use clap::Parser as _;

use crate::command_line::{Arguments, Command};

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("instar-channel: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> anyhow::Result<()> {
    match &arguments.command {
        Command::Key { to } => keys::make(to),
        Command::Serve(serve) => serve::run(&arguments.folder, serve),
        command => publish::run(&arguments.folder, command),
    }
}
