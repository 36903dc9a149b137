//! VLAN tags (IEEE 802.1Q). The network card and the kernel take the tag out of a packet and report it separately, so the packet
//! was longer on the link.

/// Offset of the tag in a packet, in bytes: behind the two addresses.
const ADDRESSES: usize = 12;

/// Returns the packet with its tag back in place. A packet that is too short for a tag is returned unchanged.
pub(super) fn put_back(packet: &[u8], tag: [u8; 4]) -> Vec<u8> {
    match packet.split_at_checked(ADDRESSES) {
        Some((addresses, rest)) => [addresses, &tag, rest].concat(),
        None => packet.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tag_is_between_addresses_and_type() {
        let tag = [0x81, 0, 0, 5];
        assert_eq!(
            put_back(b"ddddddssssss\x08\x00ip", tag),
            b"ddddddssssss\x81\x00\x00\x05\x08\x00ip"
        );
        assert_eq!(put_back(b"short", tag), b"short");
    }
}
