//! Bytes of a device, read by their places.

/// Reads bytes of a device from a place on: fewer if it ends before, none if it cannot be read.
pub(super) type Bytes<'a> = dyn Fn(u64, usize) -> Option<Vec<u8>> + 'a;

/// Bytes of a device at this place.
pub(super) fn field<const LENGTH: usize>(bytes: &[u8], at: usize) -> Option<&[u8; LENGTH]> {
    bytes.get(at..)?.first_chunk()
}

/// The number of two bytes at this place, the lowest byte first.
pub(super) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    field(bytes, at).map(|it| u16::from_le_bytes(*it))
}

/// The same of four bytes.
pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    field(bytes, at).map(|it| u32::from_le_bytes(*it))
}
