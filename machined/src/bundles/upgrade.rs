//! Whether a stick upgrades the machine: a decision about the installers in its bundle.
//!
//! ```text
//!  no installer ─────────────────────────────────► NoInstaller
//!  the newest is not newer than what runs ───────► NotNewer
//!  `upgrade: true` is not in BundleConfig ───────► NotAllowed
//!  it failed here, or this bundle began it often ► TriedBefore
//!  else ─────────────────────────────────────────► Planned ─ after the import ─► Begun, or Refused by the checks of every upgrade
//! ```

use serde::Serialize;

use super::kept::MOST_UPGRADES;
use crate::values::{Digest, ImageReference, Version};

/// An installer in a bundle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installer {
    /// Its reference.
    pub reference: ImageReference,
    /// The digest of its manifest.
    pub digest: Digest,
    /// The version that it installs.
    pub version: Version,
}

impl Installer {
    /// The name of exactly this image. It has the tag, which the upgrade compares with the image's version.
    pub fn pinned_name(&self) -> String {
        match self.reference.digest() {
            Some(_) => self.reference.to_string(),
            None => format!("{}@{}", self.reference, self.digest),
        }
    }
}

/// Whether the machine is upgraded by a stick.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Upgrade {
    /// There is no installer in the bundle.
    NoInstaller,
    /// The running version is as new.
    NotNewer {
        /// The newest version in the bundle.
        version: String,
        /// The running one.
        running: String,
    },
    /// The config does not allow it.
    NotAllowed {
        /// The newest version in the bundle.
        version: String,
    },
    /// It was tried before, and the machine does not run it.
    TriedBefore {
        /// The version.
        version: String,
        /// Why it does not run, if that is known.
        reason: Option<String>,
    },
    /// It begins once the images are here.
    Planned {
        /// The version.
        version: String,
    },
    /// It has begun.
    Begun {
        /// The version.
        version: String,
    },
    /// Its checks have refused it.
    Refused {
        /// The version.
        version: String,
        /// Why.
        reason: String,
    },
}

/// The facts that decide about an upgrade, beside the bundle.
#[derive(Debug, Clone, Copy)]
pub struct Standing<'a> {
    /// Whether the config allows upgrades by sticks.
    pub allowed: bool,
    /// The running version.
    pub running: &'a str,
    /// How many upgrades from this bundle have begun before.
    pub begun_before: u8,
}

/// Decides about the newest of the installers. `failure` tells why an installer failed on this machine. Returns the installer if the
/// machine is to be upgraded.
pub fn plan<'i>(
    installers: &'i [Installer],
    standing: Standing<'_>,
    failure: impl Fn(Digest) -> Option<String>,
) -> (Upgrade, Option<&'i Installer>) {
    let newest = installers
        .iter()
        .max_by(|one, other| one.version.cmp(&other.version));
    let Some(installer) = newest else {
        return (Upgrade::NoInstaller, None);
    };
    let version = installer.version.to_string();
    // A running version without a place in the order is older than nothing.
    let running = standing.running.parse::<Version>();
    if running.is_ok_and(|running| installer.version <= running) {
        let running = standing.running.to_owned();
        return (Upgrade::NotNewer { version, running }, None);
    }
    if !standing.allowed {
        return (Upgrade::NotAllowed { version }, None);
    }
    let reason = failure(installer.digest);
    if standing.begun_before >= MOST_UPGRADES || reason.is_some() {
        return (Upgrade::TriedBefore { version, reason }, None);
    }
    (Upgrade::Planned { version }, Some(installer))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn installer(version: &str) -> Installer {
        Installer {
            reference: format!("r.io/installer:{version}").parse().unwrap(),
            digest: Digest::of(version.as_bytes()),
            version: version.parse().unwrap(),
        }
    }

    #[test]
    fn the_name_of_exactly_one_image_has_its_tag() {
        let mut installer = installer("v0.2.0");
        let digest = installer.digest;
        let pinned = format!("r.io/installer:v0.2.0@{digest}");
        assert_eq!(installer.pinned_name(), pinned);
        installer.reference = pinned.parse().unwrap();
        assert_eq!(installer.pinned_name(), pinned);
    }

    #[test]
    fn only_a_newer_version_that_may_and_was_not_tried_is_installed() {
        let version = || "v0.2.0".to_owned();
        let not_newer = |running: &str| Upgrade::NotNewer {
            version: version(),
            running: running.to_owned(),
        };
        let tried = |reason: Option<&str>| Upgrade::TriedBefore {
            version: version(),
            reason: reason.map(str::to_owned),
        };
        let planned = || Upgrade::Planned { version: version() };
        let not_allowed = Upgrade::NotAllowed { version: version() };
        let two: &[&str] = &["v0.1.5", "v0.2.0"];
        for (versions, allowed, running, begun_before, failed, expected) in [
            (&[][..], true, "v0.1.0", 0, None, Upgrade::NoInstaller),
            (two, true, "v0.1.0", 0, None, planned()),
            (two, true, "nightly", 0, None, planned()),
            (two, false, "v0.1.0", 0, None, not_allowed),
            (two, true, "v0.2.0", 0, None, not_newer("v0.2.0")),
            (two, false, "v0.10.0", 3, None, not_newer("v0.10.0")),
            // The power failed meanwhile, or there was no room: it is tried again, and not for ever.
            (two, true, "v0.1.0", 2, None, planned()),
            (two, true, "v0.1.0", 3, None, tried(None)),
            (
                two,
                true,
                "v0.1.0",
                0,
                Some("it hung"),
                tried(Some("it hung")),
            ),
        ] {
            let installers: Vec<_> = versions.iter().map(|it| installer(it)).collect();
            let standing = Standing {
                allowed,
                running,
                begun_before,
            };
            let failure = |_| failed.map(str::to_owned);
            let (upgrade, chosen) = plan(&installers, standing, failure);
            let is_planned = matches!(expected, Upgrade::Planned { .. });
            assert_eq!(upgrade, expected, "{versions:?} {running}");
            assert_eq!(chosen.is_some(), is_planned, "{versions:?} {running}");
        }
    }
}
