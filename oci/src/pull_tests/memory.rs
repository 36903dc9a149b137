//! The memory that a pull takes: layers that are fetched at once, unpacking, seals.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::pulling::{layer, noise, puller};
use super::registry::{Registry, mirrored};
use crate::{ImageStore, Keeps, Limits};

/// Limit on the growth of the process, in KiB.
const MOST_KIB: u64 = 16 * 1024;

/// A field of this process's status, in KiB.
fn status(field: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let kib = line.unwrap().trim().trim_end_matches(" kB");
    kib.parse().unwrap()
}

#[test]
#[ignore = "a_pull_takes_little_memory runs it"]
fn a_pull_in_a_process_of_its_own() {
    let host = std::env::var("PULL_HOST").unwrap();
    let directory = std::env::var_os("PULL_STORE").unwrap();
    let store = ImageStore::new(Path::new(&directory).to_owned(), Keeps::Blobs);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let puller = puller(mirrored(&host, &[&format!("http://{host}")]));
    let pull = async |tag: &str| {
        let name = format!("{host}/app:{tag}").parse().unwrap();
        let resolved = puller.look_up(&name).await.unwrap();
        let pulled = puller.pull(&resolved, &store, &Limits::default()).await;
        pulled.unwrap();
    };
    // Code, threads and connections do not grow with the image.
    runtime.block_on(pull("small"));
    let before = status("VmRSS:");
    runtime.block_on(pull("large"));
    println!("it took {} KiB", status("VmHWM:").saturating_sub(before));
}

#[tokio::test]
async fn a_pull_takes_little_memory() {
    let registry = Registry::start();
    registry.push("small", "amd64", &[layer("s", b"s")]).await;
    let content = noise(60 << 20);
    let names = ["a", "b", "c", "d"];
    let parts = content.chunks(15 << 20).zip(names);
    let layers: Vec<_> = parts.map(|(part, name)| layer(name, part)).collect();
    registry.push("large", "amd64", &layers).await;
    drop((content, layers));
    let directory = tempfile::tempdir().unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "pull_tests::memory::a_pull_in_a_process_of_its_own",
        ])
        .args(["--ignored", "--nocapture"])
        .env("PULL_HOST", registry.host())
        .env("PULL_STORE", directory.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let took = said
        .split_once("it took ")
        .and_then(|(_, rest)| rest.split_once(" KiB"));
    let took: u64 = took.unwrap_or_else(|| panic!("{said}")).0.parse().unwrap();
    println!("{took} KiB");
    assert!(took <= MOST_KIB, "{took} KiB");
}
