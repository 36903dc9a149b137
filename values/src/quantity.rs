//! Quantities as people write them: sizes, parts of a CPU, durations.

use std::{str::FromStr, time::Duration};

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(pub u64);

/// Why a text is not a quantity. The message describes a valid one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("this is not {0}")]
pub struct NotAQuantity(&'static str);

impl FromStr for ByteSize {
    type Err = NotAQuantity;

    /// `64MiB`, `1.5GB`, `512Mi`, `4096`. As in Talos, `MB` is 10^6, `MiB` is 2^20 and case doesn't matter.
    fn from_str(text: &str) -> Result<Self, NotAQuantity> {
        let wrong = NotAQuantity("a size such as `64MiB` or `10GB`");
        let text = text.trim();
        let digits = text
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let unit: u64 = match unit.trim().to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "kb" => 1000,
            "m" | "mb" => 1000_u64.pow(2),
            "g" | "gb" => 1000_u64.pow(3),
            "t" | "tb" => 1000_u64.pow(4),
            "p" | "pb" => 1000_u64.pow(5),
            "ki" | "kib" => 1 << 10,
            "mi" | "mib" => 1 << 20,
            "gi" | "gib" => 1 << 30,
            "ti" | "tib" => 1 << 40,
            "pi" | "pib" => 1 << 50,
            _ => return Err(wrong),
        };
        scaled(number, unit).map(ByteSize).ok_or(wrong)
    }
}

/// A part of the time of CPUs, in thousandths of one CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millicores(pub u64);

impl FromStr for Millicores {
    type Err = NotAQuantity;

    /// `1500m`, `1.5`, `2`. At least one thousandth.
    fn from_str(text: &str) -> Result<Self, NotAQuantity> {
        let wrong = NotAQuantity("a part of a CPU such as `1500m` or `1.5`");
        let value = match text.strip_suffix('m') {
            Some(number) => scaled(number, 1),
            None => scaled(text, 1000),
        };
        value
            .filter(|&value| value > 0)
            .map(Millicores)
            .ok_or(wrong)
    }
}

/// A decimal number times a unit, rounded down. `None` if it is not a number or too large.
fn scaled(number: &str, unit: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    // Nine digits of a fraction are exact to the byte up to a terabyte.
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() && fraction.is_empty()
        || !digits(whole)
        || !digits(fraction)
        || fraction.len() > 9
    {
        return None;
    }
    let parse = |text: &str| {
        if text.is_empty() {
            Some(0)
        } else {
            text.parse::<u64>().ok()
        }
    };
    let exponent = u32::try_from(fraction.len()).ok()?;
    let part = u128::from(parse(fraction)?) * u128::from(unit) / 10_u128.pow(exponent);
    parse(whole)?
        .checked_mul(unit)?
        .checked_add(u64::try_from(part).ok()?)
}

/// Parses a duration as Go writes it: `168h0m0s`, `1m30s`, `500ms`, `0`. `None` if it is invalid, negative, or longer than 292 years.
#[must_use]
pub fn duration(text: &str) -> Option<Duration> {
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Some(Duration::ZERO);
    }
    if rest.is_empty() {
        return None;
    }
    let mut nanoseconds = 0_u64;
    while !rest.is_empty() {
        let (number, tail) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit() && c != '.')?);
        let (unit, tail) = tail.split_at(
            tail.find(|c: char| c.is_ascii_digit() || c == '.')
                .unwrap_or(tail.len()),
        );
        let unit = match unit {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return None,
        };
        nanoseconds = nanoseconds.checked_add(scaled(number, unit)?)?;
        rest = tail;
    }
    i64::try_from(nanoseconds)
        .ok()
        .map(|_| Duration::from_nanos(nanoseconds))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("64MiB", 64 << 20),
            ("64mi", 64 << 20),
            ("1.5GiB", 3 << 29),
            ("10 GB", 10_000_000_000),
            (".5k", 500),
            ("16EB", 0),
        ] {
            let parsed = text.parse::<ByteSize>();
            if bytes == 0 && text != "0" {
                assert!(parsed.is_err(), "{text}");
            } else {
                assert_eq!(parsed.unwrap(), ByteSize(bytes), "{text}");
            }
        }
        for text in [
            "",
            ".",
            "MiB",
            "-1",
            "1..5k",
            "1.2.3",
            "64Mib/s",
            "99999999999PiB",
            "1e3",
            "٣MiB",
        ] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
    }

    #[test]
    fn parts_of_a_cpu() {
        for (text, millicores) in [("1500m", 1500), ("1.5", 1500), ("2", 2000), ("0.001", 1)] {
            assert_eq!(
                text.parse::<Millicores>().unwrap(),
                Millicores(millicores),
                "{text}"
            );
        }
        for text in ["", "m", "0", "0m", "-1", "1.5c", "0.0001"] {
            assert!(text.parse::<Millicores>().is_err(), "{text}");
        }
    }

    #[test]
    fn durations() {
        for (text, milliseconds) in [
            ("0", 0),
            ("0s", 0),
            ("168h0m0s", 604_800_000),
            ("1m30s", 90_000),
            ("1.5s", 1500),
            ("500ms", 500),
            ("+2m", 120_000),
        ] {
            assert_eq!(
                duration(text),
                Some(Duration::from_millis(milliseconds)),
                "{text}"
            );
        }
        for text in ["", "5", "-5s", "s", "1d", "1s2", "1 s", "9999999999h", ".s"] {
            assert_eq!(duration(text), None, "{text}");
        }
    }
}
