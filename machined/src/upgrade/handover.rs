//! The hand-over from one generation to the next: a sealed memfd of JSON that init keeps over the swap.
//!
//! With it the next generation need not fetch the machine config and the leases again, so that the API is back at once. It also names the
//! caller of an upgrade, so that the caller is told the outcome, whatever it is.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};

use super::evidence::Evidence;
use super::failed::FailedImages;
use super::floor::Floor;
use super::origin::ReleaseOrigin;
use super::other_form::if_readable;
use crate::base::{Exit, sealed_json};
use crate::containers::{ImageDigests, InForce, Updates};
use crate::init_link::StartReason;
use crate::network::{Lease, Ours};
use crate::pins::PinRecord;
use crate::store::event_log::ActorId;
use crate::trust::{Granted, OwnCertificates, PinnedKey};
use crate::values::{Digest, Version};

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
    /// The date in the image's config.
    #[serde(default)]
    pub created: Option<String>,
    /// The floor that the new version sets once it is committed.
    #[serde(default)]
    pub floor: Option<Version>,
    /// What rules and keys of later judge the new version by.
    #[serde(flatten)]
    pub evidence: Evidence,
}

impl PendingUpgrade {
    /// The digests by which its image is known; none if they are unknown.
    pub fn digests(&self) -> Option<ImageDigests> {
        Some(ImageDigests {
            digest: self.digest.parse().ok()?,
            index: self.evidence.index,
        })
    }

    /// Returns the upgrade that brought a version, as far as the table of the versions on the disk knows it.
    pub fn of_installed(origin: &ReleaseOrigin, evidence: &Evidence) -> Self {
        PendingUpgrade {
            image: origin.image.clone(),
            digest: origin.digest.to_string(),
            to: origin.version.clone(),
            created: origin.created.clone(),
            evidence: evidence.clone(),
            ..PendingUpgrade::default()
        }
    }

    /// Returns the image that the new version comes from; None if it is unknown.
    pub fn origin(&self) -> Option<ReleaseOrigin> {
        Some(ReleaseOrigin {
            version: self.to.clone(),
            image: self.image.clone(),
            digest: self.digest.parse().ok()?,
            created: self.created.clone(),
        })
    }
}

/// All that is left to the next generation. Unknown fields of a newer version are ignored, missing ones of an older version are empty, so
/// that both directions of an upgrade can read it. A field that another version has given another form is empty too if its loss does no harm
/// ([`if_readable`]); with any other the whole cannot be read, and a version on trial gives itself up.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Handover {
    /// The machine config as it was given.
    pub machine_config: Option<String>,
    /// The network's leases: in force at once, then confirmed in the background.
    #[serde(deserialize_with = "if_readable")]
    pub leases: Vec<Lease>,
    /// The addresses and routes that this generation has added or adopted: the next one may remove them, and if workloads are kept, no
    /// others. Also the MTUs that it has replaced. None from a version that did not leave them.
    pub network: Option<Ours>,
    /// The upgrade under way.
    pub upgrade: Option<PendingUpgrade>,
    /// The upgrade before was rolled back, and its caller was told: what is left of it has still to be taken back.
    #[serde(deserialize_with = "if_readable")]
    pub rolled_back: bool,
    /// Images that failed on this machine.
    #[serde(deserialize_with = "if_readable")]
    pub failed: FailedImages,
    /// The machine's floor; one on a disk may be higher.
    pub floor: Option<Floor>,
    /// The image that the version came from which leaves this.
    #[serde(deserialize_with = "if_readable")]
    pub origin: Option<ReleaseOrigin>,
    /// The images that containers run; a record on a disk is newer.
    #[serde(deserialize_with = "if_readable")]
    pub images_in_force: InForce,
    /// The images that wait behind the names that containers follow, with their approvals; a record on a disk is newer.
    #[serde(deserialize_with = "if_readable")]
    pub image_updates: Updates,
    /// The images that are pinned; a record on a disk is newer.
    #[serde(deserialize_with = "if_readable")]
    pub pins: PinRecord,
    /// The images whose files were compared with their seals in this boot of the kernel.
    #[serde(deserialize_with = "if_readable")]
    pub images_checked: BTreeSet<Digest>,
    /// Services that were up; the upgrade succeeds when they are up again.
    pub services_up: Vec<String>,
    /// Services that were left running, into the next generation.
    #[serde(deserialize_with = "if_readable")]
    pub left_running: Vec<String>,
    /// Services that ran and were ended for the change of generations, each with the reason. Versions before do not leave them.
    #[serde(deserialize_with = "if_readable")]
    pub ended: BTreeMap<String, String>,
    /// The exits of those that have ended since, by the process. Versions before do not leave them.
    #[serde(deserialize_with = "if_readable")]
    pub exits: BTreeMap<u32, Exit>,
    /// The API's certificates and their keys. They go where the config goes, which has the authority's key: from memory to memory.
    #[serde(deserialize_with = "if_readable")]
    pub own_certificates: Option<OwnCertificates>,
    /// The API's key, if no authority signs for the node: operators compare its fingerprint.
    pub pinned_key: PinnedKey,
    /// The certificate that a control plane has signed, with its key.
    #[serde(deserialize_with = "if_readable")]
    pub granted_certificate: Option<Granted>,
    /// Fields of another version: one on trial leaves them to the version before as it received them.
    #[serde(flatten)]
    pub of_another_version: serde_json::Map<String, serde_json::Value>,
}

impl Handover {
    /// Writes the hand-over to a sealed memfd.
    pub fn to_memfd(&self) -> anyhow::Result<OwnedFd> {
        sealed_json::to_memfd(NAME, WHAT, self)
    }

    /// Returns the image that the running version came from: that of the upgrade which this start tries, else that of the generation which
    /// left the hand-over.
    pub fn origin_of(&self, start: StartReason, running: &str) -> Option<ReleaseOrigin> {
        let tried = self.upgrade.as_ref().filter(|upgrade| {
            // After a rollback the previous version runs, even if the other one had the same name.
            start != StartReason::Rollback && upgrade.to == running
        });
        match tried {
            Some(upgrade) => upgrade.origin(),
            None => self.origin.clone().filter(|it| it.version == running),
        }
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
    use crate::pins::{ByCall, Pins, Terms};
    use crate::values::ImageReference;
    use std::fs::File;
    use std::io::Write as _;

    fn origin(version: &str) -> ReleaseOrigin {
        ReleaseOrigin {
            version: version.to_owned(),
            image: format!("r.io/installer:{version}"),
            digest: Digest::of(version.as_bytes()),
            created: None,
        }
    }

    fn pending(version: &str) -> PendingUpgrade {
        PendingUpgrade {
            to: version.to_owned(),
            image: format!("r.io/installer:{version}"),
            digest: Digest::of(version.as_bytes()).to_string(),
            ..PendingUpgrade::default()
        }
    }

    #[test]
    fn the_hand_over_tells_the_origin_of_what_runs() {
        use StartReason::{Fresh, Next, Restart, Rollback};
        let left = |origin, upgrade| Handover {
            origin,
            upgrade,
            ..Handover::default()
        };
        let (old, new) = (|| Some(origin("v0.1.0")), || Some(origin("v0.2.0")));
        let to_new = || Some(pending("v0.2.0"));
        for (handover, start, running, expected) in [
            (left(old(), to_new()), Next, "v0.2.0", new()),
            (left(old(), to_new()), Restart, "v0.2.0", new()),
            (left(None, to_new()), Next, "v0.2.0", new()),
            (left(old(), to_new()), Rollback, "v0.1.0", old()),
            (left(None, to_new()), Rollback, "v0.1.0", None),
            (left(old(), None), Restart, "v0.1.0", old()),
            (left(old(), None), Fresh, "v0.1.0", old()),
            // The same version anew, from another image.
            (
                left(old(), Some(pending("v0.1.0"))),
                Rollback,
                "v0.1.0",
                old(),
            ),
            // What cannot be right is not told.
            (left(old(), None), Restart, "v0.2.0", None),
            (left(None, Some(PendingUpgrade::default())), Next, "", None),
            (Handover::default(), Next, "v0.1.0", None),
        ] {
            let told = handover.origin_of(start, running);
            assert_eq!(told, expected, "{start:?} {running} {handover:?}");
        }
    }

    #[test]
    fn a_handover_comes_back_as_it_was_and_cannot_be_changed() {
        let handover = Handover {
            machine_config: Some("version: v1alpha1".into()),
            own_certificates: Some(OwnCertificates::for_tests()),
            exits: [(70, Exit::Code(7)), (71, Exit::Signal(9))].into(),
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

    #[tokio::test]
    async fn pins_go_to_a_generation_without_a_disk() {
        let image: ImageReference = "r.io/web:v1".parse().unwrap();
        let pins = Pins::default();
        let call = ByCall {
            terms: Terms::default(),
            during: "v0.1.0".into(),
            for_upgrade: false,
        };
        pins.pin(vec![image.clone()], &call).await.unwrap();
        let handover = Handover {
            pins: pins.record(),
            ..Handover::default()
        };
        let read = Handover::from_memfd(&handover.to_memfd().unwrap()).unwrap();
        assert_eq!(read, handover);

        // An empty directory changes nothing; a record in it is newer.
        let state = tempfile::tempdir().unwrap();
        let next = Pins::new(read.pins);
        next.open(state.path()).unwrap();
        assert_eq!(next.record(), pins.record());
        assert!(next.unpin(&image).await);
        let after = Pins::new(pins.record());
        after.open(state.path()).unwrap();
        assert_eq!(after.record(), PinRecord::default());
    }

    #[test]
    fn other_versions_are_understood() {
        let older: Handover = serde_json::from_str("{}").unwrap();
        assert_eq!(older, Handover::default());
        let newer: Handover =
            serde_json::from_str(r#"{"moon":true,"machine_config":"x"}"#).unwrap();
        assert_eq!(newer.machine_config.as_deref(), Some("x"));
    }

    /// Another version may give a field another form: a number stands for it here, which is the form of none.
    #[test]
    fn a_field_of_another_form_costs_itself_alone_if_that_does_no_harm() {
        let rows = [
            ("machine_config", false),
            ("leases", true),
            ("network", false),
            ("upgrade", false),
            ("rolled_back", true),
            ("failed", true),
            ("floor", false),
            ("origin", true),
            ("images_in_force", true),
            ("image_updates", true),
            ("pins", true),
            ("images_checked", true),
            ("services_up", false),
            ("left_running", true),
            ("ended", true),
            ("exits", true),
            ("own_certificates", true),
            ("pinned_key", false),
            ("granted_certificate", true),
        ];
        let whole = serde_json::to_value(Handover {
            machine_config: Some("x".into()),
            ..Handover::default()
        });
        let whole = whole.unwrap();
        let fields: BTreeSet<&str> = rows.iter().map(|(field, _)| *field).collect();
        let of_whole = whole.as_object().unwrap().keys().map(String::as_str);
        assert_eq!(fields, of_whole.collect(), "each field has a row");
        for (field, is_lost_alone) in rows {
            let mut left = whole.clone();
            left[field] = 7.into();
            let read = serde_json::from_value::<Handover>(left);
            let config = read.as_ref().map(|read| read.machine_config.as_deref());
            assert_eq!(config.is_ok(), is_lost_alone, "{field}: {config:?}");
            assert!(!is_lost_alone || config.unwrap() == Some("x"), "{field}");
        }
    }

    /// A version on trial writes it anew for the version before, which may be newer or older.
    #[test]
    fn fields_of_another_version_are_written_as_they_were_read() {
        let left = r#"{"services_up":["web"],"moons":{"io":[1]}}"#;
        let mut read: Handover = serde_json::from_str(left).unwrap();
        read.network = Some(Ours::default());
        let written = serde_json::to_value(read).unwrap();
        assert_eq!(written["moons"]["io"][0], 1);
        assert_eq!(written["services_up"][0], "web");
    }

    /// Other versions have the evidence among the keys of the upgrade itself, and `null` where nothing is known.
    #[test]
    fn an_upgrade_has_its_evidence_among_its_own_keys() {
        let index = Digest::of(b"index");
        let mut upgrade = pending("v0.2.0");
        upgrade.evidence.index = Some(index);
        let written = serde_json::to_value(&upgrade).unwrap();
        assert_eq!(written["index"], index.to_string());
        let read = |index: serde_json::Value| {
            let mut record = written.clone();
            record["index"] = index;
            record["signed_by"] = serde_json::Value::Null;
            serde_json::from_value::<PendingUpgrade>(record).unwrap()
        };
        assert_eq!(read(index.to_string().into()), upgrade);
        for unknown in [serde_json::Value::Null, "sha512:1".into(), 7.into()] {
            assert_eq!(read(unknown), pending("v0.2.0"));
        }
    }

    #[test]
    fn certificates_of_another_form_are_none() {
        let own = OwnCertificates::for_tests();
        let text = serde_json::to_string(&own).unwrap();
        let read = |own: &str| {
            let left = format!(r#"{{"own_certificates":{own}}}"#);
            let left: Handover = serde_json::from_str(&left).unwrap();
            left.own_certificates
        };
        assert_eq!(read(&text).as_ref(), Some(&own));
        for other in ["null", "7", r#"{"authority":"AA=="}"#, r#"{"server":[]}"#] {
            assert_eq!(read(other), None, "{other}");
        }
        let newer = text.replacen('{', r#"{"moon":true,"#, 1);
        assert_eq!(read(&newer).as_ref(), Some(&own));
    }
}
