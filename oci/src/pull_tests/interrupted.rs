//! Pulls, collections and imports that are killed at any moment, or whose writes fail: every image that is named is whole, every blob has
//! its digest, and the next pull ends well.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use instar_values::ImageReference;

use super::pulling::{noise, puller};
use super::registry::{Registry, mirrored};
use crate::store::Urgency;
use crate::unpack::test_tar::{TarBuilder, gzip};
use crate::{ImageStore, Keeps, Limits, Puller, Wholeness, import, local_image};

const TAGS: [&str; 2] = [":v1", ":v2"];
/// Number of moments at which the work is killed.
const KILLS: u32 = 24;

fn store_in(directory: &Path) -> ImageStore {
    ImageStore::new(directory.to_owned(), Keeps::Blobs)
}

/// A layer of files of many sizes.
fn layer(name: &str, files: usize) -> (Vec<u8>, Vec<u8>) {
    // No two files have a part in common: the blob is as long as they are.
    let content = noise(files * files * 100);
    let mut rest = &content[..];
    let mut tar = TarBuilder::default();
    for number in 0..files {
        let (file, others) = rest.split_at(number * 200);
        tar = tar.file(&format!("{name}/{number}"), file);
        rest = others;
    }
    let tar = tar.finish();
    let blob = gzip(&tar);
    (tar, blob)
}

/// A registry with two images on one base.
async fn registry() -> Registry {
    let registry = Registry::start();
    let base = layer("base", 80);
    for (tag, own) in [("v1", layer("one", 40)), ("v2", layer("two", 60))] {
        registry.push(tag, "amd64", &[base.clone(), own]).await;
    }
    registry
}

/// All that a store does: pulls two images, removes each, makes it again from blobs, collects; then removes the first one and its blobs.
async fn work(puller: &Puller, names: &[ImageReference], store: &ImageStore) -> Result<(), String> {
    let failed = |error: &dyn std::error::Error| error.to_string();
    for name in names {
        let resolved = puller.look_up(name).await.map_err(|error| failed(&error))?;
        let pulled = puller.pull(&resolved, store, &Limits::default()).await;
        let digest = pulled.map_err(|error| failed(&error))?.digest();
        let blobs = store.blobs().ok_or("it keeps no blobs")?;
        let all = blobs.list().map_err(|error| failed(&error))?;
        let _held = blobs.hold(all.iter().map(|file| file.digest));
        store.remove(digest).await.map_err(|error| failed(&error))?;
        import(&resolved, store, &Limits::default())
            .await
            .map_err(|error| failed(&error))?;
        store
            .collect_surplus(Urgency::LackOfRoom)
            .map_err(|error| failed(&error))?;
    }
    let first = names.first().and_then(|name| store.find(name));
    let digest = first.ok_or("the first image is gone")?.digest();
    store.remove(digest).await.map_err(|error| failed(&error))
}

/// The condition that has to hold at every moment. As after a start: the store is opened anew.
fn everything_that_is_named_is_whole(directory: &Path) {
    let store = store_in(directory);
    store.sweep().unwrap();
    let blobs = store.blobs().unwrap();
    for image in store.list().unwrap() {
        let found = store.check(image.digest());
        assert_eq!(found, Wholeness::Whole, "{}", image.digest());
    }
    for file in blobs.list().unwrap() {
        let blob = blobs.open(file.digest).unwrap().unwrap();
        let read = std::io::copy(&mut blob.checked(), &mut std::io::sink());
        assert_eq!(read.unwrap(), file.bytes, "{}", file.digest);
    }
}

async fn the_next_pulls_end_well(puller: &Puller, names: &[ImageReference], directory: &Path) {
    let store = store_in(directory);
    for name in names {
        let resolved = puller.look_up(name).await.unwrap();
        let pulled = puller.pull(&resolved, &store, &Limits::default()).await;
        let image = pulled.unwrap();
        let again = local_image::resolve(&store.blobs().unwrap(), name, image.digest());
        let layers = again.unwrap().layers;
        for layer in layers {
            let blob = store.blobs().unwrap().open(layer.digest).unwrap();
            assert!(blob.is_some(), "an image has its blobs");
        }
    }
    everything_that_is_named_is_whole(directory);
}

/// The work, in a process of its own.
struct Worker(Child);

impl Worker {
    /// Starts the work; writes behind this many KiB of a file fail, as on a disk that fails.
    fn start(port: u16, directory: &Path, largest: Option<u32>) -> Self {
        let program = std::env::current_exe().unwrap();
        let mut command = match largest {
            None => Command::new(program),
            Some(largest) => {
                // The signal that such a write also gets has to be ignored from the start.
                let limited = format!(
                    "trap '' XFSZ; ulimit -f {}; exec \"$0\" \"$@\"",
                    largest * 2
                );
                let mut shell = Command::new("sh");
                shell
                    .args(["-c", &limited])
                    .arg(program)
                    .env("WORKER_FAILS", "");
                shell
            }
        };
        let child = command
            .args(["--exact", "pull_tests::interrupted::a_worker"])
            .args(["--ignored", "--nocapture"])
            .env("WORKER_PORT", port.to_string())
            .env("WORKER_STORE", directory)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut worker = Worker(child);
        // It says that it begins: starting a process takes longer than some of the moments.
        let output = worker.0.stdout.as_mut().unwrap();
        let lines = BufReader::new(output).lines();
        assert!(
            lines
                .map_while(Result::ok)
                .any(|line| line.contains("begins"))
        );
        worker
    }

    fn end(mut self) {
        let status = self.0.wait().unwrap();
        assert!(status.success(), "{status}");
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
#[ignore = "the tests here run it"]
fn a_worker() {
    let port: u16 = std::env::var("WORKER_PORT").unwrap().parse().unwrap();
    let directory = std::env::var_os("WORKER_STORE").unwrap();
    let fails = std::env::var_os("WORKER_FAILS").is_some();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let host = format!("127.0.0.1:{port}");
    let names = TAGS.map(|tag| format!("{host}/app{tag}").parse().unwrap());
    let puller = puller(mirrored(&host, &[&format!("http://{host}")]));
    println!("begins");
    let worked = runtime.block_on(work(&puller, &names, &store_in(Path::new(&directory))));
    assert_eq!(worked.is_err(), fails, "{worked:?}");
}

#[tokio::test]
async fn work_that_is_killed_leaves_whole_images() {
    let registry = registry().await;
    let names = TAGS.map(|tag| registry.reference(tag));
    let puller = puller(registry.settings());
    let first = tempfile::tempdir().unwrap();
    let began = Instant::now();
    Worker::start(registry.port, first.path(), None).end();
    let whole = began.elapsed();
    everything_that_is_named_is_whole(first.path());

    let directory = tempfile::tempdir().unwrap();
    for kill in 0..KILLS {
        let worker = Worker::start(registry.port, directory.path(), None);
        std::thread::sleep(whole * kill / KILLS);
        worker.kill();
        everything_that_is_named_is_whole(directory.path());
        if kill % 8 == 7 {
            the_next_pulls_end_well(&puller, &names, directory.path()).await;
            fs::remove_dir_all(directory.path()).unwrap();
        }
    }
    assert!(whole > Duration::from_millis(10), "the work takes no time");
}

#[tokio::test]
async fn work_whose_writes_fail_leaves_whole_images() {
    let registry = registry().await;
    let names = TAGS.map(|tag| registry.reference(tag));
    let puller = puller(registry.settings());
    let directory = tempfile::tempdir().unwrap();
    // In a record, in a small file, in a layer's blob, in larger files; the layers have some hundred KiB.
    for largest in [0, 1, 2, 5, 10, 15, 40, 100, 300] {
        println!("up to {largest} KiB");
        Worker::start(registry.port, directory.path(), Some(largest)).end();
        everything_that_is_named_is_whole(directory.path());
    }
    the_next_pulls_end_well(&puller, &names, directory.path()).await;
}
