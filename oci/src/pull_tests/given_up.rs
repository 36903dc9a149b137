//! Pulls that fail with much on the disk: what is removed must not keep the runtime's only thread.

use std::fs;
use std::time::{Duration, Instant};

use super::pulling::puller;
use super::registry::Registry;
use crate::unpack::Unpacker;
use crate::unpack::test_tar::{TarBuilder, describe, gzip};
use crate::{ImageStore, Keeps, Limits, Ownership, PullError};

/// Enough for a removal that takes longer than any pause of a busy host's scheduler.
const FILES: usize = 100_000;

/// Tens of thousands of files take minutes to be made on a disk, and seconds in memory.
fn scratch() -> tempfile::TempDir {
    let in_memory = tempfile::tempdir_in("/dev/shm");
    in_memory.or_else(|_| tempfile::tempdir()).unwrap()
}

/// The archive of a layer of many empty files.
fn many_files() -> Vec<u8> {
    let tar = (0..FILES).fold(TarBuilder::default(), |tar, number| {
        tar.file(&format!("{}/{number}", number / 1000), b"")
    });
    tar.finish()
}

/// The time that the files of the layer take to be removed here, while the host is as busy as now.
fn time_of_removal(layer: &[u8]) -> Duration {
    let directory = scratch();
    let unpacker = Unpacker::new(directory.path(), Limits::default(), Ownership::Ignore);
    let unpacked = unpacker.unwrap().layer(&describe(layer, layer), layer);
    unpacked.unwrap();
    let began = Instant::now();
    fs::remove_dir_all(directory.path()).unwrap();
    began.elapsed()
}

/// The longest time for which the runtime's other tasks wait while this is done.
async fn longest_gap(work: impl Future<Output = ()>) -> Duration {
    let (mut longest, mut last) = (Duration::ZERO, Instant::now());
    tokio::pin!(work);
    loop {
        let is_done = tokio::select! {
            () = &mut work => true,
            () = tokio::time::sleep(Duration::from_millis(1)) => false,
        };
        longest = longest.max(last.elapsed());
        last = Instant::now();
        if is_done {
            return longest;
        }
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_failed_pull_leaves_the_runtime_to_others_while_its_files_are_removed() {
    let registry = Registry::start();
    let tar = many_files();
    let good = (tar.clone(), gzip(&tar));
    let wrong = TarBuilder::default().file("last", b"layer").finish();
    let wrong = (b"another content".to_vec(), gzip(&wrong));
    registry.push("v1", "amd64", &[good, wrong]).await;
    let puller = puller(registry.settings());
    let resolved = puller.look_up(&registry.reference(":v1")).await.unwrap();
    // A host may pause everything for a moment, but does not do so three times.
    let mut gaps = Vec::new();
    for _ in 0..3 {
        let directory = scratch();
        let store = ImageStore::new(directory.path().to_owned(), Keeps::Blobs);
        let removal = time_of_removal(&tar);
        let pull = async {
            let refused = puller.pull(&resolved, &store, &Limits::default()).await;
            assert!(
                matches!(refused, Err(PullError::Layer { .. })),
                "{refused:?}"
            );
        };
        let gap = longest_gap(pull).await;
        // The caller is told when the room is free again: the next pull needs it.
        let images = directory.path().join("images");
        assert_eq!(fs::read_dir(images).unwrap().count(), 0);
        println!("a removal takes {removal:?}, the others waited {gap:?}");
        if gap < removal / 2 {
            return;
        }
        gaps.push((gap, removal));
    }
    panic!("the runtime's other tasks waited for (of): {gaps:?}");
}
