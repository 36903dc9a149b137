//! Who may bring this machine a root filesystem: the check that makes an upgrade without a reboot as strict as a boot.
//!
//! ```text
//! Secure Boot │ keys in the config │ a root filesystem starts if it is signed by
//! ────────────┼────────────────────┼─────────────────────────────────────────────
//!     off     │        none        │ nobody has to sign it
//!     off     │       some         │ one of the config's keys
//!      on     │        any         │ a key of the firmware's db, or one of the config's
//! ```
//!
//! Under Secure Boot the firmware checks a UKI, and with it the root filesystem inside; a root filesystem that comes without a boot passes no
//! firmware. So the machine checks it itself, against the same keys. The running version decides: labels of the offered image only carry the
//! signature. `image_trust` checks the rest of the image, which a reboot starts.

use crate::boot_loader::{SecureBoot, SecureBootError, secure_boot};
use crate::values::{Digest, PublicKey};
use instar_pki::rootfs_signature;

use super::installer_output::InstallerOutput;

/// The keys that this machine trusts, and whether it demands one of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RootfsTrust {
    pub(super) demand: Demand,
    pub(super) keys: Vec<PublicKey>,
    /// UKIs that the firmware does not start, by their digests.
    pub(super) revoked: Vec<Digest>,
}

/// Why a signature is demanded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Demand {
    No,
    ByConfig,
    BySecureBoot,
}

/// A root filesystem that this machine may start: its signature was checked, or none is demanded. Only [`RootfsTrust::admit`] makes one.
#[derive(Debug)]
pub struct TrustedRootfs(InstallerOutput);

/// Why a root filesystem is not trusted. Nothing has been started.
#[derive(Debug, thiserror::Error)]
pub enum Untrusted {
    /// The keys are unknown.
    #[error("it is unknown whose root filesystems this machine may start")]
    Unknown(#[from] SecureBootError),
    /// The image has no signature.
    #[error(
        "the root filesystem of {version} is not signed, and {demand}; build the image with a signing key, one of {keys}"
    )]
    Unsigned {
        /// The version.
        version: String,
        /// Why a signature is demanded.
        demand: &'static str,
        /// The trusted keys.
        keys: String,
    },
    /// The signature is of another key, another version or another root filesystem.
    #[error(
        "the signature of {version} is not one of this root filesystem ({rootfs}) and version by a trusted key, and {demand}; the keys are {keys}"
    )]
    Other {
        /// The version.
        version: String,
        /// BLAKE3 of the root filesystem.
        rootfs: blake3::Hash,
        /// Why a signature is demanded.
        demand: &'static str,
        /// The trusted keys.
        keys: String,
    },
    /// The whole image has no signature.
    #[error(
        "the installer image of {version} is not signed as a whole, so another one than its maker may have made what a reboot starts, and \
         {demand}; build the image anew with a signing key, one of {keys}"
    )]
    UnsignedImage {
        /// The version.
        version: String,
        /// Why a signature is demanded.
        demand: &'static str,
        /// The trusted keys.
        keys: String,
    },
    /// The signature is of another key, or of an image with other labels, files or settings.
    #[error(
        "the signature of the installer image of {version} is not one of these labels, layers and this program by a trusted key, and \
         {demand}; take the image as its maker has built it, by one of the keys {keys}"
    )]
    OtherImage {
        /// The version.
        version: String,
        /// Why a signature is demanded.
        demand: &'static str,
        /// The trusted keys.
        keys: String,
    },
    /// It was written by a version that kept nothing of its image, or the image says too much to be kept.
    #[error(
        "nothing was kept of the installer image of {version} by which its signatures can be checked, and {demand}; upgrade to it again, or \
         stage it again"
    )]
    Unrecorded {
        /// The version.
        version: String,
        /// Why a signature is demanded.
        demand: &'static str,
    },
    /// The firmware does not start its UKI.
    #[error(
        "this machine's firmware has revoked the UKI of {version} (dbx names its digest {}), so it starts neither with nor without a reboot; \
         take a newer version", uki.hex()
    )]
    Revoked {
        /// The version.
        version: String,
        /// The digest by which the firmware knows its UKI.
        uki: Digest,
    },
}

impl Demand {
    pub(super) fn words(self) -> &'static str {
        match self {
            Demand::No => "this machine demands no signature",
            Demand::ByConfig => "UpgradeTrustConfig demands a signature by one of its keys",
            Demand::BySecureBoot => {
                "this machine booted under Secure Boot, so it starts only signed versions, with or without a reboot"
            }
        }
    }
}

impl RootfsTrust {
    /// Returns the trust of this machine: by its firmware and by the keys in its config.
    ///
    /// # Errors
    /// The firmware cannot be asked.
    pub fn of_this_machine(configured: &[PublicKey]) -> Result<Self, SecureBootError> {
        Ok(RootfsTrust::of(secure_boot()?, configured))
    }

    pub(super) fn of(secure_boot: SecureBoot, configured: &[PublicKey]) -> Self {
        let (demand, mut keys, revoked) = match secure_boot {
            SecureBoot::On { keys, revoked } => (Demand::BySecureBoot, keys, revoked),
            SecureBoot::Off if configured.is_empty() => (Demand::No, Vec::new(), Vec::new()),
            SecureBoot::Off => (Demand::ByConfig, Vec::new(), Vec::new()),
        };
        keys.extend_from_slice(configured);
        RootfsTrust {
            demand,
            keys,
            revoked,
        }
    }

    /// Checks a root filesystem by its digest; returns the fingerprint of the key that signed it, or none if no signature is demanded.
    pub fn check(
        &self,
        version: &str,
        rootfs: &blake3::Hash,
        signature: Option<&str>,
    ) -> Result<Option<Digest>, Untrusted> {
        if self.demand == Demand::No {
            return Ok(None);
        }
        let demand = self.demand.words();
        let Some(signature) = signature else {
            return Err(Untrusted::Unsigned {
                version: version.to_owned(),
                demand,
                keys: self.names(),
            });
        };
        match rootfs_signature::signer(&self.keys, version, rootfs, signature) {
            Some(key) => Ok(Some(key.fingerprint())),
            None => Err(Untrusted::Other {
                version: version.to_owned(),
                rootfs: *rootfs,
                demand,
                keys: self.names(),
            }),
        }
    }

    /// Admits a root filesystem that an installer delivered, as this version. init compares its bytes with the digest that is checked here.
    pub fn admit(
        &self,
        delivery: InstallerOutput,
        version: &str,
    ) -> Result<TrustedRootfs, Untrusted> {
        let signature = delivery.signature.as_deref();
        if let Some(key) = self.check(version, &delivery.blake3, signature)? {
            tracing::info!("the root filesystem of {version} is signed by the key {key}");
        }
        Ok(TrustedRootfs(delivery))
    }

    pub(super) fn names(&self) -> String {
        let names: Vec<String> = self
            .keys
            .iter()
            .map(|key| key.fingerprint().to_string())
            .collect();
        match names.is_empty() {
            true => "none: the firmware's db has no key that can be used".to_owned(),
            false => names.join(", "),
        }
    }
}

impl TrustedRootfs {
    /// The root filesystem.
    pub fn output(&self) -> &InstallerOutput {
        &self.0
    }
}

#[cfg(test)]
pub(super) mod signer_for_tests {
    #![allow(clippy::unwrap_used)]
    use rcgen::{KeyPair, PKCS_ED25519, SigningKey as _};

    use super::*;

    /// A key that signs, and the public one.
    pub(in crate::upgrade) struct Signer {
        pair: KeyPair,
        pub(in crate::upgrade) key: PublicKey,
    }

    impl Signer {
        pub(in crate::upgrade) fn new() -> Self {
            let pair = KeyPair::generate_for(&PKCS_ED25519).unwrap();
            let key = pair.public_key_pem().parse().unwrap();
            Signer { pair, key }
        }

        /// Returns the signature as labels have it.
        pub(in crate::upgrade) fn sign(&self, statement: &str) -> String {
            let signature = self.pair.sign(statement.as_bytes()).unwrap();
            rootfs_signature::to_label(&signature)
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::signer_for_tests::Signer;
    use super::*;

    impl Signer {
        fn label(&self, version: &str, rootfs: &blake3::Hash) -> String {
            self.sign(&rootfs_signature::statement(version, rootfs))
        }
    }

    #[test]
    fn the_table_decides_whose_signature_is_enough() {
        let (firmware, owner, stranger) = (Signer::new(), Signer::new(), Signer::new());
        let on = |keys: Vec<PublicKey>| SecureBoot::On {
            keys,
            revoked: Vec::new(),
        };
        let with_key = || on(vec![firmware.key.clone()]);
        let keys = [owner.key.clone()];
        let rootfs = blake3::hash(b"r");
        // Each row: unsigned, by the firmware's key, by the config's, by a stranger.
        for (state, configured, expected) in [
            (SecureBoot::Off, &[][..], [true, true, true, true]),
            (SecureBoot::Off, &keys, [false, false, true, false]),
            (with_key(), &[], [false, true, false, false]),
            (with_key(), &keys, [false, true, true, false]),
            (on(Vec::new()), &[], [false; 4]),
        ] {
            let trust = RootfsTrust::of(state, configured);
            let signers = [None, Some(&firmware), Some(&owner), Some(&stranger)];
            let accepted = signers.map(|signer| {
                let label = signer.map(|signer| signer.label("v1.0.0", &rootfs));
                trust.check("v1.0.0", &rootfs, label.as_deref()).is_ok()
            });
            assert_eq!(accepted, expected, "{trust:?}");
        }
    }

    #[test]
    fn a_signature_of_another_version_or_root_is_told_with_the_keys() {
        let owner = Signer::new();
        let trust = RootfsTrust::of(SecureBoot::Off, std::slice::from_ref(&owner.key));
        let (rootfs, other) = (blake3::hash(b"r"), blake3::hash(b"other"));
        for label in [
            owner.label("v0.9.0", &rootfs),
            owner.label("v1.0.0", &other),
        ] {
            let error = trust.check("v1.0.0", &rootfs, Some(&label)).unwrap_err();
            let text = error.to_string();
            assert!(
                text.contains(&owner.key.fingerprint().to_string()),
                "{text}"
            );
            assert!(
                text.contains("v1.0.0") && text.contains("UpgradeTrustConfig"),
                "{text}"
            );
        }
        let signed = owner.label("v1.0.0", &rootfs);
        let by = trust.check("v1.0.0", &rootfs, Some(&signed)).unwrap();
        assert_eq!(by, Some(owner.key.fingerprint()));
    }
}
