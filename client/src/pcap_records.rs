//! Cuts a capture at the end of a record: wherever the stream breaks off, the written part is a whole pcap file.
//!
//! Source of the format: <https://www.ietf.org/archive/id/draft-ietf-opsawg-pcap-05.html>, sections 4 and 5.

/// Length of the file's header, in bytes.
const HEADER: usize = 24;
/// Length of a record's header, in bytes; the packet follows.
const RECORD_HEADER: usize = 16;
/// Limit on the length of a packet: more than any packet has, and than a node keeps of one. A longer one means that this is no capture.
const LARGEST_PACKET: usize = 1 << 20;

/// The part of the file that has come and is not yet complete.
#[derive(Debug, Default)]
pub(crate) struct PcapRecords {
    /// The byte order of its numbers; `None` before the file's header is there.
    order: Option<Order>,
    held: Vec<u8>,
    packets: u64,
}

#[derive(Debug, Clone, Copy)]
enum Order {
    Little,
    Big,
}

/// The stream is not a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("what came is no pcap file")]
pub(crate) struct NoCapture;

impl PcapRecords {
    /// Takes the next bytes, and returns the records that are complete now.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<Vec<u8>, NoCapture> {
        self.held.extend_from_slice(bytes);
        let mut whole = 0;
        let order = match self.order {
            Some(order) => order,
            None if self.held.len() < HEADER => return Ok(Vec::new()),
            None => {
                whole = HEADER;
                *self.order.insert(order(&self.held)?)
            }
        };
        while let Some(record) = self.held.get(whole..whole + RECORD_HEADER) {
            // The length follows the time, which has two numbers.
            let length = order.number([record[8], record[9], record[10], record[11]]) as usize;
            if length > LARGEST_PACKET {
                return Err(NoCapture);
            }
            let end = whole + RECORD_HEADER + length;
            if end > self.held.len() {
                break;
            }
            whole = end;
            self.packets += 1;
        }
        let rest = self.held.split_off(whole);
        Ok(std::mem::replace(&mut self.held, rest))
    }

    /// Number of packets returned so far.
    pub(crate) fn packets(&self) -> u64 {
        self.packets
    }
}

/// The byte order, by the first number: there is one for times in microseconds and one for nanoseconds.
fn order(header: &[u8]) -> Result<Order, NoCapture> {
    match header.first_chunk() {
        Some([0xd4, 0xc3, 0xb2, 0xa1] | [0x4d, 0x3c, 0xb2, 0xa1]) => Ok(Order::Little),
        Some([0xa1, 0xb2, 0xc3, 0xd4] | [0xa1, 0xb2, 0x3c, 0x4d]) => Ok(Order::Big),
        _ => Err(NoCapture),
    }
}

impl Order {
    fn number(self, bytes: [u8; 4]) -> u32 {
        match self {
            Self::Little => u32::from_le_bytes(bytes),
            Self::Big => u32::from_be_bytes(bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const LITTLE: [u8; 4] = [0xd4, 0xc3, 0xb2, 0xa1];
    const BIG: [u8; 4] = [0xa1, 0xb2, 0xc3, 0xd4];

    fn header(magic: [u8; 4]) -> Vec<u8> {
        [&magic[..], &[0; HEADER - 4]].concat()
    }

    fn record(length: [u8; 4], packet: &[u8]) -> Vec<u8> {
        [&[0; 8][..], &length, &length, packet].concat()
    }

    #[test]
    fn records_come_out_whole_however_they_come_in() {
        for (magic, three) in [(LITTLE, [3, 0, 0, 0]), (BIG, [0, 0, 0, 3])] {
            let parts = [
                header(magic),
                record(three, b"abc"),
                record([0; 4], b""),
                record(three, b"def"),
            ];
            let ends: Vec<usize> = parts
                .iter()
                .scan(0, |end, part| {
                    *end += part.len();
                    Some(*end)
                })
                .collect();
            let file = parts.concat();
            for step in 1..=file.len() {
                let mut records = PcapRecords::default();
                let (mut came, mut out) = (0, Vec::new());
                for bytes in file.chunks(step) {
                    came += bytes.len();
                    out.extend(records.push(bytes).unwrap());
                    let whole = ends.iter().rfind(|end| **end <= came);
                    assert_eq!(out.len(), whole.copied().unwrap_or(0));
                }
                assert_eq!(out, file);
                assert_eq!(records.packets(), 3);
            }
        }
    }

    #[test]
    fn what_is_no_capture_is_refused() {
        let mut records = PcapRecords::default();
        assert_eq!(records.push(&[b'x'; HEADER]), Err(NoCapture));
        let mut records = PcapRecords::default();
        let endless = [header(LITTLE), record([0xff; 4], b"")].concat();
        assert_eq!(records.push(&endless), Err(NoCapture));
    }
}
