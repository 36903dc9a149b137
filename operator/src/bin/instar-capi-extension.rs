//! `instar-capi-extension`: updates the machines of Cluster API in place.

use std::process::ExitCode;

use clap::Parser;
use instar_operator::cluster_api::{Options, manifest, serve};

/// Updates machines of Cluster API in place.
#[derive(Debug, Parser)]
#[command(version)]
enum Command {
    /// Serve the hooks of Cluster API's managers.
    Serve(Options),
    /// Print what the management cluster needs: rights, the deployment, the service, the registration.
    Manifest,
}

fn main() -> ExitCode {
    let result = match Command::parse() {
        Command::Serve(options) => serve(options),
        Command::Manifest => manifest::management().map(|text| print!("{text}")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("instar-capi-extension: {error}");
            ExitCode::FAILURE
        }
    }
}
