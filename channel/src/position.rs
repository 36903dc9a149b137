//! The position of a machine in a channel.

use instar_values::Digest;
use serde::{Deserialize, Serialize};

use crate::List;

/// The newest list that a machine has seen. It is kept over reboots: a mirror that shows an older list is told from one that is up to date.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// The list's serial.
    pub serial: u64,
    /// The digest of the list's bytes.
    pub list: Digest,
}

/// Why a list with a good signature is not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Replayed {
    /// An older one.
    #[error(
        "this is an old list, with the serial {serial}; this machine has seen the serial {known}: the server, or somebody between, shows old lists"
    )]
    Older {
        /// Its serial.
        serial: u64,
        /// The newest serial that was seen.
        known: u64,
    },
    /// Another list with the serial that was seen.
    #[error(
        "there are two lists with the serial {0}, both signed: the publisher has published from two places; publish again with a higher serial"
    )]
    Forked(u64),
}

impl Position {
    /// Returns the position after a list. `before`: the position until now.
    ///
    /// # Errors
    /// The list is an older one, or another one with the same serial.
    pub fn after(before: Option<&Self>, list: &List, bytes: &[u8]) -> Result<Self, Replayed> {
        let next = Position {
            serial: list.serial,
            list: Digest::of(bytes),
        };
        match before {
            Some(known) if next.serial < known.serial => Err(Replayed::Older {
                serial: next.serial,
                known: known.serial,
            }),
            Some(known) if next.serial == known.serial && next.list != known.list => {
                Err(Replayed::Forked(next.serial))
            }
            _ => Ok(next),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::change::tests::list_of;

    #[test]
    fn a_list_is_never_older_than_the_one_before() {
        let mut list = list_of(&["v0.2.0"]);
        let mut after = |before: Option<&Position>, serial, bytes: &[u8]| {
            list.serial = serial;
            Position::after(before, &list, bytes)
        };
        let third = after(None, 3, b"3").unwrap();
        assert_eq!(after(Some(&third), 3, b"3"), Ok(third.clone()));
        assert_eq!(after(Some(&third), 9, b"9").unwrap().serial, 9);
        assert_eq!(
            after(Some(&third), 2, b"2"),
            Err(Replayed::Older {
                serial: 2,
                known: 3
            })
        );
        assert_eq!(after(Some(&third), 3, b"other"), Err(Replayed::Forked(3)));
    }
}
