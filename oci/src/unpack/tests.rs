//! Images are unpacked, and hostile ones are refused.

#![allow(clippy::unwrap_used, clippy::panic)]

mod confinement;
mod entries;
mod holes;
mod layering;
mod limits;
mod packing;

use std::fs;

use instar_base::error_chain::chain;

use super::test_tar::{TarBuilder, describe};
use super::*;

/// As root the tests keep owners, as a node does; other users test the rest.
pub(super) fn ownership() -> Ownership {
    if rustix::process::geteuid().is_root() {
        Ownership::Keep
    } else {
        Ownership::Ignore
    }
}

fn unpack_with(layers: &[Vec<u8>], limits: Limits) -> (tempfile::TempDir, Result<(), UnpackError>) {
    let outer = tempfile::tempdir().unwrap();
    let root = outer.path().join("rootfs");
    fs::create_dir(&root).unwrap();
    let mut unpacker = Unpacker::new(&root, limits, ownership()).unwrap();
    let result = layers
        .iter()
        .try_for_each(|tar| unpacker.layer(&describe(tar, tar), &tar[..]));
    (outer, result)
}

fn unpack(layers: &[Vec<u8>]) -> (tempfile::TempDir, Result<(), UnpackError>) {
    unpack_with(layers, Limits::default())
}

fn unpacked(layers: &[Vec<u8>]) -> tempfile::TempDir {
    let (outer, result) = unpack(layers);
    result.unwrap();
    outer
}

pub(super) fn tar() -> TarBuilder {
    TarBuilder::default()
}

#[track_caller]
fn refused(layers: &[Vec<u8>], expected: &str) {
    let (outer, result) = unpack(layers);
    let said = chain(&result.expect_err("should have been refused"));
    assert!(said.contains(expected), "{said}");
    let beside: Vec<_> = fs::read_dir(outer.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(beside, ["rootfs"], "something was written outside");
}

fn read(outer: &tempfile::TempDir, path: &str) -> String {
    fs::read_to_string(outer.path().join("rootfs").join(path)).unwrap()
}

fn exists(outer: &tempfile::TempDir, path: &str) -> bool {
    outer
        .path()
        .join("rootfs")
        .join(path)
        .symlink_metadata()
        .is_ok()
}

fn unpack_blob(layer: &Layer, blob: &[u8], limits: Limits) -> Result<(), UnpackError> {
    let root = tempfile::tempdir().unwrap();
    Unpacker::new(root.path(), limits, ownership())
        .unwrap()
        .layer(layer, blob)
}

fn piped(program: &str, arguments: &[&str], input: &[u8]) -> Vec<u8> {
    use std::io::Write;
    use std::process::{Command, Stdio};
    let mut process = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{program} cannot be run: {error}"));
    let mut stdin = process.stdin.take().unwrap();
    let input = input.to_vec();
    let writer = thread::spawn(move || stdin.write_all(&input));
    let output = process.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.status.success());
    output.stdout
}
