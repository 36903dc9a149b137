//! `instar-operator`: rolls versions out over the nodes of a Kubernetes cluster.

use std::process::ExitCode;

use clap::Parser;
use instar_operator::{Options, manifest, run};

/// Rolls versions of Instar out over the nodes of a Kubernetes cluster.
#[derive(Debug, Parser)]
#[command(version)]
enum Command {
    /// Drive the rollouts of all pools, as long as this process holds the lease.
    Run(Box<Options>),
    /// Print the definitions of the custom resources.
    Crds,
    /// Print all that an installation needs: definitions, rights, the deployment.
    Manifest,
}

fn main() -> ExitCode {
    let result = match Command::parse() {
        Command::Run(options) => run(*options),
        Command::Crds => manifest::definitions().map(|text| print!("{text}")),
        Command::Manifest => manifest::all().map(|text| print!("{text}")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("instar-operator: {error}");
            ExitCode::FAILURE
        }
    }
}
