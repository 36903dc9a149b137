//! `instarctl`: talks to Instar nodes, and needs nothing but their API.
//!
//! One file per command in `commands/`. Underneath: `target` finds out whom to ask as whom, `connection` dials, `node` calls,
//! `tracker` (what the events mean) and `follow` (how they are got) see a reboot or an upgrade through to its end.

mod bpf_filter;
mod cli;
mod commands;
mod connection;
mod endpoint;
mod failure;
mod follow;
mod lines;
mod node;
mod output;
mod patch;
mod pcap_records;
mod private_file;
mod progress;
mod target;
mod tracker;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::Cli;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let output = cli.global.output;
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(commands::run(cli)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) if failure.is_closed_output() => ExitCode::SUCCESS,
        Err(failure) => {
            failure.report(output);
            failure.exit.into()
        }
    }
}
