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

/// The heading of the options that every command has: its own ones stand before them.
const EVERYWHERE: &str = "Options of every command";

/// Whom to ask and how to answer.
#[derive(Args, Debug)]
pub(crate) struct Global {
    /// Client configuration file [default: $TALOS_HOME/config or ~/.talos/config]
    #[arg(long, value_name = "FILE", env = "TALOSCONFIG", global = true, help_heading = EVERYWHERE)]
    pub(crate) talosconfig: Option<PathBuf>,
    /// Context of the client configuration
    #[arg(long, value_name = "NAME", global = true, help_heading = EVERYWHERE)]
    pub(crate) context: Option<String>,
    /// Where to connect instead of the context's endpoints; unix:///PATH in a pod of the node
    #[arg(
        short,
        long,
        value_name = "HOST[:PORT]",
        value_delimiter = ',',
        env = "INSTAR_ENDPOINTS",
        global = true,
        help_heading = EVERYWHERE
    )]
    pub(crate) endpoints: Vec<String>,
    /// Nodes that the command is for [default: the context's, or whoever answers at the endpoint]
    #[arg(short, long, value_name = "NODE", value_delimiter = ',', global = true, help_heading = EVERYWHERE)]
    pub(crate) nodes: Vec<String>,
    /// How to show results
    #[arg(short, long, value_enum, default_value_t, global = true, help_heading = EVERYWHERE)]
    pub(crate) output: Output,
    /// Talk to a node without a machine config: no certificates, -n is its address
    #[arg(long, global = true, help_heading = EVERYWHERE)]
    pub(crate) insecure: bool,
    /// Take only a node whose console shows this fingerprint, whoever signed its certificate
    #[arg(long, value_name = "BASE64", global = true, help_heading = EVERYWHERE)]
    pub(crate) cert_fingerprint: Vec<String>,
    /// Write the reason of a failure to this file as well
    #[arg(long, value_name = "FILE", env = "INSTAR_FAILURE_FILE", global = true, help_heading = EVERYWHERE)]
    pub(crate) failure_file: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn arguments_fit_together() {
        Cli::command().debug_assert();
    }

    /// The texts of a command and of all commands below it.
    fn texts(command: &clap::Command) -> Vec<String> {
        let own = [
            command.get_about(),
            command.get_long_about(),
            command.get_after_help(),
            command.get_after_long_help(),
        ];
        let own = own.into_iter().flatten().map(ToString::to_string);
        own.chain(command.get_subcommands().flat_map(texts))
            .collect()
    }

    /// The words of a line, as a shell splits it.
    fn words(line: &str) -> Vec<String> {
        let (mut words, mut quote) = (vec![String::new()], None);
        for letter in line.chars() {
            match (letter, quote) {
                (' ', None) => words.push(String::new()),
                ('\'' | '"', None) => quote = Some(letter),
                (letter, Some(begun)) if letter == begun => quote = None,
                (letter, _) => words.last_mut().unwrap().push(letter),
            }
        }
        words.retain(|word| !word.is_empty());
        words
    }

    #[test]
    fn every_example_can_be_given() {
        let texts = texts(&Cli::command());
        let lines = texts.iter().flat_map(|text| text.lines());
        let examples = lines.filter_map(|line| line.trim().strip_prefix("instarctl "));
        // The output of another program is no word of ours.
        let examples: Vec<&str> = examples.filter(|line| !line.contains("$(")).collect();
        for example in &examples {
            let parsed = Cli::try_parse_from(words(&format!("instarctl {example}")));
            assert!(parsed.is_ok(), "{example}: {}", parsed.unwrap_err());
        }
        assert!(examples.len() >= 12, "{examples:?}");
    }

    #[test]
    fn options_of_every_command_stand_apart() {
        let mut all = Cli::command();
        all.build();
        let patch = all.find_subcommand_mut("patch").unwrap();
        let help = patch.render_long_help().to_string();
        let (own, of_all) = help.split_once(EVERYWHERE).unwrap();
        assert!(own.contains("--patch-file") && !own.contains("--talosconfig"));
        assert!(of_all.contains("--talosconfig") && !of_all.contains("--patch-file"));
    }
}
