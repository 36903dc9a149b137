//! The files that machined keeps on STATE: their names, their modes, the source files that write them, and the effect of their loss.
//!
//! On a machine without a disk, files that outlive a generation are below `/var/lib/instar`. `docs/contracts.md` has the same table.

use std::sync::Mutex;

use crate::base::lock::Lock as _;

/// Why the last record could not be written; `None` once one could.
static LAST_FAILURE: Mutex<Option<String>> = Mutex::new(None);

/// A file on STATE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateFile {
    /// Its name below STATE's mount point.
    pub name: &'static str,
    /// Its permissions.
    pub mode: u32,
    /// The source file of machined that writes it.
    pub writer: &'static str,
    /// The effect of its loss.
    pub loss: &'static str,
}

impl StateFile {
    /// Notes whether the file could be written, for [`last_failure`].
    pub fn note_written(&self, written: &anyhow::Result<()>) {
        let failure = written.as_ref().err();
        *LAST_FAILURE.locked() = failure.map(|error| format!("{}: {error:#}", self.name));
    }
}

/// Returns why the last record could not be written; `None` if it could.
pub fn last_failure() -> Option<String> {
    LAST_FAILURE.locked().clone()
}

/// The machine config.
pub const MACHINE_CONFIG: StateFile = StateFile {
    name: "config.yaml",
    // The config contains the authority's key.
    mode: 0o600,
    writer: "config_source/persisted.rs",
    loss: "the machine waits for a config, closed to strangers while it holds data",
};

/// The machine's authority, and the authorities that it trusted.
pub const TRUST: StateFile = StateFile {
    name: "trust.json",
    // It may hold the authority's key.
    mode: 0o600,
    writer: "trust/remembered.rs",
    loss: "a machine that lost its config is closed to everybody",
};

/// The certificate that a control plane or a person has signed for this machine, with its key.
pub const GRANTED_CERTIFICATE: StateFile = StateFile {
    name: "certificate.json",
    mode: 0o600,
    writer: "trust/granted.rs",
    loss: "a machine without the authority's key asks its control plane for another certificate, or waits for a person's",
};

/// The upgrade under way.
pub const UPGRADE: StateFile = StateFile {
    name: "upgrade.json",
    mode: 0o600,
    writer: "upgrade/record.rs",
    loss: "a version on trial is judged without its predecessor's services, and nobody is told why it failed",
};

/// The replacement of the whole machine that is under way.
pub const REPLACEMENT: StateFile = StateFile {
    name: "replacement.json",
    mode: 0o644,
    writer: "upgrade/replacement.rs",
    loss: "if the power failed before EPHEMERAL was erased, it is not",
};

/// Images that failed here.
pub const FAILED_IMAGES: StateFile = StateFile {
    name: "failed-images.json",
    mode: 0o644,
    writer: "upgrade/failed.rs",
    loss: "an image that failed may be tried again",
};

/// Versions that ran, and upgrades that failed.
pub const UPGRADE_HISTORY: StateFile = StateFile {
    name: "upgrade-history.json",
    mode: 0o644,
    writer: "upgrade/history.rs",
    loss: "the history begins anew",
};

/// The oldest version that the machine takes.
pub const RELEASE_FLOOR: StateFile = StateFile {
    name: "release-floor.json",
    mode: 0o644,
    writer: "upgrade/floor.rs",
    loss: "no version before the running one is taken without force, until an upgrade has been committed",
};

/// The images that the versions on the disk came from.
pub const RELEASE_ORIGINS: StateFile = StateFile {
    name: "release-origins.json",
    mode: 0o644,
    writer: "upgrade/origin.rs",
    loss: "after a reboot nobody knows which image the running version came from",
};

/// The digest that each image's name was resolved to.
pub const IMAGES_IN_FORCE: StateFile = StateFile {
    name: "images-in-force.json",
    mode: 0o644,
    writer: "containers/in_force.rs",
    loss: "each container's name is looked up at its next start",
};

/// The images that wait behind the names that containers follow.
pub const IMAGE_UPDATES: StateFile = StateFile {
    name: "image-updates.json",
    mode: 0o644,
    writer: "containers/updates.rs",
    loss: "registries are asked again, approvals are forgotten, and an image that failed may be tried again",
};

/// The images that are pinned, and the names that meant them.
pub const IMAGE_PINS: StateFile = StateFile {
    name: "image-pins.json",
    mode: 0o644,
    writer: "pins/record.rs",
    loss: "pins by callers are gone, and the names of pinned images are resolved anew",
};

/// The channel that the machine follows: the newest list that it has seen, the release that it goes to, and those that it holds.
pub const UPGRADE_FOLLOW: StateFile = StateFile {
    name: "upgrade-follow.json",
    mode: 0o644,
    writer: "follow/record.rs",
    loss: "an old list may be taken, approvals and holds of releases are gone, and the delays are drawn anew",
};

/// The list of the channel, its signature and approvals that a person has brought last.
pub const CHANNEL_FILES: StateFile = StateFile {
    name: "channel-files.json",
    mode: 0o644,
    writer: "follow/record.rs",
    loss: "a machine that reaches no server of its channel waits until its list is brought again",
};

/// How often the machine has booted, started a generation, and gone back to a version.
pub const STARTS: StateFile = StateFile {
    name: "starts.json",
    mode: 0o644,
    writer: "upgrade/starts.rs",
    loss: "the counts begin anew",
};

/// Values that operators keep.
pub const META: StateFile = StateFile {
    name: "meta.json",
    // They may hold tokens.
    mode: 0o600,
    writer: "meta.rs",
    loss: "the values are gone",
};

/// All these files.
pub const ALL: [StateFile; 16] = [
    MACHINE_CONFIG,
    TRUST,
    GRANTED_CERTIFICATE,
    UPGRADE,
    REPLACEMENT,
    FAILED_IMAGES,
    UPGRADE_HISTORY,
    RELEASE_FLOOR,
    RELEASE_ORIGINS,
    IMAGES_IN_FORCE,
    IMAGE_UPDATES,
    IMAGE_PINS,
    UPGRADE_FOLLOW,
    CHANNEL_FILES,
    STARTS,
    META,
];

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn each_file_has_a_row_in_the_contracts() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let contracts = fs::read_to_string(root.join("../docs/contracts.md")).unwrap();
        for file in ALL {
            let row = format!(
                "| `{}` | {:o} | `{}` | {} |",
                file.name, file.mode, file.writer, file.loss
            );
            assert!(
                contracts.contains(&row),
                "docs/contracts.md lacks this row:\n{row}"
            );
        }
    }

    #[test]
    fn each_file_has_a_name_of_its_own_and_a_writer() {
        let names: BTreeSet<_> = ALL.iter().map(|file| file.name).collect();
        assert_eq!(names.len(), ALL.len());
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        for file in ALL {
            let writer = fs::read_to_string(sources.join(file.writer)).unwrap();
            assert!(
                writer.contains("state_partition::"),
                "{} does not write {}",
                file.writer,
                file.name
            );
            // Files with keys, or with an operator's values, are not for others.
            assert_eq!(
                file.mode & 0o022,
                0,
                "{} can be written by others",
                file.name
            );
        }
    }
}
