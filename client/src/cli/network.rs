//! Sockets and packets.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::durations::duration;
use crate::bpf_filter::BpfFilter;

/// Arguments of `netstat`.
#[derive(Args, Debug)]
pub(crate) struct Netstat {
    /// Show listening and connected sockets
    #[arg(short, long)]
    pub(crate) all: bool,
    /// Show only listening sockets
    #[arg(short, long, conflicts_with = "all")]
    pub(crate) listening: bool,
    /// Show the process of each socket
    #[arg(short, long)]
    pub(crate) programs: bool,
    /// Show TCP sockets
    #[arg(short, long)]
    pub(crate) tcp: bool,
    /// Show UDP sockets
    #[arg(short, long)]
    pub(crate) udp: bool,
    /// Show raw sockets
    #[arg(short = 'w', long)]
    pub(crate) raw: bool,
    /// Show only IPv4
    #[arg(short = '4', long)]
    pub(crate) ipv4: bool,
    /// Show only IPv6
    #[arg(short = '6', long)]
    pub(crate) ipv6: bool,
    /// Show sockets of all network namespaces, not only the host's
    #[arg(long)]
    pub(crate) all_namespaces: bool,
}

/// Arguments of `pcap`.
#[derive(Args, Debug)]
pub(crate) struct Pcap {
    /// Link
    #[arg(short, long, value_name = "LINK", default_value = "eth0")]
    pub(crate) interface: String,
    /// Output file; - is standard output
    #[arg(
        short = 'O',
        long,
        alias = "output-file",
        value_name = "FILE",
        default_value = "-"
    )]
    pub(crate) file: PathBuf,
    /// Replace an existing file
    #[arg(short, long)]
    pub(crate) force: bool,
    /// Duration: seconds, or a number with a unit (90s, 30m, 1h) [default: until ^C]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) duration: Option<Duration>,
    /// Promiscuous mode: also capture packets for other machines
    #[arg(long)]
    pub(crate) promiscuous: bool,
    /// Bytes to keep of each packet
    #[arg(short, long, value_name = "BYTES", default_value_t = 65_535)]
    pub(crate) snaplen: u32,
    /// Capture only packets that pass this BPF program, as printed by `tcpdump -dd`
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) bpf_filter: Option<BpfFilter>,
}
