//! Captures of real links, in network namespaces. Needs root and iproute2.
#![allow(clippy::unwrap_used, clippy::panic)]

mod namespace;

use std::fs;
use std::net::UdpSocket;
use std::time::Duration;

use instar_api::machine::{BpfInstruction, PacketCaptureRequest};
use machined::packet_capture::{Capture, CaptureError};
use machined::sys::packet_socket;
use namespace::{block_on, isolated, run};

/// In namespaces of its own, the test leaves the links of this machine as they are.
const NAMESPACES: &[&str] = &["--net", "--mount"];
/// Limit on simultaneous captures.
const CAPTURES: usize = 4;
/// An EtherType for local experiments (IEEE 802), which no other program uses.
const EXPERIMENT: u16 = 0x88b5;

/// A packet: its original length, and the bytes that were kept.
type Packet = (usize, Vec<u8>);

/// Runs the test in namespaces where `lo` is up and sysfs shows the namespace's links.
fn with_loopback(test: &str, body: impl FnOnce()) {
    isolated(test, NAMESPACES, || {
        run("mount", &["-t", "sysfs", "none", "/sys"]);
        run("ip", &["link", "set", "lo", "up"]);
        body();
    });
}

fn capture(link: &str) -> Result<Capture, CaptureError> {
    Capture::start(&PacketCaptureRequest {
        interface: link.to_owned(),
        ..PacketCaptureRequest::default()
    })
}

/// Waits for the first `count` packets.
async fn packets(capture: &mut Capture, count: usize) -> Vec<Packet> {
    let mut file = Vec::new();
    let enough = async {
        loop {
            capture.piece_is_due().await.unwrap();
            file.extend(capture.piece());
            let packets = read(&file);
            if packets.len() >= count {
                return packets;
            }
        }
    };
    let enough = tokio::time::timeout(Duration::from_secs(10), enough).await;
    enough.unwrap_or_else(|_| panic!("{count} packets did not come; what came is {file:?}"))
}

/// Parses the packets of a file, which must be complete.
fn read(file: &[u8]) -> Vec<Packet> {
    let mut rest = &file[24..];
    let mut packets = Vec::new();
    while let Some((record, after)) = rest.split_at_checked(16) {
        let number =
            |at: usize| u32::from_le_bytes(record[at..at + 4].try_into().unwrap()) as usize;
        let (packet, after) = after.split_at(number(8));
        packets.push((number(12), packet.to_vec()));
        rest = after;
    }
    assert!(rest.is_empty());
    packets
}

#[test]
fn a_packet_on_a_loopback_is_there_once_and_as_long_as_wanted() {
    let name = "a_packet_on_a_loopback_is_there_once_and_as_long_as_wanted";
    with_loopback(name, || {
        block_on(async {
            let mut capture = Capture::start(&PacketCaptureRequest {
                interface: "lo".to_owned(),
                snap_len: 60,
                ..PacketCaptureRequest::default()
            })
            .unwrap();
            let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
            let to = receiver.local_addr().unwrap();
            for length in [10, 3000] {
                receiver.send_to(&vec![7; length], to).unwrap();
            }
            let lengths: Vec<_> = packets(&mut capture, 2)
                .await
                .iter()
                .map(|(original, packet)| (*original, packet.len()))
                .collect();
            // The payload follows the headers of Ethernet, IPv4 and UDP.
            let headers = 14 + 20 + 8;
            assert_eq!(
                lengths,
                [(headers + 10, headers + 10), (headers + 3000, 60)]
            );
            assert_eq!(capture.end(), Vec::<Vec<u8>>::new());
        });
    });
}

#[test]
fn only_what_the_filter_wants_comes_and_tags_are_where_they_were() {
    let name = "only_what_the_filter_wants_comes_and_tags_are_where_they_were";
    with_loopback(name, || {
        let pair = [
            "link", "add", "eth0", "type", "veth", "peer", "name", "eth1",
        ];
        run("ip", &pair);
        // Both ends send packets as soon as they are up: IPv6 asks for routers.
        run("ip", &["link", "set", "eth1", "up"]);
        run("ip", &["link", "set", "eth0", "up"]);
        let promiscuous = || run("ip", &["-d", "link", "show", "eth0"]).contains("promiscuity 1");
        let instruction = |op, jf, k| BpfInstruction { op, jt: 0, jf, k };
        // Load the half-word at 12, the EtherType; return the whole packet if it is ours, else nothing.
        let filter = [
            instruction(0x28, 0, 12),
            instruction(0x15, 1, EXPERIMENT.into()),
            instruction(0x06, 0, 0x4_0000),
            instruction(0x06, 0, 0),
        ];
        block_on(async {
            let mut capture = Capture::start(&PacketCaptureRequest {
                interface: "eth0".to_owned(),
                promiscuous: true,
                bpf_filter: filter.to_vec(),
                ..PacketCaptureRequest::default()
            })
            .unwrap();
            assert!(promiscuous());
            let index = fs::read_to_string("/sys/class/net/eth1/ifindex").unwrap();
            let other_end = packet_socket::open().unwrap();
            packet_socket::bind(&other_end, index.trim().parse().unwrap()).unwrap();
            let addresses = [0x02, 0, 0, 0, 0, 1, 0x02, 0, 0, 0, 0, 2];
            let content = [&EXPERIMENT.to_be_bytes()[..], &[9; 50]].concat();
            let plain = [&addresses[..], &content].concat();
            let tagged = [&addresses[..], &[0x81, 0, 0, 5], &content].concat();
            for frame in [&plain, &tagged] {
                rustix::io::write(&other_end, frame).unwrap();
            }
            let expected = [(plain.len(), plain), (tagged.len(), tagged)];
            assert_eq!(packets(&mut capture, 2).await, expected);
            drop(capture);
            assert!(!promiscuous());
        });
    });
}

#[test]
fn there_are_few_at_a_time_and_none_of_a_link_that_is_down() {
    let name = "there_are_few_at_a_time_and_none_of_a_link_that_is_down";
    with_loopback(name, || {
        // The first line is a heading.
        let sockets = || {
            fs::read_to_string("/proc/net/packet")
                .unwrap()
                .lines()
                .count()
                - 1
        };
        block_on(async {
            let mut captures: Vec<_> = (0..CAPTURES).map(|_| capture("lo").unwrap()).collect();
            assert_eq!(sockets(), CAPTURES);
            assert!(matches!(capture("lo"), Err(CaptureError::TooMany)));
            assert_eq!(sockets(), CAPTURES);
            // The file's header is due at once.
            let mut last = captures.pop().unwrap();
            last.piece_is_due().await.unwrap();
            assert_eq!(last.piece().len(), 24);
            drop(captures);
            assert_eq!(sockets(), 1);

            run("ip", &["link", "set", "lo", "down"]);
            let ended = tokio::time::timeout(Duration::from_secs(10), last.piece_is_due()).await;
            assert!(matches!(ended, Ok(Err(CaptureError::Down(_)))), "{ended:?}");
            drop(last);
            assert!(matches!(capture("lo"), Err(CaptureError::Down(_))));
            assert!(matches!(
                capture("eth0"),
                Err(CaptureError::UnknownLink { .. })
            ));
            assert_eq!(sockets(), 0);
        });
    });
}
