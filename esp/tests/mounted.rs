//! Plans on a real folder.

#![allow(clippy::unwrap_used)]

use std::{
    fs,
    io::{self, Cursor, ErrorKind, Read},
};

use instar_esp::{
    Asset, DEFAULT_SLOTS, FileDigest, Mounted, NewSystem, NewVersion, State, Volume, add, bless,
    describe, description, install, paths, perform,
};

fn version(name: &str) -> NewVersion {
    NewVersion {
        version: name.parse().unwrap(),
        uki: FileDigest::of(name.as_bytes()),
    }
}

#[test]
fn installs_upgrades_and_blesses() {
    let folder = tempfile::tempdir().unwrap();
    let mut volume = Mounted::at(folder.path());
    let open = |uki: &'static str| {
        move |asset| {
            let content: &'static str = match asset {
                Asset::Uki => uki,
                Asset::Loader => "loader",
            };
            Ok(Box::new(Cursor::new(content)) as Box<dyn Read>)
        }
    };
    let system = NewSystem {
        version: version("v0.1.0"),
        loader: FileDigest::of(b"loader"),
        keys: Vec::new(),
        enrol_everywhere: false,
    };
    let plan = install(&State::read(&volume).unwrap(), &system).unwrap();
    perform(&plan, &mut volume, open("v0.1.0")).unwrap();
    let plan = add(
        &State::read(&volume).unwrap(),
        &version("v0.2.0"),
        Some(1),
        DEFAULT_SLOTS,
    )
    .unwrap();
    perform(&plan, &mut volume, open("v0.2.0")).unwrap();

    let state = State::read(&volume).unwrap();
    assert_eq!(
        state.next_boot().unwrap().name.to_string(),
        "instar-2-v0.2.0+3.conf"
    );
    assert_eq!(state.last_known_good().unwrap().name.order, 1);
    assert!(state.has_loader && state.free_bytes > 0);
    assert_eq!(
        fs::read_to_string(folder.path().join("EFI/instar/b.efi")).unwrap(),
        "v0.2.0"
    );
    perform(&bless(&state, 2).unwrap(), &mut volume, open("")).unwrap();
    let names: Vec<String> = volume
        .list("loader/entries")
        .unwrap()
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    assert_eq!(names.len(), 2);
    assert!(
        names.contains(&"instar-2-v0.2.0.conf".to_owned()),
        "{names:?}"
    );
    assert_eq!(
        State::read(&volume)
            .unwrap()
            .last_known_good()
            .unwrap()
            .name
            .order,
        2
    );
}

#[test]
fn a_file_takes_another_ones_place_only_where_there_is_one() {
    let folder = tempfile::tempdir().unwrap();
    let mut volume = Mounted::at(folder.path());
    volume.create("new", &mut Cursor::new("x")).unwrap();
    volume.replace("new", "old").unwrap_err();
    assert!(folder.path().join("new").exists());
    volume.create("new", &mut Cursor::new("y")).unwrap_err();
}

#[test]
fn a_description_is_read_again_and_replaced_and_no_version_is_taken_for_one() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir_all(folder.path().join(paths::UKIS)).unwrap();
    fs::write(folder.path().join("EFI/instar/a.efi"), "uki").unwrap();
    let mut volume = Mounted::at(folder.path());
    assert_eq!(description(&volume).unwrap(), None);
    let no_asset = |_| -> io::Result<Box<dyn Read>> { Err(ErrorKind::NotFound.into()) };
    for text in ["{\"uki\":1}", "{}"] {
        let plan = describe(text.as_bytes().to_vec());
        perform(&plan, &mut volume, no_asset).unwrap();
        let read = description(&volume).unwrap();
        assert_eq!(read.as_deref(), Some(text.as_bytes()));
    }
    assert_eq!(State::read(&volume).unwrap().ukis.len(), 1);
    let huge = vec![b' '; (64 << 10) + 1];
    fs::write(folder.path().join(paths::DESCRIPTION), huge).unwrap();
    assert_eq!(description(&volume).unwrap(), None);
}
