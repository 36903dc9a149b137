//! Bundles with the files of channels.

use super::*;
use crate::{ChannelFile, ChannelPart};

fn file(contents: &mut Contents, channel: &str, part: ChannelPart, content: &[u8]) -> ChannelFile {
    contents.keep(content);
    ChannelFile::new(channel.parse().unwrap(), part, content)
}

/// Files of two channels, one of them with an approval.
fn files(contents: &mut Contents) -> Vec<ChannelFile> {
    let release = Digest::of(b"release");
    vec![
        file(
            contents,
            "stable",
            ChannelPart::Approval(release),
            b"YXBwcm92YWw=",
        ),
        file(contents, "stable", ChannelPart::Signature, b"c2lnbmF0dXJl"),
        file(contents, "stable", ChannelPart::List, b"list of stable"),
        file(contents, "beta", ChannelPart::Signature, b"b3RoZXI="),
        file(contents, "beta", ChannelPart::List, b"list of beta"),
    ]
}

#[test]
fn files_of_channels_are_read_as_they_were_written() {
    let mut contents = Contents::usual();
    let files = files(&mut contents);
    let index = contents.index().with_channels(files.clone()).unwrap();
    let mut reversed = files;
    reversed.reverse();
    assert_eq!(contents.index().with_channels(reversed).unwrap(), index);
    let scratch = Scratch::new();
    let bundle = scratch.verify(&contents.archive_with(&index)).unwrap();
    assert_eq!(bundle.index(), &index);
    let names: Vec<String> = bundle.channels().iter().map(ToString::to_string).collect();
    assert_eq!(names, ["beta", "stable"]);
    let stable = bundle.channel(&"stable".parse().unwrap()).unwrap();
    assert_eq!(stable.list(), b"list of stable");
    assert_eq!(stable.signature(), b"c2lnbmF0dXJl");
    let release = Digest::of(b"release");
    assert_eq!(stable.approval(release), Some(&b"YXBwcm92YWw="[..]));
    let beta = bundle.channel(&"beta".parse().unwrap()).unwrap();
    assert_eq!(
        (beta.list(), beta.approvals().count()),
        (&b"list of beta"[..], 0)
    );
}

#[test]
fn a_byte_of_a_list_that_is_altered_is_refused_with_its_place() {
    let mut contents = Contents::usual();
    let files = files(&mut contents);
    let index = contents.index().with_channels(files).unwrap();
    let mut bytes = contents.archive_with(&index);
    let place = bytes
        .windows(14)
        .position(|window| window == b"list of stable");
    bytes[place.unwrap()] ^= 1;
    let refused = Scratch::new().verify(&bytes).unwrap_err();
    let name = format!("blobs/sha256/{}", Digest::of(b"list of stable").hex());
    assert!(said(&refused).contains(&name), "{}", said(&refused));
}

#[test]
fn a_channel_has_one_list_and_one_signature() {
    let mut contents = Contents::usual();
    let files = files(&mut contents);
    for gone in [1, 2] {
        let mut some = files.clone();
        some.remove(gone);
        let error = contents.index().with_channels(some).unwrap_err();
        assert!(matches!(error, NotAnIndex::Channel(it) if it.as_str() == "stable"));
    }
    for (part, content) in [
        (ChannelPart::List, b"another list"),
        (
            ChannelPart::Approval(Digest::of(b"release")),
            b"b3RoZXJhcHBy",
        ),
    ] {
        let mut more = files.clone();
        more.push(file(&mut contents, "stable", part, content));
        let error = contents.index().with_channels(more).unwrap_err();
        assert!(matches!(error, NotAnIndex::Channel(it) if it.as_str() == "stable"));
    }
}
