//! A replacement of the whole machine by another image: an upgrade after which nothing is left on EPHEMERAL. The mark on STATE makes it true
//! whenever the power fails.
//!
//! ```text
//!   upgrade --wipe ──► the mark ──► installer ──► EPHEMERAL is erased ──► reboot ──► the new version: the mark? EPHEMERAL is erased again
//!                         │                                              ▲            (nothing is lost: it has no data yet), the mark goes
//!                         └──────────────── the power fails ─────────────┘
//! ```
//!
//! The decision: the version that leaves erases, as the next one may not know the mark; and the next one erases as well, since the power may
//! have failed between the boot entry and the erasure.

use std::path::Path;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use crate::base::{removal, whole_file};
use crate::state_partition::REPLACEMENT;

/// A replacement that is under way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replacement {
    /// The version that takes the machine over.
    pub version: String,
    /// The kernel's boot during which it began (`/proc/sys/kernel/random/boot_id`).
    pub begun_in: String,
}

/// The meaning of the mark for a start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// The new version starts: nothing may be left on EPHEMERAL.
    Erase,
    /// The replacement did not happen: the mark is void.
    Void,
}

impl Replacement {
    /// Returns its meaning for this version in this boot of the kernel.
    pub fn at_start(&self, version: &str, kernel_boot: &str) -> Mark {
        match self.version == version && self.begun_in != kernel_boot {
            true => Mark::Erase,
            false => Mark::Void,
        }
    }

    /// Reads the mark; None without one.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn load(state: &Path) -> anyhow::Result<Option<Self>> {
        whole_file::read_json(&state.join(REPLACEMENT.name))
    }

    /// Writes the mark.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn save(&self, state: &Path) -> anyhow::Result<()> {
        whole_file::replace_json(&state.join(REPLACEMENT.name), REPLACEMENT.mode, self)
    }

    /// Removes the mark; a missing one is fine.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn remove(state: &Path) -> anyhow::Result<()> {
        let file = state.join(REPLACEMENT.name);
        removal::file(&file).with_context(|| format!("remove {}", file.display()))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn only_the_next_boot_into_the_version_erases() {
        let mark = Replacement {
            version: "v0.2.0".to_owned(),
            begun_in: "one".to_owned(),
        };
        for (version, kernel_boot, expected) in [
            ("v0.2.0", "two", Mark::Erase),
            // The installer failed, and machined started again.
            ("v0.2.0", "one", Mark::Void),
            // The version was rolled back, or never started.
            ("v0.1.0", "two", Mark::Void),
            ("v0.1.0", "one", Mark::Void),
        ] {
            let found = mark.at_start(version, kernel_boot);
            assert_eq!(found, expected, "{version} in {kernel_boot}");
        }
    }

    #[test]
    fn a_mark_lasts_until_it_is_removed() {
        let state = tempfile::tempdir().unwrap();
        assert_eq!(Replacement::load(state.path()).unwrap(), None);
        let mark = Replacement {
            version: "v0.2.0".to_owned(),
            begun_in: "one".to_owned(),
        };
        mark.save(state.path()).unwrap();
        assert_eq!(Replacement::load(state.path()).unwrap(), Some(mark));
        Replacement::remove(state.path()).unwrap();
        Replacement::remove(state.path()).unwrap();
        assert_eq!(Replacement::load(state.path()).unwrap(), None);
    }
}
