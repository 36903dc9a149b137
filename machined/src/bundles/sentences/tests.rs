//! The sentences about each state of a bundle.

use super::*;
use crate::bundles::BundleFact;
use crate::values::Digest;

const MIB: u64 = 1 << 20;

fn image(name: &str, version: Option<&str>, approval: Approval) -> FoundImage {
    FoundImage {
        reference: format!("r.io/{name}"),
        version: version.map(str::to_owned),
        approval,
    }
}

fn signed() -> Approval {
    Approval::Signature {
        rule: "r.io/*".to_owned(),
        key: Digest::of(b"key"),
    }
}

/// A stick in this state, with these images.
fn stick(phase: Phase, images: Vec<FoundImage>) -> BundleFact {
    let label = "INSTAR-BUNDLE".to_owned();
    BundleFact {
        digest: Some("sha256:abc".to_owned()),
        images,
        ..BundleFact::new("sda1".to_owned(), Place::Stick { label }, phase)
    }
}

fn installer(approval: Approval) -> Vec<FoundImage> {
    vec![image("installer:v2", Some("v0.2.0"), approval)]
}

fn said(bundle: &BundleFact) -> Vec<String> {
    let said = sentences(bundle).into_iter();
    said.map(|sentence| sentence.text).collect()
}

const FOUND: &str = "A stick with the label INSTAR-BUNDLE is plugged in (sda1).";
const HOLDS: &str = "The bundle holds 1 image: r.io/installer:v2 (version v0.2.0).";
const SIGNED: &str =
    "All of it is signed by the key of the rule for r.io/*, which this machine trusts.";
const LEAVE: &str = "Leave the stick in.";
const PULL: &str = "The stick can be pulled out.";

#[test]
fn a_stick_without_the_label_is_told_by_its_directory() {
    let directory = "instar-bundle".to_owned();
    let bundle = BundleFact {
        place: Place::Folder { directory },
        ..stick(Phase::Empty, Vec::new())
    };
    let found = "A stick with the directory instar-bundle is plugged in (sda1).";
    assert_eq!(said(&bundle), [found, PULL]);
}

#[test]
fn a_label_of_a_stranger_moves_no_cursor_of_the_terminal_that_asks() {
    let label = "v2\u{1b}[2JIt is signed.\nType 1";
    let images = vec![image("installer:v2", Some(label), Approval::Nobody)];
    let said = said(&stick(Phase::Asking { seconds: 60 }, images));
    let shown = "(version v2\\x1b[2JIt is signed. Type 1)";
    assert!(said.iter().any(|text| text.contains(shown)), "{said:?}");
    assert!(said.iter().all(|text| !text.contains(char::is_control)));
}

#[test]
fn how_far_a_stick_is() {
    let bytes = |bytes: u64| (bytes * MIB, 40 * MIB);
    let (verified, total) = bytes(12);
    let verifying = Phase::Verifying {
        bytes: verified,
        total,
    };
    let importing = Phase::Importing {
        image: "r.io/installer:v2".to_owned(),
        number: 1,
        count: 1,
        bytes: verified,
        total,
    };
    let taken = Phase::Taken {
        images: vec!["r.io/installer:v2".to_owned()],
    };
    let not_judged = vec![image("installer:v2", None, Approval::NotJudged)];
    let origin = "sdb1".to_owned();
    let waiting = Phase::Waiting { origin };
    for (bundle, expected) in [
        (
            stick(Phase::Searching, Vec::new()),
            vec![FOUND, "The stick is being looked through.", LEAVE],
        ),
        (
            stick(waiting, Vec::new()),
            vec![
                FOUND,
                "Another bundle is taken first, which came by sdb1. This one is next then.",
                LEAVE,
            ],
        ),
        (
            stick(verifying, not_judged),
            vec![
                FOUND,
                "The bundle holds 1 image: r.io/installer:v2.",
                "Every byte of the bundle is being checked: 12.0 MiB of 40 MiB.",
                LEAVE,
            ],
        ),
        (
            stick(importing, installer(signed())),
            vec![
                FOUND,
                HOLDS,
                SIGNED,
                "The bundle is good and allowed. Image 1 of 1 is being copied: r.io/installer:v2, 12.0 MiB of 40 MiB.",
                LEAVE,
            ],
        ),
        (
            stick(taken, installer(signed())),
            vec![
                FOUND,
                HOLDS,
                SIGNED,
                "The bundle was taken: 1 image on this machine now.",
                PULL,
            ],
        ),
    ] {
        assert_eq!(said(&bundle), expected);
    }
}

/// Refused when so many of its images were in the store.
fn refused(imported: usize) -> Phase {
    Phase::Refused {
        imported,
        reason: "it is altered".to_owned(),
        advice: "Copy it again.".to_owned(),
    }
}

#[test]
fn what_is_used_of_a_bundle_that_failed_halfway() {
    for (imported, expected) in [
        (0, "Nothing of the bundle is used: it is altered."),
        (
            1,
            "Only the first image of the bundle is on this machine: it is altered.",
        ),
        (
            2,
            "Only the first 2 images of the bundle are on this machine: it is altered.",
        ),
    ] {
        let said = said(&stick(refused(imported), Vec::new()));
        assert_eq!(said, [FOUND, expected, "Copy it again.", PULL]);
    }
}

#[test]
fn what_went_wrong_and_what_to_do() {
    let mut bundle = stick(refused(0), installer(Approval::Nobody));
    bundle.upgrade = Some(Upgrade::Planned {
        version: "v0.2.0".to_owned(),
    });
    let expected = [
        FOUND,
        HOLDS,
        "All of it is neither signed by a key that this machine trusts nor approved. The bundle's digest is sha256:abc.",
        "Nothing of the bundle is used: it is altered.",
        "Copy it again.",
        PULL,
    ];
    assert_eq!(said(&bundle), expected);
    let problems = sentences(&bundle);
    let problems = problems.iter().filter(|it| it.kind == Kind::Problem);
    assert_eq!(problems.count(), 2);
}

#[test]
fn who_approves_what() {
    for (approvals, expected) in [
        (vec![Approval::Caller], vec![]),
        (
            vec![Approval::Config],
            vec![
                "All of it is approved by this machine's config, which names the digest sha256:abc.",
            ],
        ),
        (
            vec![Approval::Person],
            vec![
                "All of it is approved by a person at this machine. The bundle's digest is sha256:abc.",
            ],
        ),
        (
            vec![signed(), Approval::Nobody, signed()],
            vec![
                "2 of 3 are signed by the key of the rule for r.io/*, which this machine trusts.",
                "1 of 3 are neither signed by a key that this machine trusts nor approved. The bundle's digest is sha256:abc.",
            ],
        ),
    ] {
        let images = approvals.into_iter().map(|it| image("a", None, it));
        let bundle = stick(Phase::Empty, images.collect());
        let said: Vec<String> = who_allows(&bundle).into_iter().map(|it| it.text).collect();
        assert_eq!(said, expected);
    }
}

#[test]
fn files_of_extensions_are_told_with_what_becomes_of_them() {
    let file = |name: &str, use_of_it| FoundFile {
        name: name.to_owned(),
        digest: Digest::of(b"file"),
        use_of_it,
    };
    let keeping = Phase::Keeping {
        images: 1,
        file: "a.raw".to_owned(),
        number: 1,
        count: 2,
    };
    let digest = Digest::of(b"file");
    let bundle = BundleFact {
        files: vec![file("a.raw", UseOfFile::NotDecided)],
        ..stick(keeping, installer(signed()))
    };
    let expected = [
        FOUND,
        HOLDS,
        "All of its images are signed by the key of the rule for r.io/*, which this machine trusts.",
        "The bundle is good and allowed. File 1 of 2 is being copied: a.raw.",
        &format!("The bundle has the file a.raw ({digest})."),
        LEAVE,
    ];
    assert_eq!(said(&bundle), expected);
    let bundle = BundleFact {
        files: vec![file("a.raw", UseOfFile::Kept)],
        ..stick(Phase::Taken { images: Vec::new() }, Vec::new())
    };
    let kept =
        format!("The file a.raw ({digest}) is on this machine now, for extensions that name it.");
    assert_eq!(said(&bundle), [FOUND, "The bundle was taken.", &kept, PULL]);
}

#[test]
fn what_it_does_to_the_version() {
    let version = || "v0.2.0".to_owned();
    let running = || "v0.2.0".to_owned();
    let reason = || "it hung".to_owned();
    for (upgrade, expected) in [
        (Upgrade::NoInstaller, None),
        (
            Upgrade::NotNewer {
                version: version(),
                running: running(),
            },
            Some("No upgrade: the bundle's version is v0.2.0, and v0.2.0 runs here."),
        ),
        (
            Upgrade::NotAllowed { version: version() },
            Some("No upgrade to v0.2.0: this machine's config does not let a stick upgrade it."),
        ),
        (
            Upgrade::TriedBefore {
                version: version(),
                reason: None,
            },
            Some(
                "No upgrade to v0.2.0: this bundle has begun it often enough, and it does not run; the machine's log says why. `instarctl upgrade` can still do it.",
            ),
        ),
        (
            Upgrade::TriedBefore {
                version: version(),
                reason: Some(reason()),
            },
            Some(
                "No upgrade to v0.2.0: it was tried here before, and failed: it hung. `instarctl upgrade` can still do it.",
            ),
        ),
        (
            Upgrade::Planned { version: version() },
            Some("After that, this machine is upgraded to v0.2.0. It may restart."),
        ),
        (
            Upgrade::Begun { version: version() },
            Some(
                "The upgrade to v0.2.0 has begun. Do not switch the machine off. It may restart; if v0.2.0 does not work, the version before comes back.",
            ),
        ),
        (
            Upgrade::Refused {
                version: version(),
                reason: reason(),
            },
            Some("No upgrade to v0.2.0: it hung."),
        ),
    ] {
        let mut bundle = stick(Phase::Empty, Vec::new());
        bundle.upgrade = Some(upgrade);
        let said = super::upgrade(&bundle).map(|sentence| sentence.text);
        assert_eq!(said.as_deref(), expected);
    }
}

#[test]
fn a_stick_stays_in_while_support_data_are_written() {
    let mut bundle = stick(Phase::Empty, Vec::new());
    for (support, expected) in [
        (
            Support::Writing,
            ["Support data are being written onto the stick.", LEAVE],
        ),
        (
            Support::Written {
                file: "instar-support/lamp.tar.gz".to_owned(),
                bytes: 3 * MIB,
            },
            [
                "Support data are on the stick: instar-support/lamp.tar.gz, 3 MiB.",
                PULL,
            ],
        ),
        (
            Support::Failed("the stick is full".to_owned()),
            [
                "Support data are not on the stick: the stick is full.",
                PULL,
            ],
        ),
    ] {
        bundle.support = Some(support);
        assert_eq!(said(&bundle)[1..], expected);
    }
}

#[test]
fn an_upload_has_nothing_to_pull_out() {
    let phase = Phase::Receiving {
        bytes: MIB,
        total: 2 * MIB,
    };
    let bundle = BundleFact::new("upload".to_owned(), Place::Upload, phase);
    assert_eq!(
        said(&bundle),
        ["A bundle is being uploaded: 1.0 MiB of 2 MiB."]
    );
}

#[test]
fn many_images_are_counted() {
    let images: Vec<_> = (0..6)
        .map(|_| image("a", None, Approval::NotJudged))
        .collect();
    let said = holds(&images).map(|sentence| sentence.text);
    assert_eq!(
        said.as_deref(),
        Some("The bundle holds 6 images: r.io/a, r.io/a, r.io/a, r.io/a and 2 more.")
    );
}

#[test]
fn news_are_sentences_that_were_not_said() {
    let (known, new, figure) = (fact("known"), fact("new"), progress("figure".to_owned()));
    let after = [known.clone(), new.clone(), figure.clone()];
    let before = [known];
    assert_eq!(news(&before, &after, false), std::slice::from_ref(&new));
    assert_eq!(news(&before, &after, true), [new, figure]);
}
