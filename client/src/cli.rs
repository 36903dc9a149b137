//! What can be typed.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::bpf_filter::BpfFilter;
use crate::exit::EXIT_CODES;
use crate::output::Output;
use crate::talos_version::TalosVersion;

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
    /// Where to connect instead of the context's endpoints
    #[arg(
        short,
        long,
        value_name = "HOST[:PORT]",
        value_delimiter = ',',
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
}

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

/// What `wipe` erases.
#[derive(Subcommand, Debug)]
pub(crate) enum Wipe {
    /// Erase disks or partitions that the node does not use; its own disk is erased by `reset`
    Disk {
        /// Names of the devices, such as vdb or vdb1
        #[arg(required = true, value_name = "DEVICE")]
        devices: Vec<String>,
        /// How
        #[arg(long, value_enum, ignore_case = true, default_value_t)]
        method: WipeMethod,
        /// Take partitions out of their disk's table as well
        #[arg(long)]
        drop_partition: bool,
    },
}

/// How a device is erased.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum WipeMethod {
    /// What partition tables and filesystems are known by; the rest can be read still
    #[default]
    Fast,
    /// Every byte becomes zero
    Zeroes,
}

/// Arguments of `get`.
#[derive(Args, Debug)]
pub(crate) struct Get {
    /// Type of the resources, by any of its names
    #[arg(value_name = "TYPE")]
    pub(crate) kind: String,
    /// The one with this id; all of the type if absent
    pub(crate) id: Option<String>,
    /// Where to look [default: where resources of the type are]
    #[arg(long, value_name = "NAME")]
    pub(crate) namespace: Option<String>,
    /// Go on with what changes
    #[arg(short, long)]
    pub(crate) watch: bool,
}

/// Arguments of `list`.
#[derive(Args, Debug)]
pub(crate) struct List {
    /// Absolute path
    #[arg(default_value = "/")]
    pub(crate) path: String,
    /// Mode, owner, size and time too
    #[arg(short, long)]
    pub(crate) long: bool,
    /// What is below, too
    #[arg(short, long)]
    pub(crate) recurse: bool,
    /// So many levels of what is below
    #[arg(short, long, value_name = "LEVELS")]
    pub(crate) depth: Option<u16>,
    /// Only files of these types
    #[arg(
        short = 't',
        long = "type",
        value_enum,
        value_name = "TYPE",
        value_delimiter = ','
    )]
    pub(crate) types: Vec<FileType>,
}

/// Types of files.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum FileType {
    /// Regular files
    F,
    /// Directories
    D,
    /// Symbolic links
    L,
}

/// Arguments of `usage`.
#[derive(Args, Debug)]
pub(crate) struct Usage {
    /// Absolute paths
    #[arg(required = true)]
    pub(crate) paths: Vec<String>,
    /// Files too, not only directories
    #[arg(short, long)]
    pub(crate) all: bool,
    /// So many levels below each path have lines of their own
    #[arg(short, long, value_name = "LEVELS", default_value_t = 0)]
    pub(crate) depth: u16,
    /// Leave out what is smaller, in bytes; what is larger if negative
    #[arg(
        short,
        long,
        value_name = "BYTES",
        default_value_t = 0,
        allow_negative_numbers = true
    )]
    pub(crate) threshold: i64,
}

/// What processes are sorted by.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum ProcessOrder {
    /// Resident memory
    #[default]
    Rss,
    /// Processor time
    Cpu,
}

/// Arguments of `netstat`.
#[derive(Args, Debug)]
pub(crate) struct Netstat {
    /// Sockets that wait for somebody, too
    #[arg(short, long)]
    pub(crate) all: bool,
    /// Only those
    #[arg(short, long, conflicts_with = "all")]
    pub(crate) listening: bool,
    /// Whose they are
    #[arg(short, long)]
    pub(crate) programs: bool,
    /// TCP
    #[arg(short, long)]
    pub(crate) tcp: bool,
    /// UDP
    #[arg(short, long)]
    pub(crate) udp: bool,
    /// Raw sockets
    #[arg(short = 'w', long)]
    pub(crate) raw: bool,
    /// IPv4 only
    #[arg(short = '4', long)]
    pub(crate) ipv4: bool,
    /// IPv6 only
    #[arg(short = '6', long)]
    pub(crate) ipv6: bool,
    /// Every network namespace, not only the node's own
    #[arg(long)]
    pub(crate) all_namespaces: bool,
}

/// Arguments of `pcap`.
#[derive(Args, Debug)]
pub(crate) struct Pcap {
    /// The link
    #[arg(short, long, value_name = "LINK", default_value = "eth0")]
    pub(crate) interface: String,
    /// File for the packets; - is standard output
    #[arg(short = 'O', long, value_name = "FILE", default_value = "-")]
    pub(crate) file: PathBuf,
    /// Replace an existing file
    #[arg(long)]
    pub(crate) force: bool,
    /// How long: seconds, or with a unit (90s, 30m, 1h) [default: until ^C]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) duration: Option<Duration>,
    /// Packets for others too, where they reach the link
    #[arg(long)]
    pub(crate) promiscuous: bool,
    /// Bytes to keep of each packet
    #[arg(short, long, value_name = "BYTES", default_value_t = 65_535)]
    pub(crate) snaplen: u32,
    /// Only packets that this program lets through: what `tcpdump -dd` prints
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) bpf_filter: Option<BpfFilter>,
}

/// What to do with images.
#[derive(Debug, Subcommand)]
pub(crate) enum Image {
    /// List images
    #[command(visible_alias = "ls")]
    List,
    /// Bring an image to the node
    Pull {
        /// The image
        image: String,
    },
    /// Remove an image that no container needs
    #[command(visible_alias = "rm")]
    Remove {
        /// The image
        image: String,
    },
}

/// What to look into.
#[derive(Clone, Copy, Debug, Subcommand)]
pub(crate) enum Inspect {
    /// Show which parts of the daemon depend on which
    Dependencies,
}

/// What to do with values.
#[derive(Debug, Subcommand)]
pub(crate) enum Meta {
    /// Keep a value under a key
    Write {
        /// The key: a number, or in hexadecimal with 0x
        #[arg(value_parser = meta_key)]
        key: u8,
        /// The value
        value: String,
    },
    /// Remove the value under a key
    Delete {
        /// The key: a number, or in hexadecimal with 0x
        #[arg(value_parser = meta_key)]
        key: u8,
    },
}

/// Client configurations.
#[derive(Debug, Subcommand)]
pub(crate) enum Config {
    /// Have the node's authority make one
    New {
        /// File for it; - is standard output
        #[arg(default_value = "talosconfig")]
        file: PathBuf,
        /// What the new client may do
        #[arg(
            long,
            value_name = "ROLE",
            value_delimiter = ',',
            default_value = "os:admin"
        )]
        roles: Vec<String>,
        /// How long its certificate is good for: seconds, or with a unit (12h)
        #[arg(long, value_name = "TIME", default_value = "8760h", value_parser = duration)]
        crt_ttl: Duration,
    },
}

/// What can be made.
#[derive(Debug, Subcommand)]
pub(crate) enum Gen {
    /// Make an authority, a machine config and a client configuration
    Config(GenConfig),
    /// Make the secrets of a fleet: what all its machine configs share
    Secrets(GenSecrets),
}

/// Arguments of `gen secrets`.
#[derive(Args, Debug)]
pub(crate) struct GenSecrets {
    /// File for them; - is standard output
    #[arg(long, value_name = "FILE", default_value = "secrets.yaml")]
    pub(crate) output_file: PathBuf,
    /// Take them from the machine config of a control plane node; what it lacks is made anew
    #[arg(long, value_name = "FILE")]
    pub(crate) from_controlplane_config: Option<PathBuf>,
    /// Take those of a cluster from the PKI directory of a kubeadm control plane node, such as /etc/kubernetes/pki; the rest is made anew
    #[arg(
        short = 'p',
        long,
        value_name = "DIR",
        conflicts_with = "from_controlplane_config"
    )]
    pub(crate) from_kubernetes_pki: Option<PathBuf>,
    /// Token with which nodes join that cluster, as `kubeadm token create` prints it [default: a new one, which the cluster does not know]
    #[arg(
        short = 't',
        long,
        value_name = "TOKEN",
        requires = "from_kubernetes_pki"
    )]
    pub(crate) kubernetes_bootstrap_token: Option<String>,
    /// Version of Talos whose file is written, v1.0 to v1.14 [default: the newest]
    #[arg(long, value_name = "VERSION")]
    pub(crate) talos_version: Option<TalosVersion>,
    /// Replace an existing file
    #[arg(short, long)]
    pub(crate) force: bool,
}

/// Arguments of `gen config`.
#[derive(Args, Debug)]
pub(crate) struct GenConfig {
    /// Name of the context in the client configuration
    pub(crate) name: String,
    /// Where clients connect to: host or host:port
    pub(crate) endpoint: String,
    /// Secrets of a fleet that the node is to belong to, as `gen secrets` writes them [default: new ones]
    #[arg(long, value_name = "FILE")]
    pub(crate) with_secrets: Option<PathBuf>,
    /// Disk that the node may own
    #[arg(long, value_name = "DEVICE")]
    pub(crate) install_disk: Option<String>,
    /// Hostname [default: a stable one that the node makes up]
    #[arg(long, value_name = "NAME")]
    pub(crate) hostname: Option<String>,
    /// Further names and addresses of the node's certificate
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) additional_sans: Vec<String>,
    /// Piece of machine config to lay over it, or JSON patch, or @FILE with one; any number of them
    #[arg(long = "config-patch", value_name = "PATCH")]
    pub(crate) patches: Vec<String>,
    /// Directory for machine.yaml and talosconfig
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(crate) output_dir: PathBuf,
    /// Replace existing files
    #[arg(long)]
    pub(crate) force: bool,
}

/// What to do with a service.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum ServiceAction {
    /// Show it
    Status,
    /// Start it
    Start,
    /// Stop it
    Stop,
    /// Stop and start it
    Restart,
}

/// Arguments of `upgrade`.
#[derive(Args, Debug)]
pub(crate) struct Upgrade {
    /// Installer image
    #[arg(short, long, value_name = "REFERENCE")]
    pub(crate) image: String,
    /// Only prepare it: the next boot tries it, whatever brings that about
    #[arg(long)]
    pub(crate) stage: bool,
    /// Only prepare it: a reboot starts it, without the kernel where kernel and init are the same
    #[arg(long, conflicts_with_all = ["stage", "force", "reboot_mode", "no_wait"])]
    pub(crate) no_reboot: bool,
    /// Only tell what it would do, and to which containers; nothing changes
    #[arg(long, conflicts_with_all = ["stage", "no_reboot", "no_wait"])]
    pub(crate) dry_run: bool,
    /// Even if the node advises against it
    #[arg(long)]
    pub(crate) force: bool,
    /// How the new version comes to run
    #[arg(short = 'm', long, value_enum, default_value_t)]
    pub(crate) reboot_mode: UpgradeMode,
    #[command(flatten)]
    pub(crate) wait: Wait,
}

/// How a new version comes to run.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum UpgradeMode {
    /// Without a reboot where kernel and init are the same
    #[default]
    Default,
    /// By a reboot in any case
    Powercycle,
    /// By a reboot past the firmware in any case; through the firmware where the kernel does not allow that
    Kexec,
}

/// Whether to see it through.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Wait {
    /// See it through to the end (the default)
    #[arg(long, overrides_with = "no_wait")]
    wait: bool,
    /// Return as soon as the node has accepted it
    #[arg(long, overrides_with = "wait")]
    no_wait: bool,
    /// Longest wait: seconds, or with a unit (90s, 30m, 1h)
    #[arg(long, value_name = "TIME", default_value = "30m", value_parser = duration)]
    pub(crate) timeout: Duration,
}

impl Wait {
    /// Whether to wait.
    pub(crate) fn wanted(&self) -> bool {
        self.wait || !self.no_wait
    }
}

/// How to reboot.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum RebootMode {
    /// The quickest way that the node has
    #[default]
    Default,
    /// Through the firmware
    Powercycle,
    /// At once, nothing is stopped first
    Force,
    /// Past firmware and boot loader, where the kernel allows it
    Kexec,
}

/// Arguments of `apply-config`.
#[derive(Args, Debug)]
pub(crate) struct ApplyConfig {
    /// Machine config
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Piece of machine config to lay over it, or JSON patch, or @FILE with one; any number of them
    #[arg(short = 'p', long = "config-patch", value_name = "PATCH")]
    pub(crate) patches: Vec<String>,
    #[command(flatten)]
    pub(crate) how: ApplyHow,
}

/// Arguments of `validate`.
#[derive(Args, Debug)]
pub(crate) struct Validate {
    /// Machine config; - is standard input
    #[arg(short, long, value_name = "FILE")]
    pub(crate) config: PathBuf,
    /// Machine that the config is for [default: any]
    #[arg(short, long, value_enum, ignore_case = true)]
    pub(crate) mode: Option<MachineMode>,
    /// Take warnings for errors
    #[arg(long)]
    pub(crate) strict: bool,
}

/// What kind of machine a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MachineMode {
    /// A machine with a disk to install to
    Metal,
    /// A virtual machine of a cloud, whose disk is its image
    Cloud,
    /// A container: there is no such node, Instar starts from its own kernel
    Container,
}

/// How a machine config is applied.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct ApplyHow {
    /// When it takes effect
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) mode: ApplyMode,
    /// Only show what would change
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// With the mode try: after which the config is taken back
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = duration)]
    pub(crate) timeout: Duration,
}

/// Which machine config of a node.
#[derive(Args, Clone, Debug)]
pub(crate) struct WhichConfig {
    /// What to change: the machine config is all that can be
    #[arg(value_name = "TYPE", value_enum, ignore_case = true)]
    _kind: WrittenKind,
    /// The one in force (v1alpha1), or the one that the next boot finds (persistent)
    #[arg(default_value = "v1alpha1")]
    pub(crate) id: String,
}

/// Resources that are not only read.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum WrittenKind {
    /// The machine config
    #[value(name = "mc", aliases = ["machineconfig", "machineconfigs", "machineconfigs.config.talos.dev"])]
    MachineConfig,
}

/// Arguments of `edit`.
#[derive(Args, Debug)]
pub(crate) struct Edit {
    #[command(flatten)]
    pub(crate) which: WhichConfig,
    #[command(flatten)]
    pub(crate) how: ApplyHow,
}

/// Arguments of `patch`.
#[derive(Args, Debug)]
pub(crate) struct Patch {
    #[command(flatten)]
    pub(crate) which: WhichConfig,
    /// Piece of machine config, or JSON patch, or @FILE with one; any number of them
    #[arg(
        short,
        long = "patch",
        value_name = "PATCH",
        required_unless_present = "patch_file"
    )]
    pub(crate) patches: Vec<String>,
    /// File with a piece of machine config, or a JSON patch
    #[arg(long, value_name = "FILE")]
    pub(crate) patch_file: Option<String>,
    #[command(flatten)]
    pub(crate) how: ApplyHow,
}

/// Arguments of `reset`.
#[derive(Args, Debug)]
pub(crate) struct Reset {
    /// Partitions to erase: EFI, STATE, EPHEMERAL [default: the whole disk, boot assets included]
    #[arg(long, value_name = "LABEL", value_delimiter = ',')]
    pub(crate) system_labels_to_wipe: Vec<String>,
    /// Boot again afterwards instead of powering off
    #[arg(long)]
    pub(crate) reboot: bool,
    /// Stop services in order first (they are stopped in any case)
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub(crate) graceful: bool,
    #[command(flatten)]
    pub(crate) wait: Wait,
}

/// When a machine config takes effect.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum ApplyMode {
    /// As the node thinks best
    #[default]
    Auto,
    /// Now, without a reboot
    NoReboot,
    /// By a reboot now
    Reboot,
    /// By whichever reboot comes next
    Staged,
    /// Now, and taken back after --timeout unless it is applied again
    Try,
}

/// 10 or 0x0a.
fn meta_key(text: &str) -> Result<u8, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u8::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| "must be 0 to 255, or 0x00 to 0xff".to_owned())
}

/// Seconds, or a number with s, m or h.
fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        unit => return Err(format!("unknown unit {unit:?}; use s, m or h")),
    };
    let number: u64 = digits.parse().map_err(|_| "not a number".to_owned())?;
    match number.checked_mul(unit) {
        Some(seconds @ 1..=31_536_000) => Ok(Duration::from_secs(seconds)),
        _ => Err("must be between a second and a year".to_owned()),
    }
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

    #[test]
    fn waiting_is_the_default_and_the_last_word_counts() {
        let wanted = |arguments: &[&str]| {
            let all = ["instarctl", "reboot"].iter().chain(arguments);
            match Cli::try_parse_from(all).unwrap().command {
                Command::Reboot { wait, .. } => wait.wanted(),
                _ => false,
            }
        };
        assert!(wanted(&[]));
        assert!(wanted(&["--wait"]));
        assert!(!wanted(&["--no-wait"]));
        assert!(wanted(&["--no-wait", "--wait"]));
        assert!(!wanted(&["--wait", "--no-wait"]));
    }

    #[test]
    fn keys_are_one_byte() {
        assert_eq!(meta_key("10"), Ok(10));
        assert_eq!(meta_key("0x0a"), Ok(10));
        for bad in ["", "256", "-1", "0x100", "a"] {
            assert!(meta_key(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn durations_have_units() {
        assert_eq!(duration("90"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("30m"), Ok(Duration::from_secs(1800)));
        assert_eq!(duration("1h"), Ok(Duration::from_secs(3600)));
        for bad in ["", "m", "0", "-1", "5d", "1.5h", "99999999999999999999h"] {
            assert!(duration(bad).is_err(), "{bad:?}");
        }
    }
}
