//! All commands.

use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;
use clap_complete::Shell;

use super::bundles::Bundle;
use super::client_config::Config;
use super::disks::Wipe;
use super::durations::duration;
use super::files::{List, Usage};
use super::fleet::Fleet;
use super::follow::Follow;
use super::generate::Gen;
use super::images::Image;
use super::inspect::Inspect;
use super::kubernetes::{Bootstrap, Etcd};
use super::lifecycle::{RebootMode, Reset, Upgrade, Wait};
use super::machine_config::{ApplyConfig, Edit, Patch, Validate};
use super::meta::Meta;
use super::network::{Netstat, Pcap};
use super::processes::ProcessOrder;
use super::resources::Get;
use super::services::ServiceAction;

const UPGRADE_EXAMPLES: &str = "\
Examples:
  instarctl -n 10.0.0.5 upgrade --image registry.example/instar/installer:v0.2.0 --dry-run
  instarctl -n 10.0.0.5 upgrade --image registry.example/instar/installer:v0.2.0
  instarctl -n 10.0.0.5 upgrade --image registry.example/instar/installer:v0.2.0 --prepare --window \"02:00-05:00\" --bandwidth 2MiB/s";
const APPLY_EXAMPLES: &str = "\
Examples:
  instarctl apply-config --insecure -n 10.0.0.5 --file machine.yaml
  instarctl -n 10.0.0.5 apply-config --file machine.yaml --dry-run
  instarctl -n 10.0.0.5 apply-config --file machine.yaml --mode try --timeout 2m";
const PATCH_EXAMPLES: &str = "\
Examples:
  instarctl -n 10.0.0.5 patch mc --patch @web.yaml
  instarctl -n 10.0.0.5 patch mc --patch '{\"machine\": {\"time\": {\"servers\": [\"10.0.0.1\"]}}}' --dry-run
  instarctl -n 10.0.0.5 patch mc --patch '[{\"op\": \"remove\", \"path\": \"/machine/time\"}]'";
const GET_EXAMPLES: &str = "\
Examples:
  instarctl get rd
  instarctl -n 10.0.0.5 get conditions -w
  instarctl -n 10.0.0.5,10.0.0.6 get upgrades -o yaml";

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Make configuration files
    #[command(subcommand)]
    Gen(Gen),
    /// Show the versions of client and node
    Version,
    /// List services, or show and control one
    #[command(visible_alias = "services")]
    Service {
        /// Service [default: all]
        id: Option<String>,
        /// Action
        #[arg(value_enum, requires = "id")]
        action: Option<ServiceAction>,
    },
    /// Show the log of a service, or list the services that have a log
    Logs {
        /// Service [default: list the services that have a log]
        id: Option<String>,
        /// Keep printing new lines
        #[arg(short, long, requires = "id")]
        follow: bool,
        /// Print only the last N lines
        #[arg(long, value_name = "LINES", requires = "id")]
        tail: Option<u32>,
        /// Show the log of a pod's container, as `containers -k` names it: NAMESPACE/POD:CONTAINER
        #[arg(short, long, requires = "id")]
        kubernetes: bool,
    },
    /// Show the kernel log
    Dmesg {
        /// Keep printing new lines
        #[arg(short, long)]
        follow: bool,
        /// Print only messages from now on
        #[arg(long)]
        tail: bool,
    },
    /// Print the node's events as they happen
    Events {
        /// Print the last N events first; -1 prints all that the node has kept
        #[arg(long, value_name = "COUNT", allow_negative_numbers = true)]
        tail: Option<i32>,
        /// Print only the events of this actor: the id that a call returned
        #[arg(long, value_name = "ID")]
        actor_id: Option<String>,
    },
    /// Upgrade the node
    #[command(after_help = UPGRADE_EXAMPLES)]
    Upgrade(Upgrade),
    /// Upgrade many nodes in waves, without a server; change their configs, certificates and authority
    #[command(subcommand)]
    Fleet(Fleet),
    /// Reboot the node
    Reboot {
        /// Kind of reboot
        #[arg(short, long, value_enum, default_value_t)]
        mode: RebootMode,
        #[command(flatten)]
        wait: Wait,
    },
    /// Power the node off
    Shutdown {
        /// Power off at once: services have no time to end, they are killed. File systems are unmounted
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        wait: Wait,
    },
    /// Reboot the node into the other version on its disk
    Rollback {
        /// Even to a version below the node's floor, or that its rules for images or keys for upgrades refuse
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        wait: Wait,
    },
    /// Erase the node's data on its disk, then power it off or reboot it
    Reset(Reset),
    /// Erase disks that the node does not use
    #[command(subcommand)]
    Wipe(Wipe),
    /// Print a file of the node to standard output
    #[command(visible_alias = "cat")]
    Read {
        /// Absolute path
        path: String,
    },
    /// Send a machine config to the node
    #[command(visible_alias = "apply", after_help = APPLY_EXAMPLES)]
    ApplyConfig(ApplyConfig),
    /// Check a machine config without a node
    ///
    /// Prints every error with its document, line and field, and a warning for each field that this version knows but does not
    /// serve. Only a node can check the rest, such as whether the disk exists: `apply-config --dry-run` does.
    Validate(Validate),
    /// Change the node's machine config in an editor
    ///
    /// The editor is $VISUAL, $EDITOR or vi. A config that is unchanged or empty is not applied. A config that the node refuses is
    /// saved in a file.
    Edit(Edit),
    /// Change parts of the node's machine config
    ///
    /// A patch is a part of a machine config: maps are merged, lists are extended, other values are replaced, and `$patch: delete` removes
    /// the map that contains it. Documents are matched by kind and name. A patch may also be a JSON patch (RFC 6902) in JSON or YAML, which
    /// applies to the only document, or to the document without a kind. All other text, comments included, stays as it is.
    #[command(after_help = PATCH_EXAMPLES)]
    Patch(Patch),
    /// Begin the cluster whose control plane is on the node, once
    ///
    /// With `--recover-from` it begins with the data of a snapshot, which `etcd snapshot` has written: on a machine that was installed anew, or
    /// that has lost the data of etcd. The config has to have the keys of the snapshot's cluster.
    Bootstrap(Bootstrap),
    /// Write a kubeconfig for the administrator of the cluster on the node
    Kubeconfig {
        /// File to write, or - for standard output
        #[arg(default_value = "kubeconfig")]
        file: PathBuf,
        /// Replace an existing file
        #[arg(short, long)]
        force: bool,
    },
    /// Look after the data of the cluster on the node
    #[command(subcommand)]
    Etcd(Etcd),
    /// List files of the node
    #[command(visible_alias = "ls")]
    List(List),
    /// Copy files of the node
    #[command(visible_alias = "cp")]
    Copy {
        /// Absolute path of a directory or a file
        path: String,
        /// Directory to unpack to, or - for the packed archive (tar.gz) on standard output
        #[arg(default_value = ".")]
        target: PathBuf,
    },
    /// Show the disk space that files of the node take
    #[command(visible_alias = "du")]
    Usage(Usage),
    /// Show the node's memory usage
    #[command(visible_alias = "free")]
    Memory {
        /// Print every line of /proc/meminfo
        #[arg(short, long)]
        verbose: bool,
    },
    /// List processes
    #[command(visible_alias = "ps")]
    Processes {
        /// Sort order, largest first
        #[arg(short, long, value_enum, default_value_t)]
        sort: ProcessOrder,
    },
    /// List mounts with their size and free space
    Mounts,
    /// Show size and free space of filesystems
    #[command(visible_alias = "df")]
    Diskfree,
    /// List sockets
    #[command(visible_alias = "ss")]
    Netstat(Netstat),
    /// Capture packets of a link as a pcap file
    ///
    /// Ends after --duration, when the link goes down, or with ^C. The captured packets are sent to you over the network: if that is
    /// the same link, exclude the API's port, as in
    ///
    ///   instarctl pcap -i eth0 -O eth0.pcap --bpf-filter "$(tcpdump -dd -y EN10MB 'not port 50000')"
    ///
    ///   instarctl pcap -i wg0 --bpf-filter "$(tcpdump -dd -y RAW icmp)" | tcpdump -n -r -
    #[command(visible_alias = "tcpdump", verbatim_doc_comment)]
    Pcap(Pcap),
    /// List containers
    #[command(visible_alias = "c")]
    Containers {
        /// List the containers of pods instead
        #[arg(short, long)]
        kubernetes: bool,
    },
    /// Restart a container
    Restart {
        /// Container
        id: String,
    },
    /// Show the CPU time and memory that containers use
    Stats {
        /// Show the containers of pods instead
        #[arg(short, long)]
        kubernetes: bool,
    },
    /// List disks
    Disks,
    /// Compare the node's clock with a time server
    Time {
        /// Time server [default: the node's own]
        #[arg(short, long, value_name = "SERVER")]
        check: Option<String>,
    },
    /// List, pull, verify, pin, serve, approve and remove images on the node
    #[command(subcommand, visible_alias = "images")]
    Image(Image),
    /// Make, show, verify, upload and fetch bundles: images with their signatures in one file, for places without a registry
    #[command(subcommand)]
    Bundle(Bundle),
    /// Show the node's resources: its state and settings; `get rd` lists the types
    #[command(after_help = GET_EXAMPLES)]
    Get(Get),
    /// Show a live dashboard of nodes: summary, services, load and logs
    ///
    /// Works on any terminal of 80 x 24 characters, also over a serial line. Keys: q quits; 1, 2, 3 (or F1, F2, F3) show the summary,
    /// load and processes, or the log alone; left and right (or h and l) switch the node; tab and shift-tab switch the log; up and
    /// down (or k and j), ^U and ^D, page up and page down (or ^B and ^F), home and end scroll; ^L redraws the screen.
    Dashboard {
        /// Interval between updates: seconds, or a number with a unit
        #[arg(short = 'd', long, value_name = "TIME", default_value = "3s", value_parser = duration)]
        update_interval: Duration,
    },
    /// Wait until the node is healthy
    Health {
        /// Timeout: seconds, or a number with a unit (90s, 30m, 1h)
        #[arg(long, value_name = "TIME", default_value = "20m", value_parser = duration)]
        wait_timeout: Duration,
    },
    /// Show and steer how nodes follow their channels
    #[command(subcommand)]
    Follow(Follow),
    /// Inspect the node's daemon
    #[command(subcommand)]
    Inspect(Inspect),
    /// Collect diagnostics in one file: versions, services, logs, statistics, resources
    ///
    /// There are no secrets in it, but for an administrator the URL of the machine config: use a certificate with the role os:reader.
    ///
    /// Parts that cannot be read are named on standard error and in the file, which is written in any case; of several nodes, those that are away
    /// as well, and the exit code tells of them.
    Support {
        /// Output file (tar.gz) [default: support.tar.gz]
        #[arg(
            short = 'O',
            long,
            alias = "output-file",
            value_name = "FILE",
            default_value = "support.tar.gz",
            hide_default_value = true
        )]
        file: PathBuf,
        /// Replace an existing file
        #[arg(short, long)]
        force: bool,
    },
    /// Set and delete values in the node's META store
    #[command(subcommand)]
    Meta(Meta),
    /// Make client configurations
    #[command(subcommand)]
    Config(Config),
    /// Write manual pages, one per command
    Man {
        /// Output directory
        #[arg(long, value_name = "DIR", default_value = ".")]
        output_dir: PathBuf,
    },
    /// Print completions for a shell
    Completion {
        /// Shell
        shell: Shell,
    },
}
