//! Versions on record, with the rules and keys that judge them, for tests.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use instar_pki::installer_signature::{self, LABEL, PROGRAM};
use instar_pki::rootfs_signature;
use rcgen::{KeyPair, PKCS_ED25519, SigningKey as _};

use crate::containers::registry_for_tests::{Pushed, SignedRegistry};
use crate::machine::Configured;
use crate::oci::ImageConfig;
use crate::oci::verification::Verdict;
use crate::sequences::image_pins::machine_for_tests::{configured, trusting};
use crate::upgrade::{Evidence, PendingUpgrade, WrittenImage};
use crate::values::Digest;

const DENIES: &str = "apiVersion: v1alpha1\nkind: ImageVerificationConfig\nrules:\n  - image: \"*\"\n    deny: true\n";

/// The rule for the image.
#[derive(Debug, Clone, Copy)]
pub(in crate::sequences) enum Rule {
    None,
    Deny,
    /// It wants a signature by the registry's key.
    Ours,
    /// It wants one by another key.
    Others,
}

/// What the record says of the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::sequences) enum Record {
    /// A rule has allowed it by the registry's key, and the owner has signed it.
    Full,
    /// No rule asked for a signature, and nobody has signed it.
    Unsigned,
    /// The root filesystem is the owner's, the rest is not.
    OtherUki,
    /// A version before has written it.
    Nothing,
}

/// The key that the config demands for upgrades.
#[derive(Debug, Clone, Copy)]
pub(in crate::sequences) enum Key {
    None,
    Owners,
    Strangers,
}

/// An installer's image at its registry, and the keys of its owner.
pub(in crate::sequences) struct Case {
    pub(in crate::sequences) registry: SignedRegistry,
    pub(in crate::sequences) os: Pushed,
    owner: KeyPair,
}

impl Case {
    pub(in crate::sequences) fn new() -> Self {
        let registry = SignedRegistry::start();
        Case {
            os: registry.push("os:v2", "os"),
            registry,
            owner: KeyPair::generate_for(&PKCS_ED25519).unwrap(),
        }
    }

    /// A config with this rule for images and this key for upgrades.
    pub(in crate::sequences) fn config(&self, rule: Rule, key: Key) -> Arc<Configured> {
        let ours = self.registry.config();
        let others = SignedRegistry::start().config();
        let (mirror, rules) = (
            ours.split_once("---\n").unwrap(),
            others.split_once("---\n").unwrap(),
        );
        let mut documents = vec![mirror.0.to_owned()];
        match rule {
            Rule::None => {}
            Rule::Deny => documents.push(DENIES.to_owned()),
            Rule::Ours => documents.push(mirror.1.to_owned()),
            Rule::Others => documents.push(rules.1.to_owned()),
        }
        match key {
            Key::None => {}
            Key::Owners => documents.push(trusting(&self.owner)),
            Key::Strangers => {
                let stranger = KeyPair::generate_for(&PKCS_ED25519).unwrap();
                documents.push(trusting(&stranger));
            }
        }
        let documents: Vec<_> = documents.iter().map(String::as_str).collect();
        configured(&documents)
    }

    /// The fingerprint of the registry's key.
    fn key(&self) -> Option<Digest> {
        match self.registry.puller().policy().verdict(&self.os.name) {
            Verdict::SignedBy(_, key) => Some(key.fingerprint()),
            _ => None,
        }
    }

    fn image(&self, record: Record) -> ImageConfig {
        let rootfs = blake3::hash(b"r");
        let mut config = ImageConfig {
            entrypoint: vec![PROGRAM.to_owned()],
            layers: vec![Digest::of(b"layer")],
            ..ImageConfig::default()
        };
        let sign =
            |text: String| rootfs_signature::to_label(&self.owner.sign(text.as_bytes()).unwrap());
        let labels = &mut config.labels;
        labels.insert(
            "dev.instar.rootfs.blake3".to_owned(),
            rootfs.to_hex().to_string(),
        );
        if record == Record::Unsigned {
            return config;
        }
        let signed = sign(rootfs_signature::statement("v0.2.0", &rootfs));
        labels.insert(rootfs_signature::LABEL.to_owned(), signed);
        let statement = installer_signature::statement(&config.labels, &config.layers);
        let signed = sign(statement.unwrap());
        config.labels.insert(LABEL.to_owned(), signed);
        if record == Record::OtherUki {
            config.layers[0] = Digest::of(b"another");
        }
        config
    }

    /// The upgrade that brought the version, as its record has it.
    pub(in crate::sequences) fn upgrade(&self, record: Record) -> PendingUpgrade {
        let written = (record != Record::Nothing).then(|| self.image(record));
        PendingUpgrade {
            image: self.os.name.to_string(),
            digest: self.os.manifest.to_string(),
            to: "v0.2.0".to_owned(),
            evidence: Evidence {
                index: Some(self.os.index),
                written: written.as_ref().and_then(WrittenImage::of),
                signed_by: self.key().filter(|_| record == Record::Full),
                signatures: None,
            },
            ..PendingUpgrade::default()
        }
    }
}
