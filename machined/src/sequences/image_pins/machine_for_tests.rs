//! A machine for tests that has not booted: its real parts, without any state of this host.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;

use crate::config;
use crate::disk::{OwnedDisk, Paths};
use crate::init_link::init_for_tests::{agreement, link_to};
use crate::machine::{Configured, Generation, Machine, Parts};
use crate::network::{CleanupPolicy, Network, Options};
use crate::oci::{ImageStore, Keeps};
use crate::services::LogRing;
use crate::time::{Beforehand, ClockSpec, TimeSync};
use crate::trust::PinnedKey;
use crate::upgrade::{FailedImages, RunningSystem};

const SERVED: &str = include_str!("../../../../config/tests/data/served-1.14.yaml");

/// Returns a machine whose files would be in this directory. Its store keeps no blobs.
pub(in crate::sequences) async fn unbooted(directory: &Path) -> Arc<Machine> {
    unbooted_that_keeps(directory, Keeps::ImagesAlone).await
}

/// The same with a store that keeps these data.
pub(in crate::sequences) async fn unbooted_that_keeps(
    directory: &Path,
    keeps: Keeps,
) -> Arc<Machine> {
    let agreeing = link_to(|init| init.answer(|request, _| agreement(&request)));
    let (init, introduction) = agreeing.await;
    let welcome = introduction.welcome;
    let options = Options {
        etc: directory.join("etc"),
        cleanup: CleanupPolicy::Keep,
        ..Options::default()
    };
    let clock = ClockSpec {
        enabled: false,
        servers: Vec::new(),
    };
    Arc::new(Machine::new(Parts {
        running: RunningSystem {
            version: "v0.1.0".to_owned(),
            architecture: "amd64".to_owned(),
            kernel: None,
            init: blake3::hash(b"none"),
            floor: None,
        },
        generation: Generation {
            number: welcome.generation,
            boot_id: welcome.boot_id,
            kernel_boot_id: welcome.kernel_boot_id,
            keeps_workloads: false,
        },
        init,
        images: ImageStore::new(directory.join("images"), keeps),
        own_log: LogRing::default(),
        // Without a spec the network changes nothing.
        network: Network::start(options, None, Vec::new()).unwrap(),
        disk: OwnedDisk::new(Paths::default()),
        clock: TimeSync::start(clock, 0, Beforehand::Nothing),
        failed: FailedImages::default(),
        floor: None,
        images_in_force: Default::default(),
        image_updates: Default::default(),
        pins: Default::default(),
        own_certificates: None,
        granted_certificate: None,
        pinned_key: PinnedKey::default(),
        kept: Default::default(),
    }))
}

/// Returns a config of these documents, and the one that every config needs.
pub(in crate::sequences) fn configured(documents: &[&str]) -> Arc<Configured> {
    let (first, _) = SERVED.split_once("---\n").unwrap();
    let text = [&[first], documents].concat().join("\n---\n");
    let config = config::parse(text.as_bytes()).unwrap().config;
    Arc::new(Configured::new(text, config))
}

/// Returns a document that demands versions signed by a key that has signed none.
pub(in crate::sequences) fn trusting_key() -> String {
    let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
    trusting(&pair)
}

/// Returns a document that demands versions signed by this key.
pub(in crate::sequences) fn trusting(pair: &rcgen::KeyPair) -> String {
    let key = pair.public_key_pem().trim().replace('\n', "\n      ");
    format!(
        "apiVersion: instar.dev/v1alpha1\nkind: UpgradeTrustConfig\nkeys:\n  - |\n      {key}\n"
    )
}
