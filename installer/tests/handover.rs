//! Runs the real program with a real socket, as machined does.
#![allow(clippy::unwrap_used)]

use std::{
    fs::{self, File},
    io::{IoSliceMut, Read, Write},
    mem::MaybeUninit,
    os::fd::OwnedFd,
    path::Path,
    process::{Command, Output, Stdio},
};

use rustix::{
    fs::{SealFlags, fcntl_get_seals},
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags,
        SocketType, recvmsg, socketpair,
    },
};

const ROOTFS: &[u8] = b"hsqs and the rest of a squashfs";

fn assets(rootfs: &[u8], release: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("rootfs.squashfs"), rootfs).unwrap();
    fs::write(folder.path().join("release.json"), release).unwrap();
    folder
}

fn release_of(rootfs: &[u8]) -> String {
    format!(
        r#"{{"version":"v0.2.0","rootfs":{{"blake3":"{}","bytes":{}}}}}"#,
        blake3::hash(rootfs).to_hex(),
        rootfs.len()
    )
}

fn pair(kind: SocketType) -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap()
}

/// The shell moves the socket from descriptor 0 to 3, which std's Command cannot.
fn install(assets: &Path, socket: Stdio) -> Output {
    Command::new("sh")
        .args([
            "-c",
            r#"exec "$0" install --upgrade --assets "$1" 3<&0 </dev/null"#,
            env!("CARGO_BIN_EXE_installer"),
        ])
        .arg(assets)
        .stdin(socket)
        .output()
        .unwrap()
}

fn receive(socket: &OwnedFd) -> (String, Vec<OwnedFd>) {
    let mut text = [0; 4096];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let message = recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut text)],
        &mut beside,
        RecvFlags::CMSG_CLOEXEC,
    )
    .unwrap();
    let mut descriptors = Vec::new();
    for part in beside.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = part {
            descriptors.extend(rights);
        }
    }
    (
        String::from_utf8(text[..message.bytes].to_vec()).unwrap(),
        descriptors,
    )
}

#[track_caller]
fn fails(output: &Output, code: i32, says: &str) {
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{complaint}");
    assert!(complaint.contains(says), "{complaint}");
    assert_eq!(complaint.lines().count(), 1, "{complaint}");
}

#[test]
fn hands_over_sealed_memory_with_its_description() {
    let folder = assets(ROOTFS, &release_of(ROOTFS));
    let (ours, theirs) = pair(SocketType::SEQPACKET);
    let output = install(folder.path(), theirs.into());
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );

    let (text, mut descriptors) = receive(&ours);
    let expected = format!(
        r#"{{"rootfs":{{"blake3":"{}","bytes":{},"version":"v0.2.0"}},"takes_sockets":true}}"#,
        blake3::hash(ROOTFS).to_hex(),
        ROOTFS.len()
    );
    assert_eq!(text, expected);
    assert_eq!(descriptors.len(), 1);
    let memory = descriptors.remove(0);
    let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    assert_eq!(fcntl_get_seals(&memory).unwrap() & seals, seals);

    let mut memory = File::from(memory);
    memory.write_all(b"change").unwrap_err();
    let mut content = Vec::new();
    std::io::Seek::rewind(&mut memory).unwrap();
    memory.read_to_end(&mut content).unwrap();
    assert_eq!(content, ROOTFS);
}

#[test]
fn a_root_filesystem_that_is_not_the_released_one_is_refused() {
    let other = b"hsqs and the REST of a squashfs";
    for (rootfs, says) in [
        (&other[..], "has digest"),
        (&ROOTFS[..10], "fewer than"),
        (&[ROOTFS, b"x"].concat()[..], "more than"),
        (&b"ext4"[..], "not a squashfs"),
        (&[], "fewer than"),
    ] {
        let folder = assets(rootfs, &release_of(ROOTFS));
        let (ours, theirs) = pair(SocketType::SEQPACKET);
        fails(&install(folder.path(), theirs.into()), 2, says);
        let (text, descriptors) = receive(&ours);
        assert!(
            text.is_empty() && descriptors.is_empty(),
            "nothing may be handed over"
        );
    }
}

#[test]
fn a_damaged_release_is_bad_input() {
    for release in [
        "",
        "{}",
        r#"{"version":"v1","rootfs":{"blake3":"x","bytes":-1}}"#,
    ] {
        let folder = assets(ROOTFS, release);
        let (_ours, theirs) = pair(SocketType::SEQPACKET);
        fails(&install(folder.path(), theirs.into()), 2, "release.json");
    }
}

#[test]
fn missing_files_are_input_errors() {
    let folder = tempfile::tempdir().unwrap();
    let (_ours, theirs) = pair(SocketType::SEQPACKET);
    fails(&install(folder.path(), theirs.into()), 6, "release.json");
}

#[test]
fn without_a_socket_the_environment_is_wrong() {
    let folder = assets(ROOTFS, &release_of(ROOTFS));
    fails(&install(folder.path(), Stdio::null()), 4, "descriptor 3");
    let (_ours, theirs) = pair(SocketType::STREAM);
    fails(&install(folder.path(), theirs.into()), 4, "descriptor 3");
}

#[test]
fn a_machined_that_is_gone_is_a_failed_installation() {
    let folder = assets(ROOTFS, &release_of(ROOTFS));
    let (ours, theirs) = pair(SocketType::SEQPACKET);
    drop(ours);
    fails(
        &install(folder.path(), theirs.into()),
        7,
        "hand the root filesystem",
    );
}
