//! The states of a bundle, from the moment at which it is found.
//!
//! ```text
//!  upload:  Receiving ─┐ Whole
//!                      ▼
//!  stick:  Searching ──► Verifying ── Good ──► Importing ── Imported ──► Taken
//!            │ │  Found     │ │ Open       ▲       │ ▲ Next (image)        ▲ a stick may be pulled out
//!            │ │            │ └──► Asking ─┘ Good  │ │ Unpacked (bytes)
//!            │ │            │         │            └─┘ File ──► Keeping ── Imported ──► Taken
//!            │ └─ Failed ───┴─ Failed ┴─── Failed ─┴──────► Refused(reason)
//!            └─ NoBundle ─────────────────────────────────► Empty
//!
//!  Searching ── Waits (another bundle is taken) ──► Waiting ── Found ──► Verifying
//!
//!  a stick that is pulled out is forgotten while it is searched or waits and when it is over; else it is refused, because it is gone too early
//! ```

use serde::Serialize;

/// How far a bundle is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Phase {
    /// A stick is looked through.
    Searching,
    /// Another bundle is taken first.
    Waiting {
        /// The origin of that one.
        origin: String,
    },
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
    /// A person at the machine is asked to approve it.
    Asking {
        /// The time that the person has, in seconds.
        seconds: u64,
    },
    /// Its images are unpacked.
    Importing {
        /// The image's reference.
        image: String,
        /// Its number, from 1.
        number: usize,
        /// Number of images.
        count: usize,
        /// Bytes of the image that are unpacked.
        bytes: u64,
        /// Bytes of the image.
        total: u64,
    },
    /// Its files of extensions are copied.
    Keeping {
        /// Number of its images, which are in the store.
        images: usize,
        /// The file's name.
        file: String,
        /// Its number, from 1.
        number: usize,
        /// Number of files.
        count: usize,
    },
    /// Its images are in the store.
    Taken {
        /// Their references.
        images: Vec<String>,
    },
    /// It is not used, or not all of it.
    Refused {
        /// Number of images that were in the store by then: the first ones.
        imported: usize,
        /// Why.
        reason: String,
        /// The action by which a person can help.
        advice: String,
    },
    /// There is no bundle on the stick, and nothing is wrong with that.
    Empty,
}

/// A change in the course of a bundle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Another bundle is taken first; its origin.
    Waits(String),
    /// More bytes of the file have come.
    Received(u64),
    /// The file is whole, or was found; its blobs have this many bytes.
    Found(u64),
    /// More bytes were compared.
    Read(u64),
    /// The bundle is good, but nobody has approved it: a person has this many seconds to do so.
    Open(u64),
    /// The bundle is good and allowed. The name of its first image, and the number of all.
    Good(String, usize),
    /// The next image begins; its name.
    Next(String),
    /// The number of the image's bytes that are unpacked, and the number of all its bytes.
    Unpacked(u64, u64),
    /// All images are in the store, and a file of an extension begins: its name, its number from 1, and the number of all files.
    File(String, usize, usize),
    /// All images are in the store, and all files; their names.
    Imported(Vec<String>),
    /// The bundle is refused, or a step failed.
    Failed {
        /// Why.
        reason: String,
        /// The action by which a person can help.
        advice: String,
    },
    /// There is no bundle on the stick, which was plugged in for something else.
    NoBundle,
    /// The stick was pulled out.
    PulledOut,
}

/// The state after an event. `None`: the bundle is forgotten. An event that does not fit changes nothing.
pub fn next(phase: Phase, event: Event) -> Option<Phase> {
    use Phase::{
        Asking, Empty, Importing, Keeping, Receiving, Refused, Searching, Taken, Verifying, Waiting,
    };
    let imported = match &phase {
        Importing { number, .. } => number.saturating_sub(1),
        Keeping { images, .. } => *images,
        _ => 0,
    };
    Some(match (phase, event) {
        (Searching | Waiting { .. } | Taken { .. } | Refused { .. } | Empty, Event::PulledOut) => {
            return None;
        }
        (
            Verifying { .. } | Asking { .. } | Importing { .. } | Keeping { .. },
            Event::PulledOut,
        ) => Refused {
            imported,
            reason: "the stick was pulled out too early".to_owned(),
            advice: "Plug it in again, and leave it in until it can be pulled out.".to_owned(),
        },
        (Receiving { total, .. }, Event::Received(bytes)) => Receiving { bytes, total },
        (Searching, Event::Waits(origin)) => Waiting { origin },
        (Searching | Waiting { .. } | Receiving { .. }, Event::Found(total)) => {
            Verifying { bytes: 0, total }
        }
        (Searching, Event::NoBundle) => Empty,
        (Verifying { total, .. }, Event::Read(bytes)) => Verifying { bytes, total },
        (Verifying { .. }, Event::Open(seconds)) => Asking { seconds },
        (Verifying { .. } | Asking { .. }, Event::Good(image, count)) => importing(image, 1, count),
        (Importing { number, count, .. }, Event::Next(image)) => {
            importing(image, number + 1, count)
        }
        (
            Importing {
                image,
                number,
                count,
                ..
            },
            Event::Unpacked(bytes, total),
        ) => Importing {
            image,
            number,
            count,
            bytes,
            total,
        },
        (before, Event::File(file, number, count)) => keeping(before, file, number, count),
        (Importing { .. } | Keeping { .. }, Event::Imported(images)) => Taken { images },
        (
            Searching
            | Waiting { .. }
            | Receiving { .. }
            | Verifying { .. }
            | Asking { .. }
            | Importing { .. }
            | Keeping { .. },
            Event::Failed { reason, advice },
        ) => Refused {
            imported,
            reason,
            advice,
        },
        (unchanged, _) => unchanged,
    })
}

/// The state while a file is copied, which follows the images if the bundle has any.
fn keeping(before: Phase, file: String, number: usize, count: usize) -> Phase {
    let images = match &before {
        Phase::Verifying { .. } | Phase::Asking { .. } => 0,
        Phase::Importing { count, .. } => *count,
        Phase::Keeping { images, .. } => *images,
        _ => return before,
    };
    Phase::Keeping {
        images,
        file,
        number,
        count,
    }
}

fn importing(image: String, number: usize, count: usize) -> Phase {
    Phase::Importing {
        image,
        number,
        count,
        bytes: 0,
        total: 0,
    }
}

impl Phase {
    /// Whether nothing more happens to the bundle by itself.
    pub fn is_over(&self) -> bool {
        matches!(
            self,
            Phase::Taken { .. } | Phase::Refused { .. } | Phase::Empty
        )
    }

    /// One word.
    pub fn word(&self) -> &'static str {
        match self {
            Phase::Searching => "searching",
            Phase::Waiting { .. } => "waiting",
            Phase::Receiving { .. } => "receiving",
            Phase::Verifying { .. } => "verifying",
            Phase::Asking { .. } => "asking",
            Phase::Importing { .. } | Phase::Keeping { .. } => "importing",
            Phase::Taken { .. } => "taken",
            Phase::Refused { .. } => "refused",
            Phase::Empty => "empty",
        }
    }

    /// The share that is done, in percent, and further words: for tables and the console.
    pub fn detail(&self) -> String {
        match self {
            Phase::Searching | Phase::Empty => String::new(),
            Phase::Waiting { origin } => format!("for the bundle of {origin}"),
            Phase::Receiving { bytes, total } | Phase::Verifying { bytes, total } => {
                let percent = bytes.saturating_mul(100).checked_div(*total).unwrap_or(100);
                format!("{percent} %")
            }
            Phase::Asking { seconds } => {
                format!("waits up to {seconds} s for a person at the machine")
            }
            Phase::Importing {
                image,
                number,
                count,
                ..
            } => format!("{number} of {count}: {image}"),
            Phase::Keeping {
                file,
                number,
                count,
                ..
            } => format!("file {number} of {count}: {file}"),
            Phase::Taken { images } => images.join(", "),
            Phase::Refused { reason, .. } => reason.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn waiting() -> Phase {
        let origin = "sdb1".to_owned();
        Phase::Waiting { origin }
    }

    fn verifying(bytes: u64) -> Phase {
        Phase::Verifying { bytes, total: 9 }
    }

    fn receiving(bytes: u64) -> Phase {
        Phase::Receiving { bytes, total: 9 }
    }

    fn asking() -> Phase {
        Phase::Asking { seconds: 60 }
    }

    fn unpacked(bytes: u64) -> Phase {
        Phase::Importing {
            image: "a".to_owned(),
            number: 1,
            count: 2,
            bytes,
            total: 8,
        }
    }

    fn keeping(images: usize) -> Phase {
        Phase::Keeping {
            images,
            file: "f.raw".to_owned(),
            number: 1,
            count: 3,
        }
    }

    fn taken() -> Phase {
        Phase::Taken {
            images: vec!["a".to_owned(), "b".to_owned()],
        }
    }

    fn refused() -> Phase {
        refused_after(0)
    }

    /// Refused when so many images were in the store.
    fn refused_after(imported: usize) -> Phase {
        Phase::Refused {
            imported,
            reason: "no".to_owned(),
            advice: "Stop.".to_owned(),
        }
    }

    /// One event of each kind, by its name in the table.
    fn events() -> [(&'static str, Event); 13] {
        [
            ("waits", Event::Waits("sdb1".to_owned())),
            ("received", Event::Received(3)),
            ("found", Event::Found(9)),
            ("read", Event::Read(4)),
            ("open", Event::Open(60)),
            ("good", Event::Good("a".to_owned(), 2)),
            ("next", Event::Next("b".to_owned())),
            ("unpacked", Event::Unpacked(5, 8)),
            ("file", Event::File("f.raw".to_owned(), 1, 3)),
            (
                "imported",
                Event::Imported(vec!["a".to_owned(), "b".to_owned()]),
            ),
            (
                "failed",
                Event::Failed {
                    reason: "no".to_owned(),
                    advice: "Stop.".to_owned(),
                },
            ),
            ("no bundle", Event::NoBundle),
            ("pulled out", Event::PulledOut),
        ]
    }

    /// The events that change each state; all others leave it as it is. Being pulled out is tested below.
    #[test]
    fn every_event_in_every_state() {
        let failed = ("failed", refused());
        let rows: [(Phase, Vec<(&str, Phase)>); 10] = [
            (
                Phase::Searching,
                vec![
                    ("waits", waiting()),
                    ("found", verifying(0)),
                    ("no bundle", Phase::Empty),
                    failed.clone(),
                ],
            ),
            (waiting(), vec![("found", verifying(0)), failed.clone()]),
            (
                receiving(0),
                vec![
                    ("received", receiving(3)),
                    ("found", verifying(0)),
                    failed.clone(),
                ],
            ),
            (
                verifying(1),
                vec![
                    ("read", verifying(4)),
                    ("open", asking()),
                    ("good", importing("a".to_owned(), 1, 2)),
                    ("file", keeping(0)),
                    failed.clone(),
                ],
            ),
            (
                asking(),
                vec![
                    ("good", importing("a".to_owned(), 1, 2)),
                    ("file", keeping(0)),
                    failed.clone(),
                ],
            ),
            (
                unpacked(1),
                vec![
                    ("next", importing("b".to_owned(), 2, 2)),
                    ("unpacked", unpacked(5)),
                    ("file", keeping(2)),
                    ("imported", taken()),
                    failed,
                ],
            ),
            (
                keeping(2),
                vec![("imported", taken()), ("failed", refused_after(2))],
            ),
            (taken(), vec![]),
            (refused(), vec![]),
            (Phase::Empty, vec![]),
        ];
        for (before, changes) in rows {
            for (name, event) in events() {
                if name == "pulled out" {
                    continue;
                }
                let change = changes.iter().find(|(event, _)| *event == name);
                let expected = change.map_or_else(|| before.clone(), |(_, after)| after.clone());
                assert_eq!(
                    next(before.clone(), event),
                    Some(expected),
                    "{before:?}, {name}"
                );
            }
        }
    }

    #[test]
    fn a_stick_that_is_pulled_out_is_forgotten_or_was_pulled_out_too_early() {
        for before in [
            Phase::Searching,
            waiting(),
            taken(),
            refused(),
            Phase::Empty,
        ] {
            assert_eq!(next(before.clone(), Event::PulledOut), None, "{before:?}");
        }
        for before in [verifying(1), asking(), unpacked(1), keeping(2)] {
            let after = next(before, Event::PulledOut).unwrap();
            assert_eq!(after.detail(), "the stick was pulled out too early");
        }
        assert_eq!(next(receiving(1), Event::PulledOut), Some(receiving(1)));
    }

    #[test]
    fn the_images_before_the_one_that_failed_are_in_the_store() {
        let third = || importing("c".to_owned(), 3, 5);
        let failed = Event::Failed {
            reason: "no".to_owned(),
            advice: "Stop.".to_owned(),
        };
        for event in [failed, Event::PulledOut] {
            let after = next(third(), event).unwrap();
            assert!(matches!(after, Phase::Refused { imported: 2, .. }));
        }
    }

    #[test]
    fn a_bundle_without_bytes_is_done() {
        assert_eq!(Phase::Verifying { bytes: 0, total: 0 }.detail(), "100 %");
        assert_eq!(verifying(4).detail(), "44 %");
    }
}
