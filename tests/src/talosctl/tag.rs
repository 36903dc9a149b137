//! A server's version as the client parses it, and the upgrade method that the client chooses by it.

use std::cmp::Ordering;

/// The method of an upgrade.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Path {
    /// `MachineService/Upgrade`.
    Legacy,
    /// `ImageService/Pull`, `LifecycleService/Upgrade`, `MachineService/Reboot`.
    Lifecycle,
}

/// A tag: three numbers, and the identifiers of a pre-release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tag {
    numbers: [u64; 3],
    before: Vec<String>,
}

impl Tag {
    /// Parses a tag, with or without a `v`. Missing numbers are zero, and the part after a `+` is ignored.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let text = text.strip_prefix('v').unwrap_or(text);
        let text = text.split_once('+').map_or(text, |(text, _)| text);
        let (numbers, before) = text.split_once('-').unwrap_or((text, ""));
        let parts: Vec<&str> = numbers.split('.').collect();
        let mut read = [0; 3];
        if parts.len() > read.len() {
            return None;
        }
        for (number, part) in read.iter_mut().zip(parts) {
            *number = part.parse().ok()?;
        }
        let before = before.split('.').filter(|part| !part.is_empty());
        Some(Self {
            numbers: read,
            before: before.map(str::to_owned).collect(),
        })
    }

    /// Returns the method for this server.
    pub(super) fn path(&self) -> Path {
        let limit = |numbers, before: &[&str]| Self {
            numbers,
            before: before.iter().map(|part| (*part).to_owned()).collect(),
        };
        let after = limit([1, 13, 0], &["alpha", "2"]);
        let below = limit([2, 0, 0], &[]);
        if self.order(&after).is_gt() && self.order(&below).is_lt() {
            Path::Lifecycle
        } else {
            Path::Legacy
        }
    }

    /// Whether this version is older than the other.
    pub(super) fn is_below(&self, other: &Self) -> bool {
        self.order(other).is_lt()
    }

    /// Compares by precedence (<https://semver.org/#spec-item-11>).
    fn order(&self, other: &Self) -> Ordering {
        let by_number = self.numbers.cmp(&other.numbers);
        by_number.then_with(|| match (self.before.is_empty(), other.before.is_empty()) {
            (true, true) => Ordering::Equal,
            (true, false) => Ordering::Greater,
            (false, true) => Ordering::Less,
            (false, false) => parts_in_order(&self.before, &other.before),
        })
    }
}

fn parts_in_order(left: &[String], right: &[String]) -> Ordering {
    for (left, right) in left.iter().zip(right) {
        let order = match (left.parse::<u64>(), right.parse::<u64>()) {
            (Ok(left), Ok(right)) => left.cmp(&right),
            (Ok(_), Err(_)) => Ordering::Less,
            (Err(_), Ok(_)) => Ordering::Greater,
            (Err(_), Err(_)) => left.cmp(right),
        };
        if order.is_ne() {
            return order;
        }
    }
    left.len().cmp(&right.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_chooses_the_way_as_recorded() {
        for (tag, path) in [
            ("v0.1.0", Path::Legacy),
            ("v0.3.0-x", Path::Legacy),
            ("v1.12.0", Path::Legacy),
            ("v1.13.0-alpha.2", Path::Legacy),
            ("v1.13.0", Path::Lifecycle),
            ("v1.14.0", Path::Lifecycle),
            ("v1.14.0-x.1", Path::Lifecycle),
            ("v1.14.0+x.5", Path::Lifecycle),
            ("v2.0.0", Path::Legacy),
            ("v2026.8.1", Path::Legacy),
        ] {
            assert_eq!(Tag::parse(tag).map(|tag| tag.path()), Some(path), "{tag}");
        }
    }

    #[test]
    fn what_is_no_version_is_not_read() {
        for tag in ["v0.1.0", "v0.3.0-x.1", "v1.13", "2026.08.21", "v1.14.0+x.5"] {
            assert!(Tag::parse(tag).is_some(), "{tag}");
        }
        for tag in ["abc", "name-1", "v1.14.0_x", ""] {
            assert!(Tag::parse(tag).is_none(), "{tag}");
        }
    }
}
