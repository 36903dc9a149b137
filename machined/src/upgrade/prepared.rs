//! A version that is prepared for a reboot, which starts it as the next generation.
//!
//! It is in memory: the sealed memfd that the installer handed over. init keeps the memfd and its description too, so that a machined that
//! restarts in the same generation still has them; the next generation does not.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use super::handover::PendingUpgrade;
use super::installer_output::InstallerOutput;
use crate::base::sealed_json;
use crate::init_link::{InitLink, Scope};

/// The names under which init keeps root filesystem and description.
const ROOTFS: &str = "prepared-rootfs";
const FACTS: &str = "prepared-facts";
/// The name of the description in errors.
const WHAT: &str = "the description of the prepared version";
/// Size limit, in bytes: a name, two versions, a few digests, and the labels of the image.
const LARGEST: u64 = 128 << 10;

/// The version that a reboot starts.
#[derive(Debug)]
pub struct Prepared {
    /// The root filesystem.
    pub delivery: InstallerOutput,
    /// The upgrade and its caller.
    pub upgrade: PendingUpgrade,
}

#[derive(Serialize, Deserialize)]
struct Facts {
    blake3: String,
    /// Absent in descriptions by earlier versions.
    #[serde(default)]
    signature: Option<String>,
    /// As above.
    #[serde(default)]
    takes_sockets: bool,
    upgrade: PendingUpgrade,
}

impl Prepared {
    /// Returns its size in memory, in bytes.
    pub fn bytes(&self) -> u64 {
        let size = rustix::fs::fstat(&self.delivery.memfd).map(|stat| stat.st_size);
        size.map_or(0, |size| u64::try_from(size).unwrap_or(0))
    }

    /// Leaves it with init.
    pub async fn keep(&self, init: &InitLink) -> anyhow::Result<()> {
        let facts = Facts {
            blake3: self.delivery.blake3.to_hex().to_string(),
            signature: self.delivery.signature.clone(),
            takes_sockets: self.delivery.takes_sockets,
            upgrade: self.upgrade.clone(),
        };
        let facts = sealed_json::to_memfd(FACTS, WHAT, &facts)?;
        init.keep(ROOTFS, Scope::Generation, &self.delivery.memfd)
            .await?;
        init.keep(FACTS, Scope::Generation, &facts).await
    }

    /// Makes init drop it.
    pub async fn drop_kept(init: &InitLink) -> anyhow::Result<()> {
        init.drop_kept(FACTS).await?;
        init.drop_kept(ROOTFS).await
    }

    /// Finds the version that an earlier machined of this generation prepared; a problem is logged and otherwise ignored.
    pub fn adopt(kept: &mut BTreeMap<String, OwnedFd>) -> Option<Self> {
        let (rootfs, facts) = (kept.remove(ROOTFS), kept.remove(FACTS));
        let (rootfs, facts) = rootfs.zip(facts)?;
        Self::from_parts(rootfs, &facts)
            .inspect_err(|error| {
                tracing::error!("the version that was prepared is lost: {error:#}")
            })
            .ok()
    }

    fn from_parts(memfd: OwnedFd, facts: &OwnedFd) -> anyhow::Result<Self> {
        let facts: Facts = sealed_json::from_memfd(facts, WHAT, LARGEST)?;
        let blake3 = blake3::Hash::from_hex(&facts.blake3).context("parse its digest")?;
        Ok(Prepared {
            delivery: InstallerOutput {
                memfd,
                blake3,
                boot_entry: facts.upgrade.boot_entry,
                takes_sockets: facts.takes_sockets,
                signature: facts.signature,
            },
            upgrade: facts.upgrade,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn kept() -> BTreeMap<String, OwnedFd> {
        let facts = Facts {
            blake3: blake3::hash(b"r").to_hex().to_string(),
            signature: None,
            takes_sockets: true,
            upgrade: PendingUpgrade {
                to: "v0.2.0".to_owned(),
                boot_entry: Some(7),
                ..PendingUpgrade::default()
            },
        };
        let rootfs = rustix::fs::memfd_create("t", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let facts = sealed_json::to_memfd(FACTS, WHAT, &facts).unwrap();
        BTreeMap::from([(ROOTFS.to_owned(), rootfs), (FACTS.to_owned(), facts)])
    }

    #[test]
    fn what_was_prepared_is_found_again() {
        let found = Prepared::adopt(&mut kept()).unwrap();
        assert_eq!(found.upgrade.to, "v0.2.0");
        assert_eq!(found.delivery.blake3, blake3::hash(b"r"));
        assert_eq!(found.delivery.boot_entry, Some(7));
        assert!(found.delivery.takes_sockets);
    }

    #[test]
    fn half_of_it_is_nothing() {
        for missing in [ROOTFS, FACTS] {
            let mut kept = kept();
            kept.remove(missing);
            assert!(Prepared::adopt(&mut kept).is_none(), "without {missing}");
            assert!(kept.is_empty());
        }
    }
}
