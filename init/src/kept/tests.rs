#![allow(clippy::unwrap_used)]

use super::Kept;
use instar_init_protocol::{ErrorCode, FdName, MAX_KEPT, Scope};
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};

fn name(text: &str) -> FdName {
    text.parse().unwrap()
}

fn descriptor() -> OwnedFd {
    File::open("/dev/null").unwrap().into()
}

#[test]
fn names_and_descriptors_have_the_same_order() {
    let mut kept = Kept::default();
    let raw = ["b", "a", "c"].map(|text| {
        let descriptor = descriptor();
        let raw = descriptor.as_raw_fd();
        kept.keep(name(text), Scope::Machine, descriptor).unwrap();
        raw
    });
    let (names, descriptors) = kept.all();
    assert_eq!(names, [name("a"), name("b"), name("c")]);
    let found: Vec<i32> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    assert_eq!(found, [raw[1], raw[0], raw[2]]);
}

#[test]
fn the_same_name_replaces_even_when_full() {
    let mut kept = Kept::default();
    for i in 0..MAX_KEPT {
        kept.keep(name(&i.to_string()), Scope::Machine, descriptor())
            .unwrap();
    }
    let refused = kept
        .keep(name("more"), Scope::Machine, descriptor())
        .unwrap_err();
    assert_eq!(refused.code, ErrorCode::TooManyKept);
    kept.keep(name("7"), Scope::Generation, descriptor())
        .unwrap();
    assert_eq!(kept.all().0.len(), MAX_KEPT);
    kept.drop(&name("0")).unwrap();
    kept.keep(name("more"), Scope::Machine, descriptor())
        .unwrap();
}

#[test]
fn the_end_of_a_generation_takes_only_its_own() {
    let mut kept = Kept::default();
    kept.keep(name("api"), Scope::Machine, descriptor())
        .unwrap();
    kept.keep(name("log.a"), Scope::Generation, descriptor())
        .unwrap();
    kept.keep(name("log.b"), Scope::Machine, descriptor())
        .unwrap();
    kept.keep(name("log.b"), Scope::Generation, descriptor())
        .unwrap();
    kept.end_generation(false);
    assert_eq!(kept.all().0, [name("api")]);
    assert_eq!(
        kept.drop(&name("log.a")).unwrap_err().code,
        ErrorCode::NotKept
    );
}
