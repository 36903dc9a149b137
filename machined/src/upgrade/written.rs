//! What an installer image says of itself, kept with the version that its program has written: the keys of a later config judge the version by
//! it, when the image itself is gone.
//!
//! It is what a signature of the whole image covers, and no more. It does not say what is on the disk by now: whoever can write to the disk
//! without this machine is stopped by Secure Boot alone.

use serde::{Deserialize, Serialize};

use super::image_trust::Starts;
use super::rootfs_trust::{Demand, RootfsTrust, Untrusted};
use crate::oci::ImageConfig;
use instar_pki::rootfs_signature;

/// The labels of Instar begin with this; no signature covers others.
const OF_INSTAR: &str = "dev.instar.";
/// The label with the digest of the root filesystem.
const ROOTFS: &str = "dev.instar.rootfs.blake3";
/// Size limit, in bytes: the labels of a real image have two KiB. A larger one is not kept, and is no image of Instar's builder.
const LARGEST: usize = 32 << 10;

/// The part of an installer image's config that signatures cover.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenImage(ImageConfig);

/// What a medium carries of its version's installer image.
#[derive(Deserialize)]
struct Described {
    /// BLAKE3 of the UKI.
    uki: String,
    image: WrittenImage,
}

impl WrittenImage {
    /// Takes it from an image's config; none if that is too large to be kept.
    pub fn of(config: &ImageConfig) -> Option<Self> {
        let labels = config.labels.iter();
        let labels = labels.filter(|(name, _)| name.starts_with(OF_INSTAR));
        let kept = ImageConfig {
            entrypoint: config.entrypoint.clone(),
            environment: config.environment.clone(),
            user: config.user.clone(),
            working_dir: config.working_dir.clone(),
            labels: labels
                .map(|(name, it)| (name.clone(), it.clone()))
                .collect(),
            layers: config.layers.clone(),
            ..ImageConfig::default()
        };
        let size = serde_json::to_vec(&kept).ok()?.len();
        (size <= LARGEST).then_some(WrittenImage(kept))
    }

    /// Takes it from what a medium carries of its version's image; none if that is of another UKI than this one, by its BLAKE3. Who could change it on
    /// the disk could change the record of an upgrade too: a signature has to be in it.
    pub fn of_medium(description: &[u8], uki: &str) -> Option<Self> {
        let described: Described = serde_json::from_slice(description).ok()?;
        let is_of_this = described.uki == uki;
        is_of_this.then_some(described.image)
    }

    /// The digest of the root filesystem that it has.
    fn rootfs(&self) -> Option<blake3::Hash> {
        blake3::Hash::from_hex(self.0.labels.get(ROOTFS)?).ok()
    }
}

impl RootfsTrust {
    /// Checks a version that is written already, as its image was checked before: its root filesystem, and the whole image. Returns how it may
    /// start.
    ///
    /// # Errors
    /// A signature is demanded that it does not have, or nothing was kept to check it by.
    pub fn check_written(
        &self,
        version: &str,
        written: Option<&WrittenImage>,
    ) -> Result<Starts, Untrusted> {
        if self.demand == Demand::No {
            return Ok(Starts::AnyWay);
        }
        let Some((image, rootfs)) = written.and_then(|image| Some((&image.0, image.rootfs()?)))
        else {
            return Err(Untrusted::Unrecorded {
                version: version.to_owned(),
                demand: self.demand.words(),
            });
        };
        let signature = image.labels.get(rootfs_signature::LABEL);
        self.check(version, &rootfs, signature.map(String::as_str))?;
        self.check_image(version, image)
    }

    /// Checks a version that is written already and that the firmware starts: under Secure Boot it judges the UKI itself, so only what it has
    /// revoked is refused here. A version that it does not start must not become the one that every boot begins with.
    ///
    /// # Errors
    /// A key of the config has to have signed it, and none has; or the firmware has revoked it.
    pub fn check_boot(
        &self,
        version: &str,
        written: Option<&WrittenImage>,
    ) -> Result<Starts, Untrusted> {
        match (self.check_written(version, written), self.demand) {
            (Err(revoked @ Untrusted::Revoked { .. }), _) => Err(revoked),
            (Err(_), Demand::BySecureBoot) => Ok(Starts::ThroughFirmware),
            (checked, _) => checked,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::boot_loader::SecureBoot;
    use crate::upgrade::rootfs_trust::signer_for_tests::Signer;
    use crate::values::Digest;
    use instar_pki::installer_signature::{self, LABEL, PROGRAM, UKI_LABEL};

    /// An image whose root filesystem one key has signed, and whose whole another may have.
    fn image(of_rootfs: Option<&Signer>, of_all: Option<&Signer>) -> ImageConfig {
        let rootfs = blake3::hash(b"r");
        let mut config = ImageConfig {
            entrypoint: vec![PROGRAM.to_owned()],
            layers: vec![Digest::of(b"layer")],
            ..ImageConfig::default()
        };
        let labels = &mut config.labels;
        labels.insert(ROOTFS.to_owned(), rootfs.to_hex().to_string());
        labels.insert("org.example".to_owned(), "not signed".to_owned());
        if let Some(signer) = of_rootfs {
            let signature = signer.sign(&rootfs_signature::statement("v0.2.0", &rootfs));
            labels.insert(rootfs_signature::LABEL.to_owned(), signature);
        }
        if let Some(signer) = of_all {
            let statement = installer_signature::statement(&config.labels, &config.layers);
            let signature = signer.sign(&statement.unwrap());
            config.labels.insert(LABEL.to_owned(), signature);
        }
        config
    }

    /// As the record on STATE has it.
    fn recorded(config: Option<&ImageConfig>) -> Option<WrittenImage> {
        let written = config.and_then(WrittenImage::of);
        let json = serde_json::to_vec(&written).unwrap();
        let read = serde_json::from_slice(&json).unwrap();
        assert_eq!(written, read);
        read
    }

    #[test]
    fn keys_of_later_judge_what_was_written() {
        let (owner, stranger) = (Signer::new(), Signer::new());
        let by = |rootfs, all| recorded(Some(&image(rootfs, all)));
        let (signed, unsigned) = (by(Some(&owner), Some(&owner)), by(None, None));
        let other_uki = by(Some(&owner), Some(&stranger));
        let half = by(Some(&owner), None);
        let keys = [owner.key.clone()];
        for (written, without_keys, with_keys) in [
            (&signed, true, true),
            (&unsigned, true, false),
            (&other_uki, true, false),
            (&half, true, false),
            (&recorded(None), true, false),
        ] {
            for (keys, is_admitted) in [(&keys[..0], without_keys), (&keys[..], with_keys)] {
                let trust = RootfsTrust::of(SecureBoot::Off, keys);
                let judged = trust.check_written("v0.2.0", written.as_ref());
                assert_eq!(judged.is_ok(), is_admitted, "{judged:?} of {written:?}");
            }
        }
        let trust = RootfsTrust::of(SecureBoot::Off, &keys);
        let judged = trust.check_written("v0.3.0", signed.as_ref());
        assert!(matches!(judged, Err(Untrusted::Other { .. })), "{judged:?}");
    }

    #[test]
    fn the_firmware_judges_what_it_starts_unless_it_has_revoked_it() {
        let (owner, stranger) = (Signer::new(), Signer::new());
        let (good, revoked) = (Digest::of(b"good"), Digest::of(b"revoked"));
        let signed = |uki: Digest| {
            let mut config = image(Some(&owner), None);
            config.labels.insert(UKI_LABEL.to_owned(), uki.hex());
            let statement = installer_signature::statement(&config.labels, &config.layers);
            let signature = owner.sign(&statement.unwrap());
            config.labels.insert(LABEL.to_owned(), signature);
            recorded(Some(&config))
        };
        let unsigned = recorded(Some(&image(None, None)));
        let by_firmware = |key: &Signer| SecureBoot::On {
            keys: vec![key.key.clone()],
            revoked: vec![revoked],
        };
        let keys = [owner.key.clone()];
        for (written, off, with_keys, on, on_by_another) in [
            (signed(good), true, true, true, true),
            (signed(revoked), true, true, false, true),
            (unsigned, true, false, true, true),
            (None, true, false, true, true),
        ] {
            for (state, keys, is_taken) in [
                (SecureBoot::Off, &[][..], off),
                (SecureBoot::Off, &keys, with_keys),
                (by_firmware(&owner), &[], on),
                // Its labels could be anybody's.
                (by_firmware(&stranger), &[], on_by_another),
            ] {
                let trust = RootfsTrust::of(state, keys);
                let judged = trust.check_boot("v0.2.0", written.as_ref());
                assert_eq!(judged.is_ok(), is_taken, "{trust:?}: {judged:?}");
            }
        }
    }

    /// As `image media` writes it.
    #[test]
    fn a_version_from_a_medium_is_judged_by_what_that_carries() {
        let owner = Signer::new();
        let config = image(Some(&owner), Some(&owner));
        let description = serde_json::json!({
            "uki": "00ff",
            "image": {
                "entrypoint": config.entrypoint,
                "labels": config.labels,
                "layers": config.layers,
            },
        });
        let description = serde_json::to_vec(&description).unwrap();
        let written = WrittenImage::of_medium(&description, "00ff");
        assert!(written.is_some());
        let judged = |signer: &Signer| {
            let keys = [signer.key.clone()];
            let trust = RootfsTrust::of(SecureBoot::Off, &keys);
            trust.check_boot("v0.2.0", written.as_ref()).is_ok()
        };
        assert!(judged(&owner));
        assert!(!judged(&Signer::new()));
        assert_eq!(WrittenImage::of_medium(&description, "00fe"), None);
        assert_eq!(WrittenImage::of_medium(b"{}", "00ff"), None);
    }

    #[test]
    fn an_image_that_is_too_large_to_be_kept_is_not_kept() {
        let mut config = image(None, None);
        config
            .labels
            .insert("other".to_owned(), "x".repeat(LARGEST));
        assert!(WrittenImage::of(&config).is_some());
        config.environment.push("x".repeat(LARGEST));
        assert!(WrittenImage::of(&config).is_none());
    }
}
