//! Tests of what becomes of containers that an earlier machined left running, with scripts in the place of crun and of containers.

#![allow(clippy::unwrap_used)]

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use instar_init_protocol::Reply;

use super::*;
use crate::containers::registry_for_tests::{Pushed, SignedRegistry};
use crate::init_link::init_for_tests::{Init, agreement, link_to};
use crate::oci::{Keeps, Policy};

/// init takes names of 32 bytes; names of containers may have 63.
#[test]
fn every_service_has_a_kept_name_of_its_own() {
    assert_eq!(output_name("web"), "log.web");
    let common = "a-name-of-many-characters-that";
    let names = ["", "-one", "-two", "-one-that-is-as-long-as-names-may-be"]
        .map(|tail| output_name(&format!("{common}{tail}")));
    for (index, name) in names.iter().enumerate() {
        assert!(
            name.parse::<instar_init_protocol::FdName>().is_ok(),
            "{name}"
        );
        assert!(!names[..index].contains(name), "{name}");
    }
}

/// Returns a link to an init that reports the exit of process 70 with code 7, a moment after the greeting.
async fn link() -> InitLink {
    let report = |init: &Init| {
        std::thread::sleep(Duration::from_millis(200));
        init.say(&Reply::Exited {
            pid: 70,
            status: 7 << 8,
        });
        init.answer(|request, _| agreement(&request));
    };
    link_to(report).await.0
}

/// The container `web`, whose output init has kept.
async fn web(directory: &Path, output: OwnedFd) -> ContainerWorkload {
    let puller = Arc::new(Puller::new(Arc::default(), Policy::default()));
    let (crun, state, run) = ("crun", "state", "run");
    fs::create_dir_all(directory.join(run).join("web")).unwrap();
    ContainerWorkload {
        spec: ContainerSpec::new("web".parse().unwrap(), String::new()),
        image: "r.io/web:v1".parse().unwrap(),
        puller: Box::new(move || puller.clone()),
        images: ImageStore::new(directory.join("images"), Keeps::ImagesAlone),
        stop_timeout: Box::new(|| Duration::from_secs(10)),
        in_force: ImagesInForce::default(),
        runtime: Runtime::new(
            directory.join(crun),
            directory.join(state),
            directory.join(run),
        ),
        init: link().await,
        kept_output: Some(output).into(),
        unattended: None.into(),
        cgroup: Cgroup::for_container("web", true).unwrap().into(),
        keeps: Box::new(|| true),
        prepared: None.into(),
        told_whole: None.into(),
    }
}

/// The report of init is still under way, and nobody has read the container's last words.
#[tokio::test]
async fn one_that_ended_while_nobody_looked_has_its_last_words_and_its_exit() {
    let directory = tempfile::tempdir().unwrap();
    let (read, write) = rustix::pipe::pipe().unwrap();
    File::from(write).write_all(b"panic: no room\n").unwrap();
    let web = web(directory.path(), read).await;
    fs::write(directory.path().join("run/web/pid"), "70").unwrap();
    let log = LogRing::default();
    let adopted = web.take_over(log.clone()).await;
    assert!(matches!(adopted, Adopted::Exited(Exit::Code(7))));
    assert_eq!(log.contents(), b"panic: no room\n");
}

/// As after a crash rollback, which ends a container in the generation's cgroup: init reports no exit of it.
#[tokio::test]
async fn one_that_ended_with_its_generation_is_not_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let (read, _write) = rustix::pipe::pipe().unwrap();
    let web = web(directory.path(), read).await;
    // As of one that does not run.
    *web.cgroup.locked() = Cgroup::for_container("web", false).unwrap();
    fs::write(directory.path().join("run/web/pid"), "71").unwrap();
    let ended = tokio::time::timeout(RIGHT_BEHIND / 2, web.noted_end()).await;
    assert!(matches!(ended, Ok(Adopted::Nothing)));
}

/// Makes a script that stands in for crun and says that this process is the container's. Another process writes it: a file that is open for
/// writing cannot be run, and a child that another test forks meanwhile would keep it open for a moment.
fn make_crun(directory: &Path, pid: u32) {
    fs::create_dir_all(directory.join("state/web")).unwrap();
    let mut install = Command::new("install")
        .args(["-m", "755", "/dev/stdin"])
        .arg(directory.join("crun"))
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = install.stdin.take().unwrap();
    writeln!(
        stdin,
        "#!/bin/sh\necho '{{\"pid\":{pid},\"status\":\"running\"}}'"
    )
    .unwrap();
    drop(stdin);
    assert!(install.wait().unwrap().success());
}

/// Its definition differs, so it is told to end; it says more about its end than a pipe holds.
#[tokio::test]
async fn one_that_is_not_taken_over_ends_in_order_however_much_it_says() {
    let directory = tempfile::tempdir().unwrap();
    let (read, write) = rustix::pipe::pipe().unwrap();
    let container = "trap 'head -c 500000 /dev/zero; echo; echo done; exit 0' TERM
        echo ready; while :; do sleep 0.02; done";
    let mut container = Command::new("sh")
        .args(["-c", container])
        .stdout(write)
        .spawn()
        .unwrap();
    let mut ready = [0; 6];
    File::from(read.try_clone().unwrap())
        .read_exact(&mut ready)
        .unwrap();
    make_crun(directory.path(), container.id());
    let web = web(directory.path(), read).await;
    let log = LogRing::default();
    let adopted = web.take_over(log.clone()).await;
    // One that hangs is ended here.
    container.kill().unwrap();
    assert!(matches!(adopted, Adopted::Ended(_)));
    assert!(container.wait().unwrap().success());
    assert!(log.contents().ends_with(b"\ndone\n"));
}

/// Its disk is away. It says more than its pipe holds, and goes on.
#[tokio::test]
async fn one_that_nobody_looks_after_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let (read, write) = rustix::pipe::pipe().unwrap();
    let web = web(directory.path(), read).await;
    fs::write(directory.path().join("run/web/pid"), "70").unwrap();
    let log = LogRing::default();
    web.read_output(log.clone());
    let mut write = File::from(write);
    let said = tokio::task::spawn_blocking(move || {
        let said = write.write_all(&b"a line of its output\n".repeat(20_000));
        said.map(|()| write)
    });
    let said = tokio::time::timeout(Duration::from_secs(20), said).await;
    let mut write = said.unwrap().unwrap().unwrap();
    web.leave_output().await;
    write.write_all(b"panic: no room\n").unwrap();
    drop(write);
    assert!(!log.contents().ends_with(b"panic: no room\n"));
    // Nothing is left out, and nothing is read twice.
    web.read_output(log.clone());
    web.read_output(log.clone());
    let adopted = web.take_over(log.clone()).await;
    assert!(matches!(adopted, Adopted::Exited(Exit::Code(7))));
    assert!(
        log.contents()
            .ends_with(b"\na line of its output\npanic: no room\n")
    );
}

/// The container of an image that a disk has damaged, in a boot that knows nothing about it yet: its files, and the blob that they were made from.
async fn damaged(directory: &Path, registry: &SignedRegistry) -> (ContainerWorkload, Pushed) {
    let pushed = registry.push("web:v1", "web");
    let puller = Arc::new(registry.puller());
    let images = || ImageStore::new(directory.join("images"), Keeps::Blobs);
    let resolved = puller.look_up(&pushed.name).await.unwrap();
    let pulled = puller.pull(&resolved, &images(), &Limits::default()).await;
    fs::write(pulled.unwrap().rootfs().join("app"), "wEb").unwrap();
    let blobs = directory.join("images/blobs/sha256");
    fs::remove_file(blobs.join(pushed.layer.hex())).unwrap();
    let (read, _write) = rustix::pipe::pipe().unwrap();
    let container = ContainerWorkload {
        images: images(),
        puller: Box::new(move || puller.clone()),
        ..web(directory, read).await
    };
    let known = ImageDigests::of_resolved(&resolved);
    let in_force = &container.in_force;
    in_force.set("web", &pushed.name, known).await;
    (container, pushed)
}

#[tokio::test]
async fn a_damaged_image_is_fetched_again_by_its_digest_in_force_and_the_start_says_so() {
    let (registry, directory) = (SignedRegistry::start(), tempfile::tempdir().unwrap());
    let (container, pushed) = damaged(directory.path(), &registry).await;
    // The name means another image by now.
    let newer = registry.push("web:v1", "newer");
    container.prepare().await.unwrap();
    let image = container.lock_prepared().clone().unwrap();
    assert_eq!(image.digest(), pushed.manifest);
    assert_ne!(image.digest(), newer.manifest);
    assert_eq!(fs::read(image.rootfs().join("app")).unwrap(), b"web");
    let in_force = container.in_force.get("web", &pushed.name);
    assert_eq!(in_force, Some(pushed.manifest));
    let remark = container.remark().unwrap();
    let (digest, file) = (pushed.manifest.to_string(), "/app is not as it was");
    assert!(
        remark.contains(&digest) && remark.contains(file),
        "{remark}"
    );
    container.prepare().await.unwrap();
    assert_eq!(container.remark(), None, "it is said once");
}

#[tokio::test]
async fn a_damaged_image_that_nobody_gives_is_named_with_the_ways_to_bring_it() {
    let (registry, directory) = (SignedRegistry::start(), tempfile::tempdir().unwrap());
    let (container, pushed) = damaged(directory.path(), &registry).await;
    registry.forget(&pushed, pushed.index);
    registry.forget(&pushed, pushed.manifest);
    // Each try says it, not only the one that has found it.
    for _ in 0..2 {
        let refused = container.prepare().await.unwrap_err();
        let told = format!("{refused:#}");
        for part in [
            pushed.manifest.to_string().as_str(),
            "damaged on the disk (/app is not as it was unpacked)",
            "instarctl bundle upload",
            "instarctl bundle fetch",
        ] {
            assert!(told.contains(part), "{part}: {told}");
        }
        let in_force = container.in_force.get("web", &pushed.name);
        assert_eq!(in_force, Some(pushed.manifest));
    }
    // It heals by itself once it can be had.
    registry.push("web:v1", "web");
    container.prepare().await.unwrap();
    assert!(container.remark().is_some());
}
