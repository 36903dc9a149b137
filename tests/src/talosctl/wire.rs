//! Protobuf by field numbers, as it is on the wire: independent of our protos, so that a mistake in them is noticed
//! (<https://protobuf.dev/programming-guides/encoding/>).

use bytes::{Buf as _, BufMut as _};
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

/// A message: its fields in the order of the wire.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fields(Vec<(u32, Value)>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Value {
    Varint(u64),
    Fixed64(u64),
    Bytes(Vec<u8>),
    Fixed32(u32),
}

const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const BYTES: u64 = 2;
const FIXED32: u64 = 5;

impl Fields {
    /// Returns an empty message.
    pub fn none() -> Self {
        Self::default()
    }

    /// Adds a number, a truth value or an enum. Zero is not sent.
    pub fn number(mut self, field: u32, value: i64) -> Self {
        if value != 0 {
            // A negative number is sent as its two's complement of 64 bits.
            self.0.push((field, Value::Varint(value.cast_unsigned())));
        }
        self
    }

    /// Adds bytes. An empty value is not sent.
    pub fn bytes(mut self, field: u32, value: &[u8]) -> Self {
        if !value.is_empty() {
            self.0.push((field, Value::Bytes(value.to_vec())));
        }
        self
    }

    /// Adds text. An empty value is not sent.
    pub fn text(self, field: u32, value: &str) -> Self {
        self.bytes(field, value.as_bytes())
    }

    /// Adds an inner message, which is sent even if it is empty.
    pub fn message(mut self, field: u32, value: &Self) -> Self {
        self.0.push((field, Value::Bytes(value.encode())));
        self
    }

    /// Returns the number of a field, zero if there is none.
    pub fn number_of(&self, field: u32) -> u64 {
        match self.last(field) {
            Some(Value::Varint(number)) => *number,
            _ => 0,
        }
    }

    /// Returns the number of a double field, zero if there is none.
    pub fn double_of(&self, field: u32) -> f64 {
        match self.last(field) {
            Some(Value::Fixed64(bits)) => f64::from_bits(*bits),
            _ => 0.0,
        }
    }

    /// Returns whether a truth value is there and true.
    pub fn is(&self, field: u32) -> bool {
        self.number_of(field) != 0
    }

    /// Returns the bytes of a field, none if there is no field.
    pub fn bytes_of(&self, field: u32) -> &[u8] {
        match self.last(field) {
            Some(Value::Bytes(bytes)) => bytes,
            _ => &[],
        }
    }

    /// Returns the text of a field, empty if there is none.
    pub fn text_of(&self, field: u32) -> String {
        String::from_utf8_lossy(self.bytes_of(field)).into_owned()
    }

    /// Returns the message in a field, if it is there.
    pub fn message_of(&self, field: u32) -> Option<Self> {
        match self.last(field) {
            Some(Value::Bytes(bytes)) => Self::decode(bytes).ok(),
            _ => None,
        }
    }

    /// Returns all messages of a repeated field.
    pub fn messages_of(&self, field: u32) -> Vec<Self> {
        let of_field = self.0.iter().filter(|(number, _)| *number == field);
        of_field
            .filter_map(|(_, value)| match value {
                Value::Bytes(bytes) => Self::decode(bytes).ok(),
                _ => None,
            })
            .collect()
    }

    /// Returns all texts of a repeated field.
    pub fn texts_of(&self, field: u32) -> Vec<String> {
        let of_field = self.0.iter().filter(|(number, _)| *number == field);
        of_field
            .filter_map(|(_, value)| match value {
                Value::Bytes(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
                _ => None,
            })
            .collect()
    }

    /// Whether the field was sent.
    pub fn has(&self, field: u32) -> bool {
        self.last(field).is_some()
    }

    fn last(&self, field: u32) -> Option<&Value> {
        let mut from_the_end = self.0.iter().rev();
        let found = from_the_end.find(|(number, _)| *number == field);
        found.map(|(_, value)| value)
    }

    /// Encodes the message.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for (field, value) in &self.0 {
            let mut key = |kind: u64| put_varint(&mut out, u64::from(*field) << 3 | kind);
            match value {
                Value::Varint(number) => {
                    key(VARINT);
                    put_varint(&mut out, *number);
                }
                Value::Fixed64(number) => {
                    key(FIXED64);
                    out.put_u64_le(*number);
                }
                Value::Bytes(bytes) => {
                    key(BYTES);
                    put_varint(&mut out, bytes.len() as u64);
                    out.put_slice(bytes);
                }
                Value::Fixed32(number) => {
                    key(FIXED32);
                    out.put_u32_le(*number);
                }
            }
        }
        out
    }

    /// Decodes a message; the error names the defect.
    pub fn decode(mut bytes: &[u8]) -> Result<Self, &'static str> {
        let mut fields = Vec::new();
        while !bytes.is_empty() {
            let key = take_varint(&mut bytes)?;
            let field = u32::try_from(key >> 3).map_err(|_| "a field's number is too large")?;
            let value = match key & 7 {
                VARINT => Value::Varint(take_varint(&mut bytes)?),
                FIXED64 => Value::Fixed64(bytes.try_get_u64_le().map_err(|_| "cut off")?),
                FIXED32 => Value::Fixed32(bytes.try_get_u32_le().map_err(|_| "cut off")?),
                BYTES => {
                    let length = take_varint(&mut bytes)?;
                    let length = usize::try_from(length).map_err(|_| "too long")?;
                    let (value, rest) = bytes.split_at_checked(length).ok_or("cut off")?;
                    bytes = rest;
                    Value::Bytes(value.to_vec())
                }
                _ => return Err("a kind of field that there is none of"),
            };
            fields.push((field, value));
        }
        Ok(Self(fields))
    }
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn take_varint(bytes: &mut &[u8]) -> Result<u64, &'static str> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = bytes.try_get_u8().map_err(|_| "cut off")?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err("a number does not end")
}

/// A codec for messages of any type, for a gRPC client.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct AnyMessage;

impl Codec for AnyMessage {
    type Encode = Fields;
    type Decode = Fields;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for AnyMessage {
    type Item = Fields;
    type Error = Status;

    fn encode(&mut self, item: Fields, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(&item.encode());
        Ok(())
    }
}

impl Decoder for AnyMessage {
    type Item = Fields;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Fields>, Status> {
        let bytes = buffer.copy_to_bytes(buffer.remaining());
        let fields = Fields::decode(&bytes).map_err(|why| {
            Status::internal(format!("the answer is no message: {why}: {bytes:02x?}"))
        })?;
        Ok(Some(fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_is_what_was_recorded() {
        // 1=`system` 2=`apid` 5=-1, as `logs apid` sends them.
        let logs = Fields::none()
            .text(1, "system")
            .text(2, "apid")
            .number(4, 0)
            .number(5, -1);
        assert_eq!(
            logs.encode(),
            b"\x0a\x06system\x12\x04apid\x28\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"
        );
        let apply = Fields::none()
            .number(4, 1)
            .message(6, &Fields::none().number(1, 60))
            .message(3, &Fields::none());
        assert_eq!(apply.encode(), b"\x20\x01\x32\x02\x08\x3c\x1a\x00");
        assert_eq!(Fields::decode(&apply.encode()), Ok(apply));
    }

    #[test]
    fn what_is_no_message_is_refused() {
        for bytes in [&b"\x0a"[..], b"\x0a\x05abc", b"\x80", b"\x0b", b"\x09\x01"] {
            assert!(Fields::decode(bytes).is_err(), "{bytes:02x?}");
        }
        assert!(Fields::decode(&[0xff; 11]).is_err());
    }
}
