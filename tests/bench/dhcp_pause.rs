//! The random pause before a machine asks for an address, taken from a record of its packets.
//!
//! DHCP clients that start together should not ask together (RFC 2131, section 4.4.1), so the client waits a random time first, up to 200 ms. That is
//! a draw, not work: with it two boots of one image differ by up to a tenth. An idle guest's clock leaps over it, but counts it.

use std::time::Duration;

use anyhow::{Context, Result};
use instar_qemu::{Vm, VmSpec};

/// The record's name in the machine's directory.
const RECORD: &str = "packets.pcap";

/// Sizes of the headers of a pcap file and of one packet in it (draft-ietf-opsawg-pcap).
const FILE_HEADER: usize = 24;
const PACKET_HEADER: usize = 16;

/// Has QEMU record the packets of the machine's card, with the time of the guest's clock.
pub(crate) fn recorded(spec: VmSpec) -> VmSpec {
    spec.extra_argument("-object")
        .extra_argument(format!("filter-dump,id=record,netdev=net0,file={RECORD}"))
}

/// Returns the time from the card's first packet to the first question for an address. The first packet is IPv6's, some 10 ms after the link came up,
/// or the question itself after a shorter pause: then the time is zero.
pub(crate) fn pause(vm: &Vm) -> Result<Duration> {
    let path = vm.directory().join(RECORD);
    let record = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    pause_in(&record).with_context(|| format!("{}: no question for an address", path.display()))
}

/// The pause in a record; none if the question is missing.
fn pause_in(record: &[u8]) -> Option<Duration> {
    let packets = packets(record);
    let (asked, question) = packets.iter().find(|(_, frame)| is_to_dhcp_server(frame))?;
    let (up, _) = packets
        .iter()
        .find(|(_, frame)| sender(frame) == sender(question))?;
    Some(asked.saturating_sub(*up))
}

/// Lists the frames with their times, up to one that is not written yet.
fn packets(record: &[u8]) -> Vec<(Duration, &[u8])> {
    let mut packets = Vec::new();
    let mut rest = record.get(FILE_HEADER..).unwrap_or_default();
    while let Some((header, after)) = rest.split_at_checked(PACKET_HEADER) {
        // QEMU writes in the host's byte order.
        let number = |at: usize| {
            let bytes = [header[at], header[at + 1], header[at + 2], header[at + 3]];
            u32::from_ne_bytes(bytes)
        };
        let time = Duration::from_secs(number(0).into()) + Duration::from_micros(number(4).into());
        let Some((frame, next)) = after.split_at_checked(number(8) as usize) else {
            break;
        };
        packets.push((time, frame));
        rest = next;
    }
    packets
}

/// The Ethernet address of a frame's sender.
fn sender(frame: &[u8]) -> Option<&[u8]> {
    frame.get(6..12)
}

/// Whether a frame is IPv4, UDP, to port 67.
fn is_to_dhcp_server(frame: &[u8]) -> bool {
    let Some((ethernet, ip)) = frame.split_at_checked(14) else {
        return false;
    };
    let (Some(first), Some(protocol)) = (ip.first(), ip.get(9)) else {
        return false;
    };
    let udp = usize::from(first & 0x0f) * 4;
    ethernet.ends_with(&[8, 0])
        && *protocol == 17
        && ip.get(udp + 2..udp + 4) == Some(&67_u16.to_be_bytes())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const CARD: u8 = 2;
    const HOST: u8 = 9;

    fn frame(from: u8, kind: [u8; 2], port: u16) -> Vec<u8> {
        let mut frame = vec![0xff; 6];
        frame.extend([from; 6]);
        frame.extend(kind);
        frame.extend([0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17]);
        frame.extend([0; 10 + 2]);
        frame.extend(port.to_be_bytes());
        frame
    }

    fn record(packets: &[(u32, u32, Vec<u8>)]) -> Vec<u8> {
        let mut record = vec![0; FILE_HEADER];
        for (seconds, micros, frame) in packets {
            let length = frame.len() as u32;
            for number in [*seconds, *micros, length, length] {
                record.extend(number.to_ne_bytes());
            }
            record.extend(frame);
        }
        record
    }

    #[test]
    fn the_pause_is_from_the_cards_first_packet_to_its_question() {
        let packets = [
            (1, 990_000, frame(HOST, [8, 6], 0)),
            (1, 999_000, frame(CARD, [0x86, 0xdd], 67)),
            (2, 37_500, frame(CARD, [8, 0], 67)),
            (2, 37_500, frame(HOST, [8, 0], 68)),
            (2, 38_000, frame(CARD, [8, 0], 67)),
        ];
        let mut record = record(&packets);
        assert_eq!(pause_in(&record), Some(Duration::from_micros(38_500)));
        record.truncate(record.len() - 1);
        assert_eq!(
            pause_in(&record),
            Some(Duration::from_micros(38_500)),
            "QEMU is still writing"
        );
    }

    #[test]
    fn a_question_that_is_the_first_packet_had_no_pause() {
        let packets = [
            (1, 0, frame(HOST, [8, 6], 0)),
            (2, 0, frame(CARD, [8, 0], 67)),
            (2, 900, frame(CARD, [0x86, 0xdd], 0)),
        ];
        assert_eq!(pause_in(&record(&packets)), Some(Duration::ZERO));
    }

    #[test]
    fn a_record_without_a_question_has_no_pause() {
        for frame in [frame(CARD, [8, 0], 68), vec![0; 13]] {
            assert_eq!(pause_in(&record(&[(1, 0, frame)])), None);
        }
        assert_eq!(pause_in(&record(&[])), None);
        assert_eq!(pause_in(&[]), None);
    }
}
