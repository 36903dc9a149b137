//! The form of a packet: a header line and `key value` lines.

use crate::error::{InvalidValue, ParseError, Problem};
use crate::{Line, MAX_PACKET, VERSION};
use std::fmt::{Display, Write as _};
use std::str::FromStr;

/// Writes a packet, line by line.
pub(crate) struct Writer(String);

impl Writer {
    pub(crate) fn new(verb: &str) -> Self {
        Self(format!("instar {VERSION} {verb}\n"))
    }

    pub(crate) fn field(mut self, key: &str, value: impl Display) -> Self {
        // Writing to a String cannot fail.
        let _ = writeln!(self.0, "{key} {value}");
        self
    }

    pub(crate) fn optional(self, key: &str, value: Option<impl Display>) -> Self {
        match value {
            Some(value) => self.field(key, value),
            None => self,
        }
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.0.into_bytes()
    }
}

/// A packet taken apart: its verb and its fields, not yet interpreted.
pub(crate) struct Fields<'a> {
    verb: &'a str,
    fields: Vec<(&'a str, &'a str)>,
}

impl<'a> Fields<'a> {
    pub(crate) fn parse(packet: &'a [u8]) -> Result<Self, ParseError> {
        let without_verb = |problem| ParseError {
            verb: None,
            problem,
        };
        if packet.len() > MAX_PACKET {
            return Err(without_verb(Problem::TooLong(packet.len())));
        }
        let text = std::str::from_utf8(packet)
            .map_err(|e| without_verb(Problem::NotUtf8(e.valid_up_to())))?;
        let mut lines = text.strip_suffix('\n').unwrap_or(text).split('\n');

        let mut header = lines.next().unwrap_or_default().split(' ');
        let (Some("instar"), Some(version), Some(verb), None) =
            (header.next(), header.next(), header.next(), header.next())
        else {
            return Err(without_verb(Problem::NoHeader));
        };
        let mut packet = Self {
            verb,
            fields: Vec::new(),
        };
        if version != VERSION.to_string() {
            return Err(packet.problem(Problem::OtherVersion(Line::lossy(version))));
        }
        for (i, line) in lines.enumerate() {
            let (key, value) = match line.split_once(' ') {
                Some((key, value)) if !key.is_empty() && !line.contains(char::is_control) => {
                    (key, value)
                }
                _ => return Err(packet.problem(Problem::NotKeyValue(i + 2))),
            };
            if packet.find(key).is_some() {
                return Err(packet.problem(Problem::Duplicate(Line::lossy(key))));
            }
            packet.fields.push((key, value));
        }
        Ok(packet)
    }

    pub(crate) fn verb(&self) -> &'a str {
        self.verb
    }

    pub(crate) fn required<T: FromStr<Err = InvalidValue>>(
        &self,
        key: &'static str,
    ) -> Result<T, ParseError> {
        self.optional(key)?
            .ok_or_else(|| self.problem(Problem::Missing(key)))
    }

    pub(crate) fn optional<T: FromStr<Err = InvalidValue>>(
        &self,
        key: &'static str,
    ) -> Result<Option<T>, ParseError> {
        let parse = |value: &str| {
            value
                .parse()
                .map_err(|why| self.problem(Problem::Invalid(key, why)))
        };
        self.find(key).map(parse).transpose()
    }

    pub(crate) fn number<T: FromStr>(&self, key: &'static str) -> Result<T, ParseError> {
        let value = self
            .find(key)
            .ok_or_else(|| self.problem(Problem::Missing(key)))?;
        value.parse().map_err(|_| {
            self.problem(Problem::Invalid(
                key,
                InvalidValue("is not a number in its range"),
            ))
        })
    }

    /// The values of a key that holds a list; empty when the key is absent.
    pub(crate) fn list<T: FromStr<Err = InvalidValue>>(
        &self,
        key: &'static str,
    ) -> Result<Vec<T>, ParseError> {
        let words = self
            .find(key)
            .unwrap_or_default()
            .split(' ')
            .filter(|word| !word.is_empty());
        words
            .map(|word| {
                word.parse()
                    .map_err(|why| self.problem(Problem::Invalid(key, why)))
            })
            .collect()
    }

    pub(crate) fn problem(&self, problem: Problem) -> ParseError {
        ParseError {
            verb: Some(Line::lossy(self.verb)),
            problem,
        }
    }

    fn find(&self, key: &str) -> Option<&'a str> {
        self.fields
            .iter()
            .find(|(name, _)| *name == key)
            .map(|(_, value)| *value)
    }
}
