//! Packets on a node's links: by `instarctl pcap` and by plain calls.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, ensure};
use instar_api::common::Data;
use instar_api::machine::PacketCaptureRequest;
use instar_api::time::TimeRequest;
use instar_api::time::time_service_client::TimeServiceClient;
use instar_pki::Role;
use instar_tests::{
    API_PORT, ImageUnderTest, Instarctl, Machine, Node, Outcome, Scratch, Terminal, Test, chapters,
    tests,
};
use tonic::{Code, Request, Status, Streaming};

use crate::PATIENCE;

/// `tcpdump -dd -y EN10MB 'tcp port 50000'`
const API_TRAFFIC: &str = "\
{ 0x28, 0, 0, 0x0000000c },
{ 0x15, 0, 6, 0x000086dd },
{ 0x30, 0, 0, 0x00000014 },
{ 0x15, 0, 15, 0x00000006 },
{ 0x28, 0, 0, 0x00000036 },
{ 0x15, 12, 0, 0x0000c350 },
{ 0x28, 0, 0, 0x00000038 },
{ 0x15, 10, 11, 0x0000c350 },
{ 0x15, 0, 10, 0x00000800 },
{ 0x30, 0, 0, 0x00000017 },
{ 0x15, 0, 8, 0x00000006 },
{ 0x28, 0, 0, 0x00000014 },
{ 0x45, 6, 0, 0x00001fff },
{ 0xb1, 0, 0, 0x0000000e },
{ 0x48, 0, 0, 0x0000000e },
{ 0x15, 2, 0, 0x0000c350 },
{ 0x48, 0, 0, 0x00000010 },
{ 0x15, 0, 1, 0x0000c350 },
{ 0x6, 0, 0, 0x00040000 },
{ 0x6, 0, 0, 0x00000000 },
";
/// Enough for the headers, and little of the packets' content.
const SNAP_LEN: usize = 96;
/// The duration of captures that end by themselves. It also is the limit on the beginning of the node's answer.
const FOR_A_WHILE: &str = "5s";
/// Limit on the captures of a node at a time.
const CAPTURES: usize = 4;
/// Protocol numbers of IP, and a port of UDP.
const TCP: u8 = 6;
const UDP: u8 = 17;
const NTP_PORT: u16 = 123;
/// LINKTYPE_ETHERNET
const ETHERNET: u32 = 1;
/// The host's address in the guest.
const HOST: &str = "10.0.2.2";

pub(crate) fn tests() -> Vec<Test> {
    tests![a_capture_is_a_file_of_what_passes_a_link]
}

/// One boot serves all captures.
async fn a_capture_is_a_file_of_what_passes_a_link(scratch: Scratch) -> Outcome {
    let plan = Node::plan(&scratch, &ImageUnderTest::first()?);
    let node = plan.boot().await?;
    let instarctl = Instarctl::of(&node, &scratch)?;
    chapters![
        only_what_the_filter_lets_through(&node, &instarctl, &scratch),
        a_loopback_is_seen_once(&node, &instarctl, &scratch),
        goes_to_whoever_reads_it_and_to_no_terminal(&node, &instarctl),
        is_whole_when_it_is_interrupted(&node, &instarctl, &scratch),
        what_cannot_be_is_refused(&instarctl, &scratch),
        is_for_operators_and_not_for_readers(&node, &instarctl, &scratch),
        no_more_than_are_allowed_are_begun(&node),
        readers_that_go_leave_nothing_behind(&node),
    ]
    .await
}

/// Captures while the node's links carry traffic, until the file has what is meant, and interrupts the capture then: how
/// much a node does in a given time depends on the host.
async fn capture(
    node: &Node,
    instarctl: &Instarctl,
    arguments: &[&str],
    file: &Path,
    has_what_is_meant: impl Fn(&Captured) -> Outcome,
) -> anyhow::Result<Captured> {
    let mut terminal = instarctl.on_terminal(arguments, &[], (80, 24))?;
    node.wait_until("the packets are in the file", PATIENCE, async || {
        be_busy(node).await?;
        has_what_is_meant(&Captured::read(file)?)
    })
    .await?;
    interrupt(node, &mut terminal, file).await
}

/// Interrupts a capture; returns its packets, all of which it has to count.
async fn interrupt(node: &Node, terminal: &mut Terminal, file: &Path) -> anyhow::Result<Captured> {
    terminal.press("\u{3}")?;
    let code = ends(node, terminal).await?;
    ensure!(code == 0, "{code}: {}", terminal.screen());
    let captured = Captured::read(file)?;
    terminal.shows(&format!("wrote {} packet", captured.packets.len()))?;
    Ok(captured)
}

/// Makes the node send packets on each of its links.
async fn be_busy(node: &Node) -> Outcome {
    // Opens a connection of its own.
    let mut time = TimeServiceClient::new(node.channel().await?);
    for server in [HOST, "127.0.0.1"] {
        let server = server.to_owned();
        // No time server is at either address: the query alone makes packets. A call that is given up early may make none.
        let _ = time.time_check(TimeRequest { server }).await;
    }
    Ok(())
}

async fn only_what_the_filter_lets_through(
    node: &Node,
    instarctl: &Instarctl,
    scratch: &Scratch,
) -> Outcome {
    let file = scratch.join("eth0.pcap");
    let (path, snap_len) = (file.display().to_string(), SNAP_LEN.to_string());
    let limits = ["--file", &path, "--snaplen", &snap_len];
    let arguments = [&API_PACKETS[..], &limits].concat();
    let meant = packets_are_cut_and_open_a_connection;
    let captured = capture(node, instarctl, &arguments, &file, meant).await?;
    ensure!(captured.link_type == ETHERNET, "{captured:?}");
    each_packet_is_of_the_api(&captured)?;
    packets_have_the_hosts_time(&captured)?;
    a_file_is_not_overwritten(instarctl, &arguments).await
}

/// The arguments of a capture with the filter [`API_TRAFFIC`].
const API_PACKETS: [&str; 6] = [
    "pcap",
    "--interface",
    "eth0",
    "--promiscuous",
    "--bpf-filter",
    API_TRAFFIC,
];

fn each_packet_is_of_the_api(captured: &Captured) -> Outcome {
    for packet in &captured.packets {
        let ends = packet.ends();
        let is_meant =
            |(protocol, from, to)| protocol == TCP && (from == API_PORT || to == API_PORT);
        ensure!(
            ends.is_some_and(is_meant),
            "{packet:?} is of something else: {ends:?}"
        );
        ensure!(packet.bytes.len() <= SNAP_LEN, "{packet:?}");
    }
    Ok(())
}

fn packets_are_cut_and_open_a_connection(captured: &Captured) -> Outcome {
    let packets = &captured.packets;
    let is_cut = |packet: &Packet| packet.original > SNAP_LEN;
    let number = packets.len();
    ensure!(packets.iter().any(is_cut), "none of {number} was longer");
    ensure!(
        packets.iter().any(Packet::opens_a_connection),
        "no connection was opened among {} packets",
        packets.len()
    );
    Ok(())
}

/// Checks the packets' times against the node's clock, which is the host's.
fn packets_have_the_hosts_time(captured: &Captured) -> Outcome {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    for packet in &captured.packets {
        let time = u64::from(packet.seconds);
        ensure!(time.abs_diff(now) < 600, "{time} is not now");
    }
    Ok(())
}

async fn a_file_is_not_overwritten(instarctl: &Instarctl, arguments: &[&str]) -> Outcome {
    let again = [arguments, &["--duration", FOR_A_WHILE]].concat();
    let again = instarctl.run(&again).await?;
    ensure!(
        again.code == Some(5) && again.complaint.contains("--force"),
        "{again:?}"
    );
    Ok(())
}

async fn a_loopback_is_seen_once(node: &Node, instarctl: &Instarctl, scratch: &Scratch) -> Outcome {
    let file = scratch.join("lo.pcap");
    let path = file.display().to_string();
    let arguments = ["tcpdump", "-i", "lo", "-O", &path];
    let captured = capture(node, instarctl, &arguments, &file, has_a_question).await?;
    ensure!(captured.link_type == ETHERNET, "{captured:?}");
    let mut seen = BTreeSet::new();
    for question in captured.questions() {
        let is_first = seen.insert(&question.bytes);
        ensure!(is_first, "{question:?} is there twice");
    }
    Ok(())
}

fn has_a_question(captured: &Captured) -> Outcome {
    let number = captured.packets.len();
    let question = captured.questions().next();
    question
        .map(drop)
        .with_context(|| format!("no question among {number} packets"))
}

async fn goes_to_whoever_reads_it_and_to_no_terminal(
    node: &Node,
    instarctl: &Instarctl,
) -> Outcome {
    let said = instarctl
        .run(&["pcap", "-i", "lo", "--duration", FOR_A_WHILE])
        .await?;
    // The version, in a header with bytes that are not text.
    ensure!(
        said.code == Some(0) && said.output.contains("\u{2}\0\u{4}\0") && said.complaint.is_empty(),
        "{said:?}"
    );
    let mut terminal = instarctl.on_terminal(&["pcap"], &[], (80, 24))?;
    let code = ends(node, &mut terminal).await?;
    ensure!(code == 2, "{code}");
    terminal.shows("nothing for a terminal")
}

async fn is_whole_when_it_is_interrupted(
    node: &Node,
    instarctl: &Instarctl,
    scratch: &Scratch,
) -> Outcome {
    let file = scratch.join("interrupted.pcap");
    let path = file.display().to_string();
    // The capture sees its own packets: without the limit on their length they would grow and grow.
    let arguments = ["pcap", "-O", &path, "-s", &SNAP_LEN.to_string()];
    let mut terminal = instarctl.on_terminal(&arguments, &[], (80, 24))?;
    node.wait_until("packets are in the file", PATIENCE, async || {
        let captured = Captured::read(&file)?;
        ensure!(captured.packets.len() > 3, "{captured:?}");
        Ok(())
    })
    .await?;
    interrupt(node, &mut terminal, &file).await.map(drop)
}

/// Waits for a program on a terminal to end; returns its exit status.
async fn ends(node: &Node, terminal: &mut Terminal) -> anyhow::Result<u32> {
    let terminal = RefCell::new(terminal);
    node.wait_until("it ends", PATIENCE, async || terminal.borrow_mut().ended())
        .await
}

async fn what_cannot_be_is_refused(instarctl: &Instarctl, scratch: &Scratch) -> Outcome {
    let file = scratch.join("refused.pcap");
    let path = file.display().to_string();
    for (arguments, code, words) in REFUSED {
        let pcap = [&["pcap", "--file", &path], &arguments[..]].concat();
        let said = instarctl.run(&pcap).await?;
        ensure!(
            said.code == Some(code) && words.iter().all(|words| said.complaint.contains(words)),
            "{arguments:?}: {said:?}"
        );
        ensure!(!file.exists(), "{arguments:?} left a file");
    }
    Ok(())
}

/// Arguments, the exit code, and words of the message.
const REFUSED: [([&str; 2], i32, &[&str]); 4] = [
    (["--interface", "eth7"], 1, &["\"eth7\"", "eth0", "lo"]),
    (["--snaplen", "262145"], 5, &["up to 262144"]),
    // A filter program that never returns.
    (
        ["--bpf-filter", "{ 0x0, 0, 0, 0x00000000 },"],
        5,
        &["the kernel refuses it"],
    ),
    (["--bpf-filter", "tcp port 80"], 2, &["tcpdump -dd"]),
];

async fn is_for_operators_and_not_for_readers(
    node: &Node,
    instarctl: &Instarctl,
    scratch: &Scratch,
) -> Outcome {
    for (role, code) in [(Role::Reader, 4), (Role::Operator, 0)] {
        let identity = node.identity().with_role(role.clone())?;
        let config = identity.client_config(&node.endpoint()?)?;
        let config = scratch.write(&format!("{role}.yaml"), config)?;
        let said = instarctl
            .with_config(config)
            .run(&["pcap", "-i", "lo", "--duration", FOR_A_WHILE])
            .await?;
        ensure!(said.code == Some(code), "{role}: {said:?}");
    }
    Ok(())
}

async fn no_more_than_are_allowed_are_begun(node: &Node) -> Outcome {
    let mut machine = node.machine().await?;
    let mut under_way = Vec::new();
    for _ in 0..CAPTURES {
        let mut stream = start(&mut machine, None).await?;
        // The header comes at once, whether there are packets or not.
        let header = stream.message().await?.context("no header")?;
        Captured::parse(&header.bytes)?;
        under_way.push(stream);
    }
    let refused = start(&mut machine, None).await.err();
    let code = refused.as_ref().map(Status::code);
    ensure!(code == Some(Code::ResourceExhausted), "{refused:?}");
    Ok(())
}

/// Readers that leave free their places. The callers do nothing for that: their calls end by the deadline, and are read
/// to the end.
async fn readers_that_go_leave_nothing_behind(node: &Node) -> Outcome {
    for _ in 0..=CAPTURES {
        let stream = node.wait_until("there is a place again", PATIENCE, async || {
            let lasts = Duration::from_millis(500);
            Ok(start(&mut node.machine().await?, Some(lasts)).await?)
        });
        let end = end_of(stream.await?).await;
        ensure!(
            end.as_ref().map(Status::code) == Some(Code::DeadlineExceeded),
            "{end:?}"
        );
    }
    Ok(())
}

/// Returns the error that a stream ends with, if any.
async fn end_of(mut stream: Streaming<Data>) -> Option<Status> {
    loop {
        match stream.message().await {
            Ok(Some(_)) => {}
            Ok(None) => return None,
            Err(status) => return Some(status),
        }
    }
}

async fn start(machine: &mut Machine, lasts: Option<Duration>) -> Result<Streaming<Data>, Status> {
    let mut request = Request::new(PacketCaptureRequest {
        interface: "lo".to_owned(),
        ..PacketCaptureRequest::default()
    });
    if let Some(lasts) = lasts {
        request.set_timeout(lasts);
    }
    Ok(machine.packet_capture(request).await?.into_inner())
}

/// A pcap file, as its format has it: a header of 24 bytes, then records with headers of 16.
#[derive(Debug)]
struct Captured {
    link_type: u32,
    packets: Vec<Packet>,
}

/// A record of a pcap file.
#[derive(Debug)]
struct Packet {
    seconds: u32,
    original: usize,
    bytes: Vec<u8>,
}

impl Captured {
    fn read(file: &Path) -> anyhow::Result<Self> {
        Self::parse(&std::fs::read(file)?)
    }

    /// Parses a file; fails unless it is whole.
    fn parse(file: &[u8]) -> anyhow::Result<Self> {
        let (header, mut rest) = file.split_at_checked(24).context("no header")?;
        // The first number says that times are in microseconds; then the version, 2.4.
        let version = [0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0];
        ensure!(header[..8] == version, "{header:?}");
        let mut packets = Vec::new();
        while !rest.is_empty() {
            let (packet, after) = Packet::parse(rest)?;
            packets.push(packet);
            rest = after;
        }
        let link_type = number(&header[20..])?;
        Ok(Self { link_type, packets })
    }

    /// The packets to a time server.
    fn questions(&self) -> impl Iterator<Item = &Packet> {
        let packets = self.packets.iter();
        packets.filter(|packet| matches!(packet.ends(), Some((UDP, _, NTP_PORT))))
    }
}

fn number(bytes: &[u8]) -> anyhow::Result<u32> {
    Ok(u32::from_le_bytes(bytes.try_into()?))
}

impl Packet {
    /// Parses the first of these records; returns it and the rest.
    fn parse(records: &[u8]) -> anyhow::Result<(Self, &[u8])> {
        let (record, after) = records.split_at_checked(16).context("a broken record")?;
        let length = number(&record[8..12])? as usize;
        let (bytes, after) = after.split_at_checked(length).context("a broken packet")?;
        let original = number(&record[12..])? as usize;
        let microseconds = number(&record[4..8])?;
        let is_sound = length <= original && microseconds < 1_000_000;
        ensure!(is_sound, "{record:?}");
        let packet = Self {
            seconds: number(&record[..4])?,
            original,
            bytes: bytes.to_vec(),
        };
        Ok((packet, after))
    }

    /// Returns protocol and payload of an Ethernet frame with IPv4, or IPv6 without extension headers.
    fn payload(&self) -> Option<(u8, &[u8])> {
        let packet = self.bytes.get(14..)?;
        match self.bytes.get(12..14)? {
            [0x08, 0x00] => {
                let words = packet.first()? & 0xf;
                Some((*packet.get(9)?, packet.get(usize::from(words) * 4..)?))
            }
            [0x86, 0xdd] => Some((*packet.get(6)?, packet.get(40..)?)),
            _ => None,
        }
    }

    /// Returns protocol and ports.
    fn ends(&self) -> Option<(u8, u16, u16)> {
        let (protocol, payload) = self.payload()?;
        let [a, b, c, d] = *payload.first_chunk()?;
        let (from, to) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        matches!(protocol, TCP | UDP).then_some((protocol, from, to))
    }

    /// Whether the packet has SYN without ACK.
    fn opens_a_connection(&self) -> bool {
        let flags = self.payload().and_then(|(_, tcp)| tcp.get(13));
        flags.is_some_and(|flags| flags & 0x12 == 0x02)
    }
}
