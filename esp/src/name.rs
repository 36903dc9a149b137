//! The file names of boot entries, which decide what is booted: order, version, and tries.

use std::{fmt, str::FromStr};

use thiserror::Error;

use instar_values::Version;

/// Tries of a new version before the loader takes the one before it.
pub const TRIES: u32 = 3;

/// Limit of systemd-boot's counter, which takes one off `left` and adds one to `done` before each start.
const MOST: u32 = i32::MAX as u32;

/// Tries of a version that has not been healthy yet: `+3`, then `+2-1`, `+1-2`, `+0-3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tries {
    /// Number of tries left. With none left, the entry comes after all others.
    pub left: u32,
    /// Number of tries made.
    pub done: u32,
}

impl Tries {
    /// The tries of a version that was never started.
    pub const NEW: Self = Self {
        left: TRIES,
        done: 0,
    };

    /// The tries after the loader has started the entry once more.
    #[must_use]
    pub fn after_a_start(self) -> Self {
        Self {
            left: self.left.saturating_sub(1),
            done: self.done.saturating_add(1).min(MOST),
        }
    }

    /// Whether no try is left.
    #[must_use]
    pub fn exhausted(self) -> bool {
        self.left == 0
    }
}

impl fmt::Display for Tries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.done {
            0 => write!(f, "+{}", self.left),
            done => write!(f, "+{}-{done}", self.left),
        }
    }
}

/// The name of an entry's file in `loader/entries`: `instar-ORDER-VERSION.conf`, with [`Tries`] before `.conf` until it was
/// healthy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryName {
    /// The loader takes the highest one first. Each change takes a higher one than all before, so that an older version can come before a
    /// newer one.
    pub order: u32,
    /// The version in the slot.
    pub version: Version,
    /// `None` when it is blessed: it was healthy once.
    pub tries: Option<Tries>,
}

impl EntryName {
    /// Whether it was healthy once.
    #[must_use]
    pub fn is_blessed(&self) -> bool {
        self.tries.is_none()
    }

    /// The same entry, blessed.
    #[must_use]
    pub fn blessed(&self) -> Self {
        Self {
            tries: None,
            ..self.clone()
        }
    }

    /// The path of the file from the volume's root.
    #[must_use]
    pub fn path(&self) -> String {
        format!("{}/{self}", crate::paths::ENTRIES)
    }

    /// The loader's id of the entry, without a counter, as in its variable `LoaderEntrySelected`.
    #[must_use]
    pub fn id(&self) -> String {
        self.blessed().to_string()
    }
}

impl fmt::Display for EntryName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "instar-{}-{}", self.order, self.version)?;
        if let Some(tries) = self.tries {
            tries.fmt(f)?;
        }
        f.write_str(".conf")
    }
}

/// The file name is not one of an entry of ours.
#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "{0:?} does not name a boot entry of Instar: expected something like instar-7-v0.2.0+3.conf"
)]
pub struct NotAnEntryName(pub String);

impl FromStr for EntryName {
    type Err = NotAnEntryName;

    fn from_str(text: &str) -> Result<Self, NotAnEntryName> {
        parse(text).ok_or_else(|| NotAnEntryName(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<EntryName> {
    let name = text.strip_suffix(".conf")?.strip_prefix("instar-")?;
    let (order, rest) = name.split_once('-')?;
    let (version, tries) = match rest.split_once('+') {
        Some((version, counter)) => (version, Some(parse_tries(counter)?)),
        None => (rest, None),
    };
    Some(EntryName {
        order: number(order)?,
        version: version.parse().ok()?,
        tries,
    })
}

fn parse_tries(counter: &str) -> Option<Tries> {
    let (left, done) = match counter.split_once('-') {
        Some((left, done)) => (number(left)?, number(done)?),
        None => (number(counter)?, 0),
    };
    Some(Tries { left, done })
}

/// Parses digits without a sign or leading zeros, at most [`MOST`]: each number has one spelling only.
fn number(text: &str) -> Option<u32> {
    let plain =
        text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    text.parse().ok().filter(|number| plain && *number <= MOST)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn name(text: &str) -> EntryName {
        text.parse().unwrap()
    }

    #[test]
    fn names_are_read_and_written_alike() {
        for text in [
            "instar-1-v0.1.0.conf",
            "instar-7-v0.2.0+3.conf",
            "instar-7-v0.2.0+2-1.conf",
            "instar-7-v0.2.0+0-3.conf",
            "instar-12-v1.0.0-rc.1+1-2.conf",
        ] {
            assert_eq!(name(text).to_string(), text);
        }
        let read = name("instar-12-v1.0.0-rc.1+1-2.conf");
        assert_eq!(
            (read.order, read.version.to_string()),
            (12, "v1.0.0-rc.1".into())
        );
        assert_eq!(read.tries, Some(Tries { left: 1, done: 2 }));
        assert_eq!(read.id(), "instar-12-v1.0.0-rc.1.conf");
        assert_eq!(read.path(), "loader/entries/instar-12-v1.0.0-rc.1+1-2.conf");
    }

    /// systemd-boot never writes `+3-0`, but reads it; two names of one state would be two files.
    #[test]
    fn other_names_are_not_ours() {
        for text in [
            "",
            ".conf",
            "instar.conf",
            "instar-1.conf",
            "instar-v0.1.0.conf",
            "instar-01-v0.1.0.conf",
            "instar-1-0.1.0.conf",
            "instar-1-v0.1.0.CONF",
            "instar-1-v0.1.0+.conf",
            "instar-1-v0.1.0+3-.conf",
            "instar-1-v0.1.0+x.conf",
            "instar-1-v0.1.0+-1.conf",
            "instar-1-v0.1.0+3+2.conf",
            "instar-4294967296-v0.1.0.conf",
            "INSTAR~1.CON",
            "arch-1-v0.1.0.conf",
        ] {
            assert_eq!(text.parse::<EntryName>(), Err(NotAnEntryName(text.into())));
        }
    }

    #[test]
    fn the_loader_counts_down_to_exhaustion() {
        let mut tries = Tries::NEW;
        let mut seen = vec![tries.to_string()];
        while !tries.exhausted() {
            tries = tries.after_a_start();
            seen.push(tries.to_string());
        }
        assert_eq!(seen, ["+3", "+2-1", "+1-2", "+0-3"]);
        assert_eq!(tries.after_a_start().to_string(), "+0-4");
    }
}
