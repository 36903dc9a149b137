//! `completion`: the script with which a shell completes our arguments.

use clap::CommandFactory;
use clap_complete::Shell;
use instar_client::Failure;

use crate::cli::Cli;
use crate::output::print_bytes;

pub(super) fn run(shell: Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "instarctl", &mut script);
    print_bytes(&script)
}
