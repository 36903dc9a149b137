//! The states of a bundle, from the moment at which it is found.
//!
//! ```text
//!  upload:  Receiving ─┐ Whole
//!                      ▼
//!  stick:  Searching ──► Verifying ── Good ──► Importing ── Imported ──► Taken
//!              │  Found      │                    │ ▲ Next (image)         ▲ a stick may be pulled out
//!              │             │                    └─┘
//!              └── Failed ───┴────── Failed ──────┴──────► Refused(reason)
//!
//!  a stick that is pulled out is forgotten while it is searched and when it is over; else it is refused, because it is gone too early
//! ```

use serde::Serialize;

/// How far a bundle is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Phase {
    /// A stick is looked through.
    Searching,
    /// The file is being uploaded.
    Receiving {
        /// Bytes that are here.
        bytes: u64,
        /// Size of the file.
        total: u64,
    },
    /// Every byte is compared with its digest.
    Verifying {
        /// Bytes of blobs that were compared.
        bytes: u64,
        /// Bytes of all blobs.
        total: u64,
    },
    /// Its images are unpacked.
    Importing {
        /// The image's reference.
        image: String,
        /// Its number, from 1.
        number: usize,
        /// Number of images.
        count: usize,
    },
    /// Its images are in the store.
    Taken {
        /// Their references.
        images: Vec<String>,
    },
    /// Nothing of it is used.
    Refused {
        /// Why.
        reason: String,
    },
}

/// What happens to a bundle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// More bytes of the file have come.
    Received(u64),
    /// The file is whole, or was found; its blobs have this many bytes.
    Found(u64),
    /// More bytes were compared.
    Read(u64),
    /// It is good and allowed; this image is the first of so many.
    Good(String, usize),
    /// The next image.
    Next(String),
    /// All images are in the store.
    Imported(Vec<String>),
    /// It is refused, or something failed.
    Failed(String),
    /// The stick was pulled out.
    PulledOut,
}

/// The state after an event. `None`: the bundle is forgotten. An event that does not fit changes nothing.
pub fn next(phase: Phase, event: Event) -> Option<Phase> {
    use Phase::{Importing, Receiving, Refused, Searching, Taken, Verifying};
    Some(match (phase, event) {
        (Searching | Taken { .. } | Refused { .. }, Event::PulledOut) => return None,
        (Verifying { .. } | Importing { .. }, Event::PulledOut) => Refused {
            reason: "the stick was pulled out too early; plug it in again".to_owned(),
        },
        (Receiving { total, .. }, Event::Received(bytes)) => Receiving { bytes, total },
        (Searching | Receiving { .. }, Event::Found(total)) => Verifying { bytes: 0, total },
        (Verifying { total, .. }, Event::Read(bytes)) => Verifying { bytes, total },
        (Verifying { .. }, Event::Good(image, count)) => Importing {
            image,
            number: 1,
            count,
        },
        (Importing { number, count, .. }, Event::Next(image)) => Importing {
            image,
            number: number + 1,
            count,
        },
        (Importing { .. }, Event::Imported(images)) => Taken { images },
        (
            Searching | Receiving { .. } | Verifying { .. } | Importing { .. },
            Event::Failed(reason),
        ) => Refused { reason },
        (unchanged, _) => unchanged,
    })
}

impl Phase {
    /// Whether nothing more happens to the bundle by itself.
    pub fn is_over(&self) -> bool {
        matches!(self, Phase::Taken { .. } | Phase::Refused { .. })
    }

    /// One word.
    pub fn word(&self) -> &'static str {
        match self {
            Phase::Searching => "searching",
            Phase::Receiving { .. } => "receiving",
            Phase::Verifying { .. } => "verifying",
            Phase::Importing { .. } => "importing",
            Phase::Taken { .. } => "taken",
            Phase::Refused { .. } => "refused",
        }
    }

    /// The share that is done, in percent, and further words: for tables and the console.
    pub fn detail(&self) -> String {
        match self {
            Phase::Searching => String::new(),
            Phase::Receiving { bytes, total } | Phase::Verifying { bytes, total } => {
                let percent = bytes.saturating_mul(100).checked_div(*total).unwrap_or(100);
                format!("{percent} %")
            }
            Phase::Importing {
                image,
                number,
                count,
            } => format!("{number} of {count}: {image}"),
            Phase::Taken { images } => images.join(", "),
            Phase::Refused { reason } => reason.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verifying(bytes: u64) -> Phase {
        Phase::Verifying { bytes, total: 9 }
    }

    fn importing(image: &str, number: usize) -> Phase {
        Phase::Importing {
            image: image.to_owned(),
            number,
            count: 2,
        }
    }

    fn taken() -> Phase {
        Phase::Taken {
            images: vec!["a".to_owned(), "b".to_owned()],
        }
    }

    fn refused(reason: &str) -> Phase {
        Phase::Refused {
            reason: reason.to_owned(),
        }
    }

    /// One event of each kind.
    fn events() -> [Event; 8] {
        [
            Event::Received(3),
            Event::Found(9),
            Event::Read(4),
            Event::Good("a".to_owned(), 2),
            Event::Next("b".to_owned()),
            Event::Imported(vec!["a".to_owned(), "b".to_owned()]),
            Event::Failed("no".to_owned()),
            Event::PulledOut,
        ]
    }

    /// The states after each of these events; None in a cell: the event does not fit.
    #[test]
    fn every_event_in_every_state() {
        let receiving = |bytes| Phase::Receiving { bytes, total: 9 };
        let gone = refused("the stick was pulled out too early; plug it in again");
        let failed = Some(refused("no"));
        let rows: [(Phase, [Option<Phase>; 7]); 6] = [
            (
                Phase::Searching,
                [
                    None,
                    Some(verifying(0)),
                    None,
                    None,
                    None,
                    None,
                    failed.clone(),
                ],
            ),
            (
                receiving(0),
                [
                    Some(receiving(3)),
                    Some(verifying(0)),
                    None,
                    None,
                    None,
                    None,
                    failed.clone(),
                ],
            ),
            (
                verifying(1),
                [
                    None,
                    None,
                    Some(verifying(4)),
                    Some(importing("a", 1)),
                    None,
                    None,
                    failed.clone(),
                ],
            ),
            (
                importing("a", 1),
                [
                    None,
                    None,
                    None,
                    None,
                    Some(importing("b", 2)),
                    Some(taken()),
                    failed,
                ],
            ),
            (taken(), [const { None }; 7]),
            (refused("altered"), [const { None }; 7]),
        ];
        for (before, after) in rows {
            for (event, expected) in events().into_iter().zip(after) {
                let expected = expected.unwrap_or_else(|| before.clone());
                assert_eq!(
                    next(before.clone(), event.clone()),
                    Some(expected),
                    "{before:?}, {event:?}"
                );
            }
        }
        for (before, after) in [
            (Phase::Searching, None),
            (receiving(1), Some(receiving(1))),
            (verifying(1), Some(gone.clone())),
            (importing("a", 1), Some(gone)),
            (taken(), None),
            (refused("altered"), None),
        ] {
            assert_eq!(next(before.clone(), Event::PulledOut), after, "{before:?}");
        }
    }

    #[test]
    fn a_bundle_without_bytes_is_done() {
        assert_eq!(Phase::Verifying { bytes: 0, total: 0 }.detail(), "100 %");
        assert_eq!(verifying(4).detail(), "44 %");
    }
}
