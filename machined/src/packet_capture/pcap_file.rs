//! The classic pcap file format: a header, then a record for each packet.
//!
//! Source: <https://www.ietf.org/archive/id/draft-ietf-opsawg-pcap-05.html>, sections 4 and 5. Readers recognize the byte order by the
//! first number; ours is little-endian on every machine.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The magic number of files with times in microseconds.
const MAGIC: u32 = 0xa1b2_c3d4;
const VERSION_MAJOR: u16 = 2;
const VERSION_MINOR: u16 = 4;
/// Length of the file's header, in bytes.
const HEADER: usize = 24;

/// Builds the file's header.
pub(super) fn header(snap_len: u32, link_type: u32) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..4].copy_from_slice(&MAGIC.to_le_bytes());
    header[4..6].copy_from_slice(&VERSION_MAJOR.to_le_bytes());
    header[6..8].copy_from_slice(&VERSION_MINOR.to_le_bytes());
    // The two numbers in between are unused.
    header[16..20].copy_from_slice(&snap_len.to_le_bytes());
    header[20..].copy_from_slice(&link_type.to_le_bytes());
    header
}

/// Adds a packet to the file: its time, its original length, and the bytes that were kept.
pub(super) fn append(file: &mut Vec<u8>, at: SystemTime, original: usize, packet: &[u8]) {
    // The format has no times before 1970.
    let at = at.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let numbers = [
        // Unsigned, so it lasts until 2106 and wraps around then.
        at.as_secs() as u32,
        at.subsec_micros(),
        length(packet.len()),
        length(original.max(packet.len())),
    ];
    file.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
    file.extend_from_slice(packet);
}

/// No packet comes near the limit.
fn length(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_that_of_the_format() {
        #[rustfmt::skip]
        let expected = [
            0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0,
            0, 0, 0, 0, 0, 0, 0, 0,
            0xff, 0xff, 0, 0, 101, 0, 0, 0,
        ];
        assert_eq!(header(65_535, 101), expected);
    }

    #[test]
    fn a_record_says_when_and_how_long() {
        let at = UNIX_EPOCH + Duration::new(0x6543_2100, 999_999_999);
        let mut file = vec![7];
        append(&mut file, at, 300, b"abc");
        #[rustfmt::skip]
        let expected = [
            7,
            0x00, 0x21, 0x43, 0x65, 0x3f, 0x42, 0x0f, 0,
            3, 0, 0, 0, 44, 1, 0, 0,
            b'a', b'b', b'c',
        ];
        assert_eq!(file, expected);
    }

    #[test]
    fn a_packet_is_never_shorter_than_what_there_is_of_it() {
        let mut file = Vec::new();
        append(&mut file, UNIX_EPOCH - Duration::from_secs(1), 0, b"ab");
        assert_eq!(file[..8], [0; 8]);
        assert_eq!(file[8..16], [2, 0, 0, 0, 2, 0, 0, 0]);
    }
}
