//! The judgement, by what a config demands, what is on record and what a registry answers.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use instar_pki::installer_signature::{self, LABEL, PROGRAM};
use instar_pki::rootfs_signature;
use rcgen::{KeyPair, PKCS_ED25519, SigningKey as _};

use super::*;
use crate::containers::registry_for_tests::{Pushed, SignedRegistry};
use crate::oci::ImageConfig;
use crate::sequences::image_pins::machine_for_tests::{configured, trusting, unbooted};
use crate::sequences::{ApplyMode, apply_config};
use crate::upgrade::{InstallerOutput, Prepared, WrittenImage};
use crate::values::Digest;

const DENIES: &str = "apiVersion: v1alpha1\nkind: ImageVerificationConfig\nrules:\n  - image: \"*\"\n    deny: true\n";

/// The rule for the image.
#[derive(Debug, Clone, Copy)]
enum Rule {
    None,
    Deny,
    /// It wants a signature by the registry's key.
    Ours,
    /// It wants one by another key.
    Others,
}

/// What the record says of the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Record {
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
enum Key {
    None,
    Owners,
    Strangers,
}

/// The registry's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    HasIt,
    /// The image is gone.
    NotFound,
}

struct Case {
    registry: SignedRegistry,
    os: Pushed,
    owner: KeyPair,
}

impl Case {
    fn new() -> Self {
        let registry = SignedRegistry::start();
        Case {
            os: registry.push("os:v2", "os"),
            registry,
            owner: KeyPair::generate_for(&PKCS_ED25519).unwrap(),
        }
    }

    fn config(&self, rule: Rule, key: Key) -> Arc<Configured> {
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

    fn upgrade(&self, record: Record) -> PendingUpgrade {
        let written = (record != Record::Nothing).then(|| self.image(record));
        PendingUpgrade {
            image: self.os.name.to_string(),
            digest: self.os.manifest.to_string(),
            index: Some(self.os.index.to_string()),
            to: "v0.2.0".to_owned(),
            written: written.as_ref().and_then(WrittenImage::of),
            signed_by: self.key().filter(|_| record == Record::Full),
            ..PendingUpgrade::default()
        }
    }

    /// A machine with the version in memory.
    async fn prepared(&self, directory: &Path, record: Record) -> Arc<Machine> {
        let machine = unbooted(directory).await;
        let prepared = Prepared {
            delivery: InstallerOutput {
                memfd: rustix::fs::memfd_create("t", rustix::fs::MemfdFlags::CLOEXEC).unwrap(),
                blake3: blake3::hash(b"r"),
                boot_entry: None,
                takes_sockets: false,
                signature: None,
            },
            upgrade: self.upgrade(record),
        };
        machine.upgrades.set_prepared(prepared, &machine.init).await;
        machine
    }
}

#[tokio::test]
async fn the_table_says_which_version_stays() {
    use Answer::{HasIt, NotFound};
    use Record::{Full, Nothing, OtherUki, Unsigned};
    for (rule, key, record, answer, stays) in [
        (Rule::None, Key::None, Nothing, NotFound, true),
        (Rule::None, Key::None, Unsigned, NotFound, true),
        (Rule::Deny, Key::None, Full, HasIt, false),
        (Rule::Ours, Key::None, Full, HasIt, true),
        (Rule::Ours, Key::None, Full, NotFound, true),
        (Rule::Ours, Key::None, Unsigned, HasIt, true),
        (Rule::Ours, Key::None, Unsigned, NotFound, false),
        (Rule::Ours, Key::None, Nothing, NotFound, false),
        (Rule::Others, Key::None, Full, HasIt, false),
        (Rule::Others, Key::None, Full, NotFound, false),
        (Rule::None, Key::Owners, Full, NotFound, true),
        (Rule::None, Key::Owners, Unsigned, NotFound, false),
        (Rule::None, Key::Owners, OtherUki, NotFound, false),
        (Rule::None, Key::Owners, Nothing, NotFound, false),
        (Rule::None, Key::Strangers, Full, NotFound, false),
        (Rule::Ours, Key::Owners, Full, NotFound, true),
        (Rule::Ours, Key::Strangers, Full, HasIt, false),
        (Rule::Deny, Key::Owners, Full, HasIt, false),
    ] {
        let (case, directory) = (Case::new(), tempfile::tempdir().unwrap());
        let machine = case.prepared(directory.path(), record).await;
        if answer == NotFound {
            case.registry.forget(&case.os, case.os.index);
            case.registry.forget(&case.os, case.os.manifest);
        }
        let waiting = find(&machine).await.unwrap();
        let judged = judgement(&machine, &waiting, Some(&case.config(rule, key))).await;
        let of = (rule, key, record, answer);
        assert_eq!(judged.is_ok(), stays, "{of:?}: {judged:?}");
    }
}

#[tokio::test]
async fn a_registry_that_says_nothing_allows_nothing() {
    let (case, directory) = (Case::new(), tempfile::tempdir().unwrap());
    let machine = case.prepared(directory.path(), Record::Unsigned).await;
    let waiting = find(&machine).await.unwrap();
    case.registry.fall_silent();
    tokio::time::pause();
    let by = case.config(Rule::Ours, Key::None);
    let refused = judgement(&machine, &waiting, Some(&by)).await.unwrap_err();
    assert!(refused.contains("stage it again"), "{refused}");
}

#[tokio::test]
async fn a_record_that_names_no_image_is_allowed_by_no_rule() {
    let (case, directory) = (Case::new(), tempfile::tempdir().unwrap());
    let machine = unbooted(directory.path()).await;
    let waiting = Waiting {
        version: "v0.2.0".to_owned(),
        upgrade: Some(PendingUpgrade::default()),
        image: None,
    };
    for (rule, stays) in [(Rule::None, true), (Rule::Ours, false)] {
        let by = case.config(rule, Key::None);
        let judged = judgement(&machine, &waiting, Some(&by)).await;
        assert_eq!(judged.is_ok(), stays, "{judged:?}");
    }
}

/// The config in force allows it, and is not the one of the next boot.
#[tokio::test]
async fn the_next_boots_config_judges_before_the_machine_leaves() {
    for (rule, stays) in [(Rule::Ours, true), (Rule::Deny, false)] {
        let (case, directory) = (Case::new(), tempfile::tempdir().unwrap());
        let machine = case.prepared(directory.path(), Record::Full).await;
        machine.set_config(case.config(Rule::Ours, Key::None));
        let lock = machine.lock_operation(Operation::Reboot).unwrap();
        let next = case.config(rule, Key::None);
        still_allowed(&machine, &lock, Some(&next)).await;
        let waits = machine.upgrades.prepared_version().is_some();
        assert_eq!(waits, stays, "{rule:?}");
    }
}

#[tokio::test]
async fn a_config_that_is_applied_takes_back_what_it_refuses_before_it_answers() {
    let hour = Duration::from_secs(3600);
    for (rule, key, mode, stays) in [
        (Rule::Deny, Key::None, ApplyMode::NoReboot, false),
        (Rule::Ours, Key::Strangers, ApplyMode::Auto, false),
        (Rule::Ours, Key::Owners, ApplyMode::Auto, true),
        (Rule::Deny, Key::None, ApplyMode::Try(hour), true),
    ] {
        let (case, directory) = (Case::new(), tempfile::tempdir().unwrap());
        let machine = case.prepared(directory.path(), Record::Full).await;
        machine.set_config(case.config(Rule::Ours, Key::None));
        let text = case.config(rule, key).text.clone();
        let applied = apply_config(&machine, text.as_bytes(), mode, false).await;
        applied.unwrap();
        let waits = machine.upgrades.prepared_version().is_some();
        assert_eq!(waits, stays, "{rule:?}, {key:?}");
    }
}
