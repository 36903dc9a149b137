//! The content of a resource, defined once and encoded in two ways: YAML for people and for clients that do not know the type, protobuf
//! for clients that do.
//!
//! `api/proto/resource/definitions` describes the same messages. The other choice was to derive serde for prost's types of them. But the
//! YAML differs from them: keys are Talos's own and not the fields' names; addresses, prefixes, hardware addresses and documents are bytes
//! or messages in protobuf and text in YAML; some numbers in protobuf are words in YAML; and a default that protobuf leaves out is written
//! in YAML. So each field would need an attribute in `api/build.rs`, most of them with a function, for as many lines in another place. The
//! field numbers cannot drift: the tests of each kind that has a message there decode its bytes with prost's types.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use prost::Message as _;
use prost::encoding::{WireType, encode_key, encode_varint};
use prost_types::value::Kind;
use prost_types::{ListValue, Struct};
use serde::ser::{SerializeMap as _, SerializeSeq as _};
use serde::{Serialize, Serializer};

use crate::network::mac_text;
use crate::values::Cidr;

/// The content of a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Spec {
    /// A record of keys and values.
    Record(Record),
    /// A value alone in YAML; in protobuf a message that holds it under this number.
    Bare(u32, Value),
}

/// Values in order, each with its key in YAML and its number in protobuf.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Record(Vec<(&'static str, u32, Value)>);

/// A value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// Yes or no.
    Bool(bool),
    /// A count.
    Number(u64),
    /// Text.
    Text(String),
    /// Text in YAML, bytes in protobuf.
    Document(String),
    /// One of a fixed set: a number in protobuf, a word in YAML.
    Word(u32, &'static str),
    /// Text for people; only in YAML.
    Remark(String),
    /// A hardware address: bytes in protobuf, `52:54:00:12:34:56` in YAML.
    Hardware(Vec<u8>),
    /// Bytes in protobuf, base64 in YAML.
    Encoded(Vec<u8>),
    /// An address; none is an empty text.
    Address(Option<IpAddr>),
    /// An address with its prefix length; none is an empty text.
    Prefix(Option<Cidr>),
    /// A time, to the second.
    Time(SystemTime),
    /// Several values of one kind.
    List(Vec<Value>),
    /// A nested message.
    Record(Record),
    /// Texts by their names.
    Texts(BTreeMap<String, String>),
    /// Any content: a map is `google.protobuf.Struct` in protobuf, anything else an empty one.
    Json(serde_json::Value),
}

impl Record {
    /// Adds a value.
    pub fn with(mut self, key: &'static str, number: u32, value: impl Into<Value>) -> Self {
        self.0.push((key, number, value.into()));
        self
    }

    /// Encodes the record as protobuf.
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (_, number, value) in &self.0 {
            value.encode_field(*number, &mut bytes);
        }
        bytes
    }
}

impl Spec {
    /// Returns the content as one YAML document, never empty.
    pub fn yaml(&self) -> String {
        match self {
            // JSON can write any text on one line, and JSON is YAML.
            Spec::Bare(_, Value::Document(text)) => {
                serde_json::Value::from(text.as_str()).to_string()
            }
            Spec::Bare(_, value) => to_yaml(value),
            Spec::Record(record) => to_yaml(record),
        }
    }

    /// Returns the content as a protobuf message.
    pub fn protobuf(&self) -> Vec<u8> {
        match self {
            Spec::Record(record) => record.encode(),
            Spec::Bare(number, value) => {
                let mut bytes = Vec::new();
                value.encode_field(*number, &mut bytes);
                bytes
            }
        }
    }
}

impl From<Record> for Spec {
    fn from(record: Record) -> Self {
        Spec::Record(record)
    }
}

/// Writes YAML. It can express all of these values; if the writer fails nevertheless, the result is JSON, which is YAML too.
fn to_yaml(value: &impl Serialize) -> String {
    serde_saphyr::to_string(value)
        .or_else(|_| serde_json::to_string(value).map_err(drop))
        .unwrap_or_else(|()| "{}".to_owned())
}

impl Value {
    /// Encodes the value as a field of a message. A default value is left out, as protobuf does.
    fn encode_field(&self, number: u32, bytes: &mut Vec<u8>) {
        match self {
            Value::List(values) => encode_list(values, number, bytes),
            Value::Texts(texts) => encode_texts(texts, number, bytes),
            value if value.is_default() => {}
            value => value.encode_element(number, bytes),
        }
    }

    /// Encodes the value with its field number, even if it is the default.
    fn encode_element(&self, number: u32, bytes: &mut Vec<u8>) {
        if let Some(varint) = self.as_varint() {
            encode_key(number, WireType::Varint, bytes);
            encode_varint(varint, bytes);
            return;
        }
        let content = match self {
            Value::Text(text) | Value::Document(text) => text.clone().into_bytes(),
            Value::Hardware(content) | Value::Encoded(content) => content.clone(),
            Value::Address(address) => net_ip(*address).encode(),
            Value::Prefix(prefix) => net_ip(prefix.map(Cidr::address))
                .with("", 2, prefix.map_or(0, |prefix| u64::from(prefix.prefix())))
                .encode(),
            Value::Time(time) => Record::default().with("", 1, seconds(*time)).encode(),
            Value::Record(record) => record.encode(),
            Value::Json(content) => structure(content).encode_to_vec(),
            // Numbers are encoded above, lists and texts by their elements, and remarks are only in YAML.
            Value::Bool(_)
            | Value::Number(_)
            | Value::Word(..)
            | Value::List(_)
            | Value::Texts(_)
            | Value::Remark(_) => return,
        };
        encode_key(number, WireType::LengthDelimited, bytes);
        encode_varint(content.len() as u64, bytes);
        bytes.extend(content);
    }

    fn as_varint(&self) -> Option<u64> {
        match self {
            Value::Bool(value) => Some((*value).into()),
            Value::Number(value) => Some(*value),
            Value::Word(value, _) => Some((*value).into()),
            _ => None,
        }
    }

    fn is_default(&self) -> bool {
        match self {
            Value::Text(text) | Value::Document(text) => text.is_empty(),
            Value::Hardware(bytes) | Value::Encoded(bytes) => bytes.is_empty(),
            Value::Address(address) => address.is_none(),
            Value::Prefix(prefix) => prefix.is_none(),
            Value::Record(_)
            | Value::List(_)
            | Value::Texts(_)
            | Value::Json(_)
            | Value::Time(_) => false,
            number => number.as_varint() == Some(0),
        }
    }
}

/// Returns the seconds since 1970.
fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}

/// Encodes a list: numbers are packed into one field, all other values are a field each.
fn encode_list(values: &[Value], number: u32, bytes: &mut Vec<u8>) {
    let numbers: Vec<u64> = values.iter().filter_map(Value::as_varint).collect();
    if numbers.is_empty() {
        for value in values {
            value.encode_element(number, bytes);
        }
        return;
    }
    let mut packed = Vec::new();
    for number in numbers {
        encode_varint(number, &mut packed);
    }
    encode_key(number, WireType::LengthDelimited, bytes);
    encode_varint(packed.len() as u64, bytes);
    bytes.extend(packed);
}

/// Encodes a map of texts, as protobuf does: a message with key and value for each.
fn encode_texts(texts: &BTreeMap<String, String>, number: u32, bytes: &mut Vec<u8>) {
    for (key, text) in texts {
        let entry = Record::default()
            .with("key", 1, key.as_str())
            .with("value", 2, text.as_str());
        Value::Record(entry).encode_element(number, bytes);
    }
}

/// Builds `google.protobuf.Struct`.
fn structure(content: &serde_json::Value) -> Struct {
    let fields = content.as_object().into_iter().flatten();
    let fields = fields.map(|(key, value)| (key.clone(), any(value)));
    Struct {
        fields: fields.collect(),
    }
}

/// Builds `google.protobuf.Value`.
fn any(value: &serde_json::Value) -> prost_types::Value {
    use serde_json::Value as Json;
    let kind = match value {
        Json::Null => Kind::NullValue(0),
        Json::Bool(value) => Kind::BoolValue(*value),
        Json::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or_default()),
        Json::String(text) => Kind::StringValue(text.clone()),
        Json::Array(values) => Kind::ListValue(ListValue {
            values: values.iter().map(any).collect(),
        }),
        Json::Object(_) => Kind::StructValue(structure(value)),
    };
    prost_types::Value { kind: Some(kind) }
}

/// Builds `common.NetIP`, which is also the beginning of `common.NetIPPrefix`.
fn net_ip(address: Option<IpAddr>) -> Record {
    let bytes = match address {
        None => Vec::new(),
        Some(IpAddr::V4(v4)) => v4.octets().to_vec(),
        Some(IpAddr::V6(v6)) => v6.octets().to_vec(),
    };
    Record::default().with("", 1, Value::Hardware(bytes))
}

impl Serialize for Record {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (key, _, value) in &self.0 {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Value::Bool(value) => serializer.serialize_bool(*value),
            Value::Number(value) => serializer.serialize_u64(*value),
            Value::Text(text) | Value::Document(text) | Value::Remark(text) => {
                serializer.serialize_str(text)
            }
            Value::Word(_, word) => serializer.serialize_str(word),
            Value::Hardware(bytes) => serializer.serialize_str(&mac_text(bytes)),
            Value::Encoded(bytes) => serializer.serialize_str(&BASE64_STANDARD.encode(bytes)),
            Value::Address(address) => {
                serializer.serialize_str(&address.map_or_else(String::new, |it| it.to_string()))
            }
            Value::Prefix(prefix) => {
                serializer.serialize_str(&prefix.map_or_else(String::new, |it| it.to_string()))
            }
            Value::Time(time) => {
                let at = i64::try_from(seconds(*time)).map(|it| jiff::Timestamp::new(it, 0));
                serializer.serialize_str(
                    &at.ok()
                        .and_then(Result::ok)
                        .map_or_else(String::new, |it| it.to_string()),
                )
            }
            Value::List(values) => {
                let mut sequence = serializer.serialize_seq(Some(values.len()))?;
                for value in values {
                    sequence.serialize_element(value)?;
                }
                sequence.end()
            }
            Value::Record(record) => record.serialize(serializer),
            Value::Texts(texts) => texts.serialize(serializer),
            Value::Json(content) => content.serialize(serializer),
        }
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Value::Bool(value)
    }
}

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        Value::Number(value)
    }
}

impl From<u32> for Value {
    fn from(value: u32) -> Self {
        Value::Number(value.into())
    }
}

impl From<String> for Value {
    fn from(value: String) -> Self {
        Value::Text(value)
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Value::Text(value.to_owned())
    }
}

impl From<IpAddr> for Value {
    fn from(value: IpAddr) -> Self {
        Value::Address(Some(value))
    }
}

impl From<Cidr> for Value {
    fn from(value: Cidr) -> Self {
        Value::Prefix(Some(value))
    }
}

impl From<Record> for Value {
    fn from(value: Record) -> Self {
        Value::Record(value)
    }
}

impl<T: Into<Value>> FromIterator<T> for Value {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Self {
        Value::List(values.into_iter().map(Into::into).collect())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn yaml_says_what_was_meant() {
        let spec: Spec = Record::default()
            .with("on", 1, true)
            .with("size", 2, 5_u64)
            // Texts that YAML takes for another type unless they are quoted.
            .with(
                "texts",
                3,
                [
                    "yes",
                    "",
                    "1.0",
                    "0x10",
                    "null",
                    "a: b",
                    "- x",
                    "ä\n\"b\" #c",
                ]
                .into_iter()
                .collect::<Value>(),
            )
            .with("stage", 4, Value::Word(6, "shutting down"))
            .with("empty", 5, Value::List(Vec::new()))
            .with("nothing", 6, Record::default())
            .with("mac", 7, Value::Hardware(vec![0x52, 0x54, 0, 1, 2, 3]))
            .with("at", 8, Value::Prefix("10.0.0.1/8".parse().ok()))
            .with("via", 9, Value::Address(None))
            .into();
        let back: serde_json::Value = serde_saphyr::from_str(&spec.yaml()).unwrap();
        let expected = serde_json::json!({
            "on": true,
            "size": 5,
            "texts": ["yes", "", "1.0", "0x10", "null", "a: b", "- x", "ä\n\"b\" #c"],
            "stage": "shutting down",
            "empty": [],
            "nothing": {},
            "mac": "52:54:00:01:02:03",
            "at": "10.0.0.1/8",
            "via": "",
        });
        assert_eq!(back, expected, "{}", spec.yaml());
    }

    #[test]
    fn a_bare_value_is_a_scalar() {
        assert_eq!(
            Spec::Bare(1, Value::Word(3, "worker")).yaml().trim(),
            "worker"
        );
        let text = "a: 1\n# ä \"quoted\"\n---\nb: |\n  c\n";
        let config = Spec::Bare(1, Value::Document(text.to_owned()));
        let back: String = serde_saphyr::from_str(&config.yaml()).unwrap();
        assert_eq!(back, text);
        assert_eq!(&config.protobuf()[2..], text.as_bytes());
    }

    #[test]
    fn what_is_missing_is_not_encoded_and_elements_always_are() {
        let zero = Record::default()
            .with("a", 1, 0_u64)
            .with("b", 2, "")
            .with("c", 3, false)
            .with("d", 4, Value::List(Vec::new()))
            .with("e", 5, Value::Prefix(None));
        assert_eq!(zero.encode(), [0_u8; 0]);
        let lists = Record::default()
            .with("a", 1, [0_u64, 300].into_iter().collect::<Value>())
            .with("b", 2, ["", "x"].into_iter().collect::<Value>())
            .with("c", 3, Record::default());
        assert_eq!(
            lists.encode(),
            [0x0a, 3, 0, 0xac, 0x02, 0x12, 0, 0x12, 1, b'x', 0x1a, 0]
        );
    }
}
