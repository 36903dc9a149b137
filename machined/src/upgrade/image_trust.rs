//! Who may bring this machine a whole installer image: the check that makes an upgrade with a reboot as strict as one without.
//!
//! ```text
//! Secure Boot │ keys in the config │ the whole image (program, UKI, boot loader, labels)
//! ────────────┼────────────────────┼─────────────────────────────────────────────────────────────────────────────────
//!     off     │        none        │ nobody has to sign it
//!     off     │       some         │ one of the config's keys has to have signed it
//!      on     │        any         │ signed by a trusted key: its UKI must not be revoked; else the firmware judges it by a reboot
//! ```
//!
//! The image's program writes to the EFI system partition, and a reboot without Secure Boot starts whatever is there. So the program itself has
//! to be a trusted one: the signature covers all layers and the labels. It is checked by the image's config, before the image is downloaded;
//! the download is then compared with the layers' digests that the config names.

use instar_pki::installer_signature::{self, LABEL, PROGRAM, UKI_LABEL};

use super::check::Route;
use super::rootfs_trust::{Demand, RootfsTrust, Untrusted};
use crate::oci::ImageConfig;
use crate::values::Digest;

/// The ways by which a version may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Starts {
    /// All.
    AnyWay,
    /// Only a reboot: the firmware has to judge its UKI.
    ThroughFirmware,
}

impl Starts {
    /// Returns the route, or the only one that is allowed.
    #[must_use]
    pub fn route(self, route: Route) -> Route {
        match (self, route) {
            (Starts::ThroughFirmware, Route::Soft) => Route::Reboot(
                "no trusted key has signed its whole image, so only the firmware can tell whether its UKI is revoked",
            ),
            _ => route,
        }
    }
}

impl RootfsTrust {
    /// Checks an installer image by its config, as that of this version.
    pub fn check_image(&self, version: &str, config: &ImageConfig) -> Result<Starts, Untrusted> {
        if self.demand == Demand::No {
            return Ok(Starts::AnyWay);
        }
        let signer = match starts_the_program_alone(config) {
            true => installer_signature::signer(&self.keys, &config.labels, &config.layers),
            false => None,
        };
        match (signer, self.demand) {
            (Some(key), _) => {
                tracing::info!(
                    "the installer image of {version} is signed by the key {}",
                    key.fingerprint()
                );
                self.check_revocation(version, config)
            }
            // The firmware checks all that the image's program writes.
            (None, Demand::BySecureBoot) => Ok(Starts::ThroughFirmware),
            (None, _) => Err(self.unsigned_image(version, config)),
        }
    }

    /// Compares the UKI with those that the firmware has revoked by their digests.
    fn check_revocation(&self, version: &str, config: &ImageConfig) -> Result<Starts, Untrusted> {
        let uki = config.labels.get(UKI_LABEL);
        let Some(uki) = uki.and_then(|uki| Digest::from_hex(uki).ok()) else {
            return Ok(match self.demand {
                Demand::BySecureBoot => Starts::ThroughFirmware,
                Demand::No | Demand::ByConfig => Starts::AnyWay,
            });
        };
        match self.revoked.contains(&uki) {
            true => Err(Untrusted::Revoked {
                version: version.to_owned(),
                uki,
            }),
            false => Ok(Starts::AnyWay),
        }
    }

    fn unsigned_image(&self, version: &str, config: &ImageConfig) -> Untrusted {
        let (version, demand) = (version.to_owned(), self.demand.words());
        let keys = self.names();
        match config.labels.contains_key(LABEL) {
            true => Untrusted::OtherImage {
                version,
                demand,
                keys,
            },
            false => Untrusted::UnsignedImage {
                version,
                demand,
                keys,
            },
        }
    }
}

/// Whether the image starts its program, as root and without settings that no layer has: the signature does not cover them.
fn starts_the_program_alone(config: &ImageConfig) -> bool {
    config.entrypoint == [PROGRAM]
        && config.environment.is_empty()
        && config.user.is_empty()
        && config.working_dir.is_empty()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::boot_loader::SecureBoot;
    use crate::upgrade::rootfs_trust::signer_for_tests::Signer;

    /// Signs an image of these layers, and of a UKI of this digest.
    fn signed(by: &Signer, layers: &[Digest], uki: Digest) -> ImageConfig {
        let labels = [
            ("dev.instar.version", "v1.0.0".to_owned()),
            ("dev.instar.kernel.blake3", "00".repeat(32)),
            (UKI_LABEL, uki.hex()),
        ];
        let mut config = ImageConfig {
            entrypoint: vec![PROGRAM.to_owned()],
            labels: labels.map(|(name, value)| (name.to_owned(), value)).into(),
            layers: layers.to_vec(),
            ..ImageConfig::default()
        };
        let statement = installer_signature::statement(&config.labels, &config.layers);
        let signature = by.sign(&statement.unwrap());
        config.labels.insert(LABEL.to_owned(), signature);
        config
    }

    fn on(signer: &Signer, revoked: &[Digest]) -> SecureBoot {
        SecureBoot::On {
            keys: vec![signer.key.clone()],
            revoked: revoked.to_vec(),
        }
    }

    type Change = (&'static str, fn(&mut ImageConfig));

    /// Changes of an image that its maker has signed, each of them one that a registry can make.
    fn changes() -> Vec<Change> {
        vec![
            ("another UKI, so another layer", |it| {
                it.layers[1] = Digest::of(b"another UKI");
            }),
            ("a layer over it", |it| it.layers.push(Digest::of(b"over"))),
            ("another kernel's label", |it| {
                let label = "dev.instar.kernel.blake3".to_owned();
                it.labels.insert(label, "11".repeat(32));
            }),
            ("a floor", |it| {
                it.labels.insert("dev.instar.floor".into(), "v1.0.0".into());
            }),
            ("another program", |it| {
                it.entrypoint.insert(0, "/sh".into())
            }),
            ("a variable", |it| it.environment.push("A=b".into())),
            ("another user", |it| it.user.push('1')),
            ("another directory", |it| it.working_dir.push('/')),
        ]
    }

    #[test]
    fn the_configs_keys_sign_all_that_a_reboot_starts() {
        let (owner, stranger) = (Signer::new(), Signer::new());
        let trust = RootfsTrust::of(SecureBoot::Off, std::slice::from_ref(&owner.key));
        let layers = [Digest::of(b"soft"), Digest::of(b"boot")];
        let image = |by: &Signer| signed(by, &layers, Digest::of(b"uki"));
        assert_eq!(
            trust.check_image("v1.0.0", &image(&owner)).unwrap(),
            Starts::AnyWay
        );
        for (name, change) in changes() {
            let mut image = image(&owner);
            change(&mut image);
            let error = trust.check_image("v1.0.0", &image).unwrap_err();
            assert!(matches!(error, Untrusted::OtherImage { .. }), "{name}");
        }
        let error = trust.check_image("v1.0.0", &image(&stranger)).unwrap_err();
        let text = error.to_string();
        let key = owner.key.fingerprint().to_string();
        assert!(text.contains(&key) && text.contains("v1.0.0"), "{text}");

        let mut unsigned = image(&owner);
        unsigned.labels.remove(LABEL);
        let error = trust.check_image("v1.0.0", &unsigned).unwrap_err();
        assert!(matches!(error, Untrusted::UnsignedImage { .. }), "{error}");
        let nobody = RootfsTrust::of(SecureBoot::Off, &[]);
        assert_eq!(
            nobody.check_image("v1.0.0", &unsigned).unwrap(),
            Starts::AnyWay
        );
    }

    #[test]
    fn under_secure_boot_a_uki_that_the_firmware_has_revoked_starts_no_way() {
        let signer = Signer::new();
        let (uki, other) = (Digest::of(b"uki"), Digest::of(b"other"));
        let layers = [Digest::of(b"soft"), Digest::of(b"boot")];
        let image = signed(&signer, &layers, uki);
        let judge = |revoked: &[Digest], image: &ImageConfig| {
            RootfsTrust::of(on(&signer, revoked), &[]).check_image("v1.0.0", image)
        };
        assert_eq!(judge(&[other], &image).unwrap(), Starts::AnyWay);
        let error = judge(&[other, uki], &image).unwrap_err();
        assert!(error.to_string().contains(&uki.hex()), "{error}");
        // Its label could be anybody's.
        for (name, change) in changes() {
            let mut image = image.clone();
            change(&mut image);
            let judged = judge(&[other, uki], &image);
            let judged = judged.ok();
            assert_eq!(judged, Some(Starts::ThroughFirmware), "{name}");
        }
    }

    #[test]
    fn only_the_route_past_the_firmware_is_closed() {
        let reboot = Route::Reboot("the kernel is another one");
        assert_eq!(Starts::AnyWay.route(Route::Soft), Route::Soft);
        assert_eq!(Starts::ThroughFirmware.route(reboot), reboot);
        let closed = Starts::ThroughFirmware.route(Route::Soft);
        assert!(matches!(closed, Route::Reboot(_)));
    }
}
