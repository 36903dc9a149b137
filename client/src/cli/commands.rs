//! All commands.

use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;
use clap_complete::Shell;

use super::client_config::Config;
use super::disks::Wipe;
use super::durations::duration;
use super::files::{List, Usage};
use super::generate::Gen;
use super::images::Image;
use super::inspect::Inspect;
use super::lifecycle::{RebootMode, Reset, Upgrade, Wait};
use super::machine_config::{ApplyConfig, Edit, Patch, Validate};
use super::meta::Meta;
use super::network::{Netstat, Pcap};
use super::processes::ProcessOrder;
use super::resources::Get;
use super::services::ServiceAction;

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Make configuration files
    #[command(subcommand)]
    Gen(Gen),
    /// Show the versions of client and node
    Version,
    /// List services, or look at and control one
    #[command(visible_alias = "services")]
    Service {
        /// The service; all of them if absent
        id: Option<String>,
        /// What to do with it
        #[arg(value_enum, requires = "id")]
        action: Option<ServiceAction>,
    },
    /// Show the log of a service, or list those that have one
    Logs {
        /// The service; their names if absent
        id: Option<String>,
        /// Go on with what comes
        #[arg(short, long, requires = "id")]
        follow: bool,
        /// Only the last lines
        #[arg(long, value_name = "LINES", requires = "id")]
        tail: Option<u32>,
    },
    /// Show the kernel log
    Dmesg {
        /// Go on with what comes
        #[arg(short, long)]
        follow: bool,
        /// Only what comes from now on
        #[arg(long)]
        tail: bool,
    },
    /// Follow what happens on the node
    Events {
        /// Start with the last so many events; -1 is all that the node remembers
        #[arg(long, value_name = "COUNT", allow_negative_numbers = true)]
        tail: Option<i32>,
        /// Only what this actor started
        #[arg(long, value_name = "ID")]
        actor_id: Option<String>,
    },
    /// Upgrade the node
    Upgrade(Upgrade),
    /// Reboot the node
    Reboot {
        /// How
        #[arg(short, long, value_enum, default_value_t)]
        mode: RebootMode,
        #[command(flatten)]
        wait: Wait,
    },
    /// Power the node off
    Shutdown {
        /// Don't ask services first
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        wait: Wait,
    },
    /// Reboot the node into the other version on its disk
    Rollback {
        /// Even to a version below the node's floor
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        wait: Wait,
    },
    /// Erase what the node keeps on its disk, then power it off or boot it again
    Reset(Reset),
    /// Erase disks that the node does not use
    #[command(subcommand)]
    Wipe(Wipe),
    /// Write a file of the node to standard output
    #[command(visible_alias = "cat")]
    Read {
        /// Absolute path
        path: String,
    },
    /// Give the node a machine config
    #[command(visible_alias = "apply")]
    ApplyConfig(ApplyConfig),
    /// Check a machine config without a node
    ///
    /// All that is wrong with it is shown, each problem with its document, line and field, and what this version knows but does not
    /// serve as warnings. Only a node can say more: whether the disk is there, and what `apply-config --dry-run` shows.
    Validate(Validate),
    /// Change the node's machine config in an editor
    ///
    /// The editor is $VISUAL, $EDITOR or vi. What is not changed there, or is left empty, is not applied. What the node does not take is
    /// kept in a file.
    Edit(Edit),
    /// Change parts of the node's machine config
    ///
    /// A patch is a piece of machine config. Maps are merged, lists appended to, other values replaced; `$patch: delete` removes what it
    /// stands in. Documents are matched by kind and name. Or it is a JSON patch (RFC 6902), a list of operations, as JSON or YAML: for the
    /// only document, or the one without a kind. What a patch does not touch stays as it was written, comments too.
    Patch(Patch),
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
    /// Show how much room files of the node take
    #[command(visible_alias = "du")]
    Usage(Usage),
    /// Show what the node's memory is used for
    #[command(visible_alias = "free")]
    Memory {
        /// Every figure of the kernel
        #[arg(short, long)]
        verbose: bool,
    },
    /// List processes
    #[command(visible_alias = "ps")]
    Processes {
        /// What the first one has most of
        #[arg(short, long, value_enum, default_value_t)]
        sort: ProcessOrder,
    },
    /// List mounts and the room on them
    Mounts,
    /// Show the room on filesystems, as each of them says
    #[command(visible_alias = "df")]
    Diskfree,
    /// List sockets
    #[command(visible_alias = "ss")]
    Netstat(Netstat),
    /// Capture packets of a link as a pcap file
    ///
    /// It goes on until --duration is over, the link goes down, or ^C. What it sends is traffic too, and captured again where it goes over
    /// the same link: leave the API's port out, as in
    ///
    ///   instarctl pcap -i eth0 -O eth0.pcap --bpf-filter "$(tcpdump -dd -y EN10MB 'not port 50000')"
    ///
    ///   instarctl pcap -i wg0 --bpf-filter "$(tcpdump -dd -y RAW icmp)" | tcpdump -n -r -
    #[command(visible_alias = "tcpdump", verbatim_doc_comment)]
    Pcap(Pcap),
    /// List containers
    #[command(visible_alias = "c")]
    Containers,
    /// Stop a container and start it again
    Restart {
        /// The container
        id: String,
    },
    /// Show what containers use
    Stats,
    /// List disks
    Disks,
    /// Show the node's clock beside a time server's
    Time {
        /// Another server than the node's own
        #[arg(short, long, value_name = "SERVER")]
        check: Option<String>,
    },
    /// Look at images on the node, bring and remove them
    #[command(subcommand, visible_alias = "images")]
    Image(Image),
    /// Show resources: what the node is, as it says itself; `get rd` lists their types
    Get(Get),
    /// Watch nodes live: what they are, their services, load and logs
    ///
    /// Works on any terminal of 80 x 24 characters, also over a serial line. Keys: q quits; 1, 2, 3 (or F1, F2, F3) show the summary,
    /// load and processes, or the log alone; left and right (or h and l) go to another node; tab and shift-tab to another log; up and
    /// down (or k and j), ^U and ^D, page up and page down (or ^B and ^F), home and end scroll; ^L paints everything anew.
    Dashboard {
        /// How often figures are asked for: seconds, or with a unit
        #[arg(short = 'd', long, value_name = "TIME", default_value = "3s", value_parser = duration)]
        update_interval: Duration,
    },
    /// Wait until the node is healthy
    Health {
        /// Longest wait: seconds, or with a unit (90s, 30m, 1h)
        #[arg(long, value_name = "TIME", default_value = "20m", value_parser = duration)]
        wait_timeout: Duration,
    },
    /// Look into the node's own workings
    #[command(subcommand)]
    Inspect(Inspect),
    /// Collect what may explain a trouble in one file: versions, services, logs, figures, resources; no secrets
    ///
    /// What cannot be had is said on standard error and in the file itself, which is written in any case.
    Support {
        /// File for it (tar.gz) [default: support.tar.gz]
        #[arg(
            short = 'O',
            long,
            value_name = "FILE",
            default_value = "support.tar.gz",
            hide_default_value = true
        )]
        file: PathBuf,
        /// Replace an existing file
        #[arg(long)]
        force: bool,
    },
    /// Leave values with the node
    #[command(subcommand)]
    Meta(Meta),
    /// Make client configurations
    #[command(subcommand)]
    Config(Config),
    /// Write manual pages, one per command
    Man {
        /// Directory for them
        #[arg(long, value_name = "DIR", default_value = ".")]
        output_dir: PathBuf,
    },
    /// Print completions for a shell
    Completion {
        /// The shell
        shell: Shell,
    },
}
