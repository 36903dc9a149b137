//! What one generation leaves to the next: a sealed memfd of JSON that init keeps over the swap.
//!
//! It spares the next generation what it would have to ask for again (the machine config, the lease), so that the API
//! is back at once, and it tells who asked for an upgrade, so that the asker gets an answer whatever comes of it.

use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};

use super::failed::FailedImages;
use crate::base::sealed_json;
use crate::containers::InForce;
use crate::network::Lease;
use crate::store::event_log::ActorId;

/// The name that init keeps it under.
pub const NAME: &str = "handover";
/// Its name in errors.
const WHAT: &str = "the hand-over";
/// A machine config is at most 1 MiB.
const LARGEST: u64 = 4 << 20;

/// An upgrade whose outcome is not known yet.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PendingUpgrade {
    /// The call that asked for it.
    pub actor: ActorId,
    /// The image as asked for.
    pub image: String,
    /// Digest of its manifest.
    pub digest: String,
    /// The version that was running.
    pub from: String,
    /// The version that is to run.
    pub to: String,
    /// The order of its boot entry, on a machine that boots from its disk.
    #[serde(default)]
    pub boot_entry: Option<u32>,
}

/// Everything that is left to the next generation. Unknown fields of a newer version are ignored, missing ones of an
/// older version are empty: both directions of an upgrade read it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Handover {
    /// The machine config as it was given.
    pub machine_config: Option<String>,
    /// The network's leases: in force at once, confirmed in the background.
    pub leases: Vec<Lease>,
    /// The upgrade under way.
    pub upgrade: Option<PendingUpgrade>,
    /// Images that failed on this machine.
    pub failed: FailedImages,
    /// The images that containers run; what a disk says is newer.
    pub images_in_force: InForce,
    /// Services that were up; an upgrade is good when they are up again.
    pub services_up: Vec<String>,
}

impl Handover {
    /// Writes it to a sealed memfd.
    pub fn to_memfd(&self) -> anyhow::Result<OwnedFd> {
        sealed_json::to_memfd(NAME, WHAT, self)
    }

    /// Reads what the previous generation left.
    pub fn from_memfd(memfd: &OwnedFd) -> anyhow::Result<Self> {
        sealed_json::from_memfd(memfd, WHAT, LARGEST)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::fs::File;
    use std::io::Write as _;

    #[test]
    fn a_handover_comes_back_as_it_was_and_cannot_be_changed() {
        let handover = Handover {
            machine_config: Some("version: v1alpha1".into()),
            ..Handover::default()
        };
        let memfd = handover.to_memfd().unwrap();
        assert_eq!(Handover::from_memfd(&memfd).unwrap(), handover);
        assert!(
            File::from(memfd.try_clone().unwrap())
                .write_all(b"x")
                .is_err()
        );
        assert_eq!(Handover::from_memfd(&memfd).unwrap(), handover);
    }

    #[test]
    fn other_versions_are_understood() {
        let older: Handover = serde_json::from_str("{}").unwrap();
        assert_eq!(older, Handover::default());
        let newer: Handover =
            serde_json::from_str(r#"{"moon":true,"machine_config":"x"}"#).unwrap();
        assert_eq!(newer.machine_config.as_deref(), Some("x"));
    }
}
