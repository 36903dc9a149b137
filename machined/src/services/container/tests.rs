//! Tests of what becomes of containers that an earlier machined left running, with scripts in the place of crun and of containers.

#![allow(clippy::unwrap_used)]

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use instar_init_protocol::{RecvFlags, Reply, SendFlags, Welcome, receive, send};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::*;
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
    let (ours, theirs) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    std::thread::spawn(move || {
        let say = |reply: Reply| send(&theirs, &reply.encode(), &[], SendFlags::empty()).unwrap();
        receive(&theirs, RecvFlags::empty()).unwrap();
        let id = "2f6b1c3a-0d4e-4f5a-8b6c-7d8e9fa0b1c2".parse().unwrap();
        say(Reply::Welcome(Welcome::of_kernel(id)));
        std::thread::sleep(Duration::from_millis(200));
        say(Reply::Exited {
            pid: 70,
            status: 7 << 8,
        });
        // Until the link is gone.
        let _ = receive(&theirs, RecvFlags::empty());
    });
    InitLink::connect(ours).await.unwrap().0
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
