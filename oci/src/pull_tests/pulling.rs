//! Helpers for pulls: a puller, layers, and a store.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use instar_base::back_off::BackOff;

use crate::unpack::test_tar::{TarBuilder, gzip};
use crate::{ImageStore, Keeps, Policy, Puller, Registries, Retries};

pub(super) fn puller(settings: Registries) -> Puller {
    puller_with(settings, Policy::default())
}

/// A puller that keeps to a policy.
pub(super) fn puller_with(settings: Registries, policy: Policy) -> Puller {
    let retries = Retries {
        attempts: 3,
        pauses: BackOff {
            first: Duration::from_millis(10),
            longest: Duration::from_secs(1),
        },
    };
    Puller::with_retries(Arc::new(settings), policy, retries)
}

pub(super) fn layer(name: &str, content: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let tar = TarBuilder::default().file(name, content).finish();
    let blob = gzip(&tar);
    (tar, blob)
}

/// Bytes that gzip cannot compress.
pub(super) fn noise(count: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..count).map(|_| next()).collect()
}

pub(super) fn store() -> (tempfile::TempDir, ImageStore) {
    let directory = tempfile::tempdir().unwrap();
    let store = ImageStore::new(directory.path().to_owned(), Keeps::Blobs);
    (directory, store)
}

/// A store as in memory: each pull begins from nothing.
pub(super) fn store_without_blobs() -> (tempfile::TempDir, ImageStore) {
    let directory = tempfile::tempdir().unwrap();
    let store = ImageStore::new(directory.path().to_owned(), Keeps::ImagesAlone);
    (directory, store)
}

/// Checks that the store is empty, without leftovers. The unpacking thread may still run when a pull was given up.
pub(super) fn assert_empty(directory: &tempfile::TempDir) {
    let deadline = Instant::now() + Duration::from_secs(20);
    let images = directory.path().join("images");
    while images.exists() && fs::read_dir(&images).unwrap().count() > 0 {
        assert!(
            Instant::now() < deadline,
            "something is left in {}",
            images.display()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}
