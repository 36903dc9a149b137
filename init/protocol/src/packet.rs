//! The form of a packet: a header line and `key value` lines.

use crate::{ErrorCode, Line, MAX_PACKET, VERSION};
use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::ops::RangeInclusive;
use std::str::FromStr;

/// Why a packet is not a message of this protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// The value for `to` in the answer: the verb, `-` when the packet had none.
    pub to: Line,
    /// The code to answer with.
    pub code: ErrorCode,
    /// The problem, for people.
    pub text: String,
}

impl Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for ParseError {}

/// A packet taken apart: its verb and its fields, not yet interpreted.
pub(crate) struct Fields<'a> {
    pub(crate) verb: &'a str,
    fields: BTreeMap<&'a str, &'a str>,
}

impl<'a> Fields<'a> {
    pub(crate) fn parse(packet: &'a [u8]) -> Result<Self, ParseError> {
        let mut parsed = Self {
            verb: "-",
            fields: BTreeMap::new(),
        };
        if packet.len() > MAX_PACKET {
            return Err(parsed.bad(format_args!("more than {MAX_PACKET} bytes")));
        }
        let text = std::str::from_utf8(packet).map_err(|error| parsed.bad(error))?;
        let (header, lines) = text.split_once('\n').unwrap_or((text, ""));
        let ["instar", version, verb] = header.split(' ').collect::<Vec<_>>()[..] else {
            let problem = format_args!("the first line is not 'instar {VERSION} VERB'");
            return Err(parsed.bad(problem));
        };
        parsed.verb = verb;
        if version != VERSION.to_string() {
            let text = format_args!("version '{version}', but only {VERSION} is spoken here");
            return Err(parsed.error(ErrorCode::OtherVersion, text));
        }
        for line in lines.split_terminator('\n') {
            match line.split_once(' ') {
                Some((key, value)) if !key.is_empty() && !line.contains(char::is_control) => {
                    if parsed.fields.insert(key, value).is_some() {
                        return Err(parsed.bad(format_args!("the key '{key}' is given twice")));
                    }
                }
                _ => return Err(parsed.bad(format_args!("the line '{line}' is not 'key value'"))),
            }
        }
        Ok(parsed)
    }

    pub(crate) fn required<T: FromStr<Err: Display>>(&self, key: &str) -> Result<T, ParseError> {
        self.optional(key)?
            .ok_or_else(|| self.bad(format_args!("the key '{key}' is missing")))
    }

    pub(crate) fn optional<T: FromStr<Err: Display>>(
        &self,
        key: &str,
    ) -> Result<Option<T>, ParseError> {
        let value = self.fields.get(key).map(|value| value.parse());
        value
            .transpose()
            .map_err(|why| self.bad(format_args!("the key '{key}': {why}")))
    }

    pub(crate) fn has(&self, key: &str) -> bool {
        self.fields.contains_key(key)
    }

    pub(crate) fn number(&self, key: &str, range: RangeInclusive<u32>) -> Result<u32, ParseError> {
        let number = self.required(key)?;
        if range.contains(&number) {
            return Ok(number);
        }
        let (first, last) = range.into_inner();
        Err(self.bad(format_args!("the key '{key}': not from {first} to {last}")))
    }

    /// The values of a key that holds a list; empty when the key is absent.
    pub(crate) fn list<T: FromStr<Err: Display>>(&self, key: &str) -> Result<Vec<T>, ParseError> {
        let words = self.fields.get(key).copied().unwrap_or_default();
        let values = words.split_ascii_whitespace().map(str::parse);
        values
            .collect::<Result<_, _>>()
            .map_err(|why| self.bad(format_args!("the key '{key}': {why}")))
    }

    pub(crate) fn unknown_verb(&self) -> ParseError {
        self.error(ErrorCode::UnknownVerb, "unknown verb")
    }

    fn bad(&self, problem: impl Display) -> ParseError {
        self.error(ErrorCode::BadMessage, problem)
    }

    fn error(&self, code: ErrorCode, problem: impl Display) -> ParseError {
        ParseError {
            to: Line::lossy(self.verb),
            code,
            text: problem.to_string(),
        }
    }
}
