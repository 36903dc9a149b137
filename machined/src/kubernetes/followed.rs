//! An extension that follows its publisher: which file is in force, and which one waits for its window.
//!
//! ```text
//!              the list has a newer one          it is here, and the window is open
//!   in force ──────────────────────────► next ──────────────────────────────────────► in force
//! ```
//!
//! - The first file is in force at once, and so is the newest of another pattern: the owner has asked for it.
//! - Never an older one: a publisher that takes a file back takes none from a machine.
//! - A list that came in a bundle may be older than the one that was read last. It adds a newer file, and withdraws none.
//! - A file whose name stays and whose content changes is not taken: a new build needs a new version.
//!
//! Whether the file in force is a good one is found out by a trial, as for any extension ([`super::trial`]).
//!
//! Pure: what was and what the list says in, what is in force out. `sequences/kubernetes/published.rs` asks and fetches.

use instar_extension::{Architecture, Pattern, Sums};
use serde::{Deserialize, Serialize};

use crate::values::Digest;

/// A file of a publisher.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// Its name.
    pub file: String,
    /// The digest that the list has for it.
    pub digest: Digest,
}

impl Offer {
    /// The newest file of a list that matches.
    pub fn newest(list: &Sums, pattern: &Pattern) -> Option<Self> {
        let (_, newest) = list.newest(pattern, Architecture::OWN)?;
        Some(Offer {
            file: newest.file.clone(),
            digest: newest.digest,
        })
    }
}

/// The file that an extension has taken from its publisher.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Followed {
    /// The pattern by which it was taken.
    pattern: String,
    /// The file in force.
    pub in_force: Offer,
    /// The newer one that waits.
    #[serde(default)]
    pub next: Option<Offer>,
}

impl Followed {
    /// Returns the file that is taken after a look at the list. `before` is the one in the record.
    pub fn after(
        before: Option<Followed>,
        pattern: &Pattern,
        newest: Option<Offer>,
    ) -> Option<Self> {
        let before = before.filter(|before| before.pattern == pattern.to_string());
        match (before, newest) {
            (None, None) => None,
            (None, Some(first)) => Some(Followed {
                pattern: pattern.to_string(),
                in_force: first,
                next: None,
            }),
            (Some(before), None) => Some(before),
            (Some(before), Some(newest)) => {
                let version = |offer: &Offer| pattern.version_of(&offer.file, Architecture::OWN);
                let is_newer = version(&newest) > version(&before.in_force);
                Some(Followed {
                    next: is_newer.then_some(newest),
                    ..before
                })
            }
        }
    }

    /// Returns the newest file of a list whose age nobody knows, if it is newer than all that is known.
    pub fn if_newer(
        before: Option<&Followed>,
        pattern: &Pattern,
        offer: Option<Offer>,
    ) -> Option<Offer> {
        let before = before.filter(|before| before.pattern == pattern.to_string());
        let version = |offer: &Offer| pattern.version_of(&offer.file, Architecture::OWN);
        let known = before
            .into_iter()
            .flat_map(|it| [Some(&it.in_force), it.next.as_ref()]);
        let newest = known.flatten().filter_map(version).max();
        offer.filter(|offer| version(offer) > newest)
    }

    /// Puts the next one in force; returns it.
    pub fn switch(&mut self) -> Option<&Offer> {
        self.in_force = self.next.take()?;
        Some(&self.in_force)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn offer(version: &str) -> Offer {
        Offer {
            file: format!("k-v1.36.{version}-{}.raw", Architecture::OWN),
            digest: Digest::of(version.as_bytes()),
        }
    }

    fn pattern() -> Pattern {
        "k-v1.36.@v-%a.raw".parse().unwrap()
    }

    fn following(version: &str) -> Followed {
        Followed::after(None, &pattern(), Some(offer(version))).unwrap()
    }

    #[test]
    fn the_newest_file_of_the_own_architecture_is_found() {
        let lines = ["1", "10", "9"].map(|version| {
            let Offer { file, digest } = offer(version);
            format!("{}  {file}\n", digest.hex())
        });
        let other = format!("{}  k-v1.36.11-other.raw\n", "a".repeat(64));
        let list = Sums::parse(&(lines.concat() + &other)).unwrap();
        assert_eq!(Offer::newest(&list, &pattern()), Some(offer("10")));
        let none = "other-@v-%a.raw".parse().unwrap();
        assert_eq!(Offer::newest(&list, &none), None);
    }

    #[test]
    fn a_newer_file_waits_and_no_other_one_does() {
        let before = following("3");
        assert_eq!((&before.in_force, &before.next), (&offer("3"), &None));
        let after = |newest| Followed::after(Some(before.clone()), &pattern(), newest).unwrap();
        assert_eq!(after(Some(offer("4"))).next, Some(offer("4")));
        assert_eq!(after(Some(offer("2"))), before);
        assert_eq!(after(None), before);
        // Another content under the same name.
        let changed = Offer {
            digest: Digest::of(b"other"),
            ..offer("3")
        };
        assert_eq!(after(Some(changed)), before);
    }

    #[test]
    fn a_waiting_file_is_replaced_by_a_newer_one_and_given_up_with_its_publication() {
        let waiting = Followed::after(Some(following("3")), &pattern(), Some(offer("4")));
        let newer = Followed::after(waiting.clone(), &pattern(), Some(offer("5"))).unwrap();
        assert_eq!(newer.next, Some(offer("5")));
        let withdrawn = Followed::after(waiting.clone(), &pattern(), Some(offer("3"))).unwrap();
        assert_eq!(withdrawn.next, None);
        // A list that cannot be read says nothing.
        assert_eq!(Followed::after(waiting.clone(), &pattern(), None), waiting);
    }

    #[test]
    fn a_list_of_unknown_age_only_adds() {
        let waiting = Followed::after(Some(following("3")), &pattern(), Some(offer("5")));
        let newer = |before: Option<&Followed>, version| {
            Followed::if_newer(before, &pattern(), Some(offer(version)))
        };
        for old in ["2", "3", "4", "5"] {
            assert_eq!(newer(waiting.as_ref(), old), None, "{old}");
        }
        assert_eq!(newer(waiting.as_ref(), "6"), Some(offer("6")));
        assert_eq!(newer(None, "1"), Some(offer("1")));
        assert_eq!(Followed::if_newer(None, &pattern(), None), None);
        let other: Pattern = "k-v1.35.@v-%a.raw".parse().unwrap();
        let older = Offer {
            file: format!("k-v1.35.9-{}.raw", Architecture::OWN),
            digest: Digest::of(b"older"),
        };
        let wished = Followed::if_newer(waiting.as_ref(), &other, Some(older.clone()));
        assert_eq!(wished, Some(older));
    }

    #[test]
    fn the_next_one_comes_into_force_once() {
        let mut followed =
            Followed::after(Some(following("3")), &pattern(), Some(offer("4"))).unwrap();
        assert_eq!(followed.switch(), Some(&offer("4")));
        assert_eq!(followed, following("4"));
        assert_eq!(followed.switch(), None);
    }

    #[test]
    fn another_pattern_is_the_owners_wish_even_if_it_is_for_an_older_version() {
        let other: Pattern = "k-v1.35.@v-%a.raw".parse().unwrap();
        let older = Offer {
            file: format!("k-v1.35.9-{}.raw", Architecture::OWN),
            digest: Digest::of(b"older"),
        };
        let after = Followed::after(Some(following("3")), &other, Some(older.clone())).unwrap();
        assert_eq!((after.in_force, after.next), (older, None));
        assert_eq!(Followed::after(Some(following("3")), &other, None), None);
    }
}
