//! Shapes: the possible content of a document, as data. `check_shape` compares a document with its shape.
//!
//! A shape lists the fields and the types of values. Whether a value is valid (a size that is too small, a name that refers to nothing) is
//! decided by the reader of the value.

use instar_values::{Cidr, quantity};

use super::suggestion;

/// The type of a value.
#[derive(Debug)]
pub(super) enum Shape {
    /// `true` or `false`; not `yes`, which is text in YAML 1.2.
    Bool,
    /// A whole number: `1500`, `0x5dc`, `0o644` and, as people write file modes, `0644`.
    Int,
    /// Any single value, taken as written.
    Text,
    /// `1h30m`, `500ms`.
    Duration,
    /// An address with the length of its network's prefix.
    Cidr,
    /// An address of either family.
    Ip,
    /// `52:54:00:12:34:56`.
    Mac,
    /// Text that begins with one of these schemes and `://`.
    Url(&'static [&'static str]),
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// Any value: passed on to a program that we do not serve, or too rare to be checked.
    Opaque,
    /// A map that a program of others reads; it alone knows the content.
    OpaqueMap,
    /// Options of a program of others, each with a value or a list of them.
    Options,
    /// A map of text; its keys are chosen by the user.
    TextMap,
    /// A map of this type; its keys are chosen by the user.
    MapOf(&'static Shape),
    /// A list of this type.
    List(&'static Shape),
    /// This type, or a list of it.
    OneOrMore(&'static Shape),
    /// A map of known fields.
    Fields(&'static [Field]),
}

/// A field of a map.
#[derive(Debug)]
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) shape: Shape,
    pub(super) required: bool,
}

/// An optional field.
pub(super) const fn opt(name: &'static str, shape: Shape) -> Field {
    Field {
        name,
        shape,
        required: false,
    }
}

/// A required field.
pub(super) const fn req(name: &'static str, shape: Shape) -> Field {
    Field {
        name,
        shape,
        required: true,
    }
}

/// A list of text.
pub(super) const TEXTS: Shape = Shape::List(&Shape::Text);

/// A kind of document.
#[derive(Debug)]
pub(super) struct Kind {
    pub(super) name: &'static str,
    pub(super) fields: &'static [Field],
}

/// A kind by its name and fields.
pub(super) const fn kind(name: &'static str, fields: &'static [Field]) -> Kind {
    Kind { name, fields }
}

/// The path of a field below another.
pub(super) fn join(path: &str, field: &str) -> String {
    if path.is_empty() {
        field.to_owned()
    } else {
        format!("{path}.{field}")
    }
}

impl Shape {
    /// Whether a single value fits; the error is the expected form.
    pub(super) fn fits(&self, text: &str, plain: bool) -> Result<(), String> {
        // Go writes an empty string for a text field that is not set.
        let unset = text.is_empty();
        let fits = match self {
            Shape::Bool => plain && boolean(text).is_some(),
            Shape::Int => plain && integer(text).is_some(),
            Shape::Duration => unset || quantity::duration(text).is_some(),
            Shape::Cidr => unset || text.parse::<Cidr>().is_ok(),
            Shape::Ip => unset || text.parse::<std::net::IpAddr>().is_ok(),
            Shape::Mac => unset || is_mac(text),
            Shape::Url(schemes) => unset || schemes.iter().any(|scheme| has_scheme(text, scheme)),
            Shape::OneOf(words) => unset || words.contains(&text),
            Shape::Text | Shape::Opaque | Shape::OneOrMore(_) => true,
            Shape::OpaqueMap
            | Shape::Options
            | Shape::TextMap
            | Shape::MapOf(_)
            | Shape::List(_)
            | Shape::Fields(_) => {
                return Err(format!("{} belongs here, not a single value", self.noun()));
            }
        };
        if fits {
            return Ok(());
        }
        Err(match self {
            Shape::Url(schemes) => {
                let schemes: Vec<String> = schemes
                    .iter()
                    .map(|scheme| format!("`{scheme}://`"))
                    .collect();
                format!(
                    "this must be a URL that begins with {}",
                    schemes.join(" or ")
                )
            }
            Shape::OneOf(words) => match suggestion::closest(text, words.iter().copied()) {
                Some(word) => format!(
                    "`{}` is not known here; did you mean `{word}`?",
                    shorten(text)
                ),
                None => format!(
                    "`{}` is not known here; known: {}",
                    shorten(text),
                    words.join(", ")
                ),
            },
            Shape::Bool
                if matches!(
                    text,
                    "yes" | "no" | "on" | "off" | "Yes" | "No" | "On" | "Off"
                ) =>
            {
                format!("write `true` or `false`; `{text}` is text")
            }
            Shape::Bool | Shape::Int if !plain => {
                "in quotes this is text; write it without".to_owned()
            }
            _ => format!("`{}` is not {}", shorten(text), self.noun()),
        })
    }

    /// The expected form, for messages.
    pub(super) fn noun(&self) -> &'static str {
        match self {
            Shape::Bool => "`true` or `false`",
            Shape::Int => "a whole number",
            Shape::Text => "a single value",
            Shape::Duration => "a duration such as `1h30m` or `10s`",
            Shape::Cidr => "an address with a prefix such as `10.0.0.0/8`",
            Shape::Ip => "an IP address",
            Shape::Mac => "a hardware address such as `52:54:00:12:34:56`",
            Shape::Url(_) => "a URL",
            Shape::OneOf(_) => "one word",
            Shape::Opaque => "anything",
            Shape::OpaqueMap | Shape::TextMap | Shape::MapOf(_) => "a map",
            Shape::Options => "a map of options such as `v: 2`",
            Shape::List(_) => "a list",
            Shape::OneOrMore(_) => "one or a list of them",
            Shape::Fields(_) => "a map of fields",
        }
    }
}

/// The begin of a value, enough to find it again, for messages.
pub(super) fn shorten(text: &str) -> String {
    const KEEP: usize = 40;
    let mut short: String = text
        .chars()
        .take(KEEP)
        .flat_map(char::escape_debug)
        .collect();
    if text.chars().nth(KEEP).is_some() {
        short.push('…');
    }
    short
}

pub(super) fn boolean(text: &str) -> Option<bool> {
    match text {
        "true" | "True" | "TRUE" => Some(true),
        "false" | "False" | "FALSE" => Some(false),
        _ => None,
    }
}

pub(super) fn integer(text: &str) -> Option<i64> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let (radix, digits) = match digits.get(..2) {
        Some("0x") => (16, &digits[2..]),
        Some("0o") => (8, &digits[2..]),
        Some("0b") => (2, &digits[2..]),
        Some(_) if digits.starts_with('0') => (8, &digits[1..]),
        _ => (10, digits),
    };
    // from_str_radix would accept a sign.
    if !digits.starts_with(|first: char| first.is_ascii_hexdigit()) {
        return None;
    }
    let value = i64::from_str_radix(digits, radix).ok()?;
    Some(if negative { -value } else { value })
}

fn is_mac(text: &str) -> bool {
    let octets: Vec<&str> = text.split([':', '-']).collect();
    // 6 bytes for Ethernet, 20 for InfiniBand.
    matches!(octets.len(), 6 | 8 | 20)
        && octets
            .iter()
            .all(|octet| octet.len() == 2 && octet.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

fn has_scheme(text: &str, scheme: &str) -> bool {
    text.strip_prefix(scheme)
        .and_then(|rest| rest.strip_prefix("://"))
        .is_some_and(|rest| !rest.is_empty())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn whole_numbers() {
        for (text, value) in [
            ("0", 0),
            ("1500", 1500),
            ("-7", -7),
            ("+7", 7),
            ("0644", 0o644),
            ("0o644", 0o644),
            ("0x1F", 31),
            ("0b101", 5),
        ] {
            assert_eq!(integer(text), Some(value), "{text}");
        }
        for text in [
            "",
            "-",
            "--1",
            "0x",
            "0x-1",
            "1.5",
            "1e3",
            "12k",
            "089",
            "9223372036854775808",
            "0o+7",
            "٣",
        ] {
            assert_eq!(integer(text), None, "{text}");
        }
    }

    #[test]
    fn single_values() {
        assert!(Shape::Bool.fits("true", true).is_ok());
        assert!(Shape::Bool.fits("true", false).is_err(), "quoted is text");
        assert_eq!(
            Shape::Bool.fits("yes", true).unwrap_err(),
            "write `true` or `false`; `yes` is text"
        );
        assert!(Shape::Mac.fits("52:54:00:12:34:56", true).is_ok());
        assert!(Shape::Mac.fits("52:54:00:12:34", true).is_err());
        assert!(Shape::Url(&["https"]).fits("https://x", true).is_ok());
        assert_eq!(
            Shape::Url(&["http", "https"])
                .fits("ftp://x", true)
                .unwrap_err(),
            "this must be a URL that begins with `http://` or `https://`"
        );
        assert_eq!(
            Shape::OneOf(&["stable", "off"])
                .fits("stabel", true)
                .unwrap_err(),
            "`stabel` is not known here; did you mean `stable`?"
        );
    }
}
