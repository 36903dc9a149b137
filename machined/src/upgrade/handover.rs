//! What one generation leaves to the next: a sealed memfd of JSON that init keeps over the swap.
//!
//! It spares the next generation what it would have to ask for again (the machine config, the lease), so that the API
//! is back at once, and it tells who asked for an upgrade, so that the asker gets an answer whatever comes of it.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::OwnedFd;

use anyhow::Context as _;
use rustix::fs::{MemfdFlags, SealFlags};
use serde::{Deserialize, Serialize};

use super::failed::FailedImages;
use crate::event_log::ActorId;
use crate::network::Lease;

/// The name that init keeps it under.
pub const NAME: &str = "handover";
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
    /// Services that were up; an upgrade is good when they are up again.
    pub services_up: Vec<String>,
}

impl Handover {
    /// Writes it to a sealed memfd.
    pub fn to_memfd(&self) -> anyhow::Result<OwnedFd> {
        let memfd = rustix::fs::memfd_create(NAME, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .context("make the hand-over's memfd")?;
        let mut file = File::from(memfd);
        file.write_all(&serde_json::to_vec(self)?)
            .context("write the hand-over")?;
        let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
        rustix::fs::fcntl_add_seals(&file, seals).context("seal the hand-over")?;
        Ok(file.into())
    }

    /// Reads what the previous generation left.
    pub fn from_memfd(memfd: &OwnedFd) -> anyhow::Result<Self> {
        use std::os::unix::fs::FileExt as _;
        let file = File::from(memfd.try_clone().context("duplicate the hand-over")?);
        let length = file.metadata().context("look at the hand-over")?.len();
        anyhow::ensure!(length <= LARGEST, "the hand-over has {length} bytes");
        let mut json = vec![0; usize::try_from(length)?];
        file.read_exact_at(&mut json, 0)
            .context("read the hand-over")?;
        serde_json::from_slice(&json).context("parse the hand-over")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

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
