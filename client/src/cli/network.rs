//! Sockets and packets.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::durations::duration;
use crate::bpf_filter::BpfFilter;

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
