//! The hand-over from one generation to the next: a sealed memfd of JSON that init keeps over the swap.
//!
//! With it the next generation need not fetch the machine config and the leases again, so that the API is back at once. It also names the
//! caller of an upgrade, so that the caller is told the outcome, whatever it is.

use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};

use super::failed::FailedImages;
use crate::base::sealed_json;
use crate::containers::InForce;
use crate::network::Lease;
use crate::store::event_log::ActorId;
use crate::trust::{self, OwnCertificates};

/// The name under which init keeps the hand-over.
pub const NAME: &str = "handover";
/// The name of the hand-over in errors.
const WHAT: &str = "the hand-over";
/// Size limit, in bytes: a machine config is at most 1 MiB.
const LARGEST: u64 = 4 << 20;

/// An upgrade whose outcome is not known yet.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PendingUpgrade {
    /// The call that asked for it.
    pub actor: ActorId,
    /// The image's name as the caller gave it.
    pub image: String,
    /// Digest of its manifest.
    pub digest: String,
    /// The version that was running.
    pub from: String,
    /// The new version.
    pub to: String,
    /// The order of its boot entry, on a machine that boots from its disk.
    #[serde(default)]
    pub boot_entry: Option<u32>,
}

/// All that is left to the next generation. Unknown fields of a newer version are ignored, missing ones of an older version are empty, so
/// that both directions of an upgrade can read it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Handover {
    /// The machine config as it was given.
    pub machine_config: Option<String>,
    /// The network's leases: in force at once, then confirmed in the background.
    pub leases: Vec<Lease>,
    /// The upgrade under way.
    pub upgrade: Option<PendingUpgrade>,
    /// Images that failed on this machine.
    pub failed: FailedImages,
    /// The images that containers run; a record on a disk is newer.
    pub images_in_force: InForce,
    /// Services that were up; the upgrade succeeds when they are up again.
    pub services_up: Vec<String>,
    /// The API's certificates and their keys. They go where the config goes, which has the authority's key: from memory to memory.
    #[serde(deserialize_with = "trust::if_readable")]
    pub own_certificates: Option<OwnCertificates>,
}

impl Handover {
    /// Writes the hand-over to a sealed memfd.
    pub fn to_memfd(&self) -> anyhow::Result<OwnedFd> {
        sealed_json::to_memfd(NAME, WHAT, self)
    }

    /// Reads the hand-over of the previous generation.
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
            own_certificates: Some(OwnCertificates::for_tests()),
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
        let other_form = r#"{"own_certificates":[1],"machine_config":"x"}"#;
        assert_eq!(serde_json::from_str::<Handover>(other_form).unwrap(), newer);
    }
}
