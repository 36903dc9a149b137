//! The command line. A file for each group of commands has their arguments; `commands` lists them all.

mod bundles;
mod client_config;
mod commands;
mod disks;
mod durations;
mod files;
mod fleet;
mod follow;
mod generate;
mod images;
mod inspect;
mod kubernetes;
mod lifecycle;
mod machine_config;
mod meta;
mod network;
mod processes;
mod resources;
mod services;

use std::path::PathBuf;

use clap::{Args, Parser};

pub(crate) use bundles::{Bundle, CreateBundle};
pub(crate) use client_config::Config;
pub(crate) use commands::Command;
pub(crate) use disks::{Wipe, WipeMethod};
pub(crate) use files::{FileType, List, Usage};
pub(crate) use fleet::{
    Fleet, FleetApply, FleetLimits, FleetNodes, FleetOver, FleetRoll, FleetRotate, FleetSign,
    FleetState, FleetSupport,
};
pub(crate) use follow::Follow;
pub(crate) use generate::{Gen, GenConfig, GenSecrets};
pub(crate) use images::{FetchTerms, Image};
pub(crate) use inspect::Inspect;
pub(crate) use kubernetes::{Alarm, Bootstrap, Etcd};
pub(crate) use lifecycle::{RebootMode, Reset, Upgrade, UpgradeMode, Wait};
pub(crate) use machine_config::{
    ApplyConfig, ApplyHow, ApplyMode, Edit, MachineMode, Patch, Validate,
};
pub(crate) use meta::Meta;
pub(crate) use network::{Netstat, Pcap};
pub(crate) use processes::ProcessOrder;
pub(crate) use resources::Get;
pub(crate) use services::ServiceAction;

use crate::exit::EXIT_CODES;
use crate::output::Output;

/// Talks to Instar nodes.
#[derive(Debug, Parser)]
#[command(name = "instarctl", version, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Whom to ask and how to answer.
#[derive(Args, Debug)]
pub(crate) struct Global {
    /// Client configuration file [default: $TALOS_HOME/config or ~/.talos/config]
    #[arg(long, value_name = "FILE", env = "TALOSCONFIG", global = true)]
    pub(crate) talosconfig: Option<PathBuf>,
    /// Context of the client configuration
    #[arg(long, value_name = "NAME", global = true)]
    pub(crate) context: Option<String>,
    /// Where to connect instead of the context's endpoints; unix:///PATH in a pod of the node
    #[arg(
        short,
        long,
        value_name = "HOST[:PORT]",
        value_delimiter = ',',
        env = "INSTAR_ENDPOINTS",
        global = true
    )]
    pub(crate) endpoints: Vec<String>,
    /// Nodes that the command is for [default: the context's, or whoever answers at the endpoint]
    #[arg(short, long, value_name = "NODE", value_delimiter = ',', global = true)]
    pub(crate) nodes: Vec<String>,
    /// How to show results
    #[arg(short, long, value_enum, default_value_t, global = true)]
    pub(crate) output: Output,
    /// Talk to a node without a machine config: no certificates, -n is its address
    #[arg(long, global = true)]
    pub(crate) insecure: bool,
    /// Take only a node whose console shows this fingerprint, whoever signed its certificate
    #[arg(long, value_name = "BASE64", global = true)]
    pub(crate) cert_fingerprint: Vec<String>,
    /// Write the reason of a failure to this file as well
    #[arg(long, value_name = "FILE", env = "INSTAR_FAILURE_FILE", global = true)]
    pub(crate) failure_file: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn arguments_fit_together() {
        Cli::command().debug_assert();
    }
}
