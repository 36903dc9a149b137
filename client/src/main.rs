//! `instarctl`: the command-line client of Instar nodes. It needs only their API.
//!
//! One file per command in `commands/`. Everything that is not about a terminal, a file or the command line is in the library
//! `instar-client`: connections, calls, and following an upgrade to its end.
//!
//! The decision: a command asks the node and prints its answer; the node checks what it can check, in its own words. Checks of requests in
//! the client were the other choice: they refuse requests that a newer node would accept. Only `validate` checks for itself, with the code
//! that a node reads its config with.

mod ask_again;
mod bpf_filter;
mod byte_bar;
mod channel_folder;
mod cli;
mod commands;
mod each_node;
mod exit;
mod follow;
mod left_off;
mod lines;
mod output;
mod patch;
mod pcap_records;
mod private_file;
mod progress;
mod talos_version;
mod target;
mod terminal_text;
mod unread_files;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::Cli;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let output = cli.global.output;
    let failure_file = cli.global.failure_file.clone();
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
        Err(failure) => exit::end(&failure, output, failure_file.as_deref()),
    }
}
