#![allow(clippy::unwrap_used, clippy::panic)]

use super::*;

const UUID: &str = "2f6b1c3a-0d4e-4f5a-8b6c-7d8e9fa0b1c2";
const KERNEL_UUID: &str = "ffffffff-ffff-4fff-bfff-ffffffffffff";

fn line(text: &str) -> Line {
    text.parse().unwrap()
}

/// The code and the text of the error for a packet.
fn problem(packet: impl AsRef<[u8]>) -> (ErrorCode, String) {
    let error = Request::parse(packet.as_ref()).unwrap_err();
    (error.code, error.text)
}

fn bad(packet: impl AsRef<[u8]>, text: &str) {
    let expected = (ErrorCode::BadMessage, text.to_owned());
    assert_eq!(problem(packet), expected);
}

fn next(workloads: Workloads, finish: u32) -> Request {
    Request::Next(NextGeneration {
        blake3: "a5".repeat(32).parse().unwrap(),
        version: line("v0.2.0"),
        deadline: 120,
        workloads,
        finish,
    })
}

fn requests() -> Vec<Request> {
    vec![
        Request::Hello,
        Request::GiveUp {
            reason: "services do not come up".parse().unwrap(),
        },
        Request::Healthy {
            boot_id: UUID.parse().unwrap(),
        },
        next(Workloads::End, 0),
        next(Workloads::Keep, MAX_FINISH),
        Request::Keep {
            name: "log.web".parse().unwrap(),
            scope: Scope::Workloads,
        },
        Request::Keep {
            name: "log.apid-1".parse().unwrap(),
            scope: Scope::Generation,
        },
        Request::Keep {
            name: "api".parse().unwrap(),
            scope: Scope::Machine,
        },
        Request::Drop {
            name: "api".parse().unwrap(),
        },
        Request::End(End::Reboot),
        Request::End(End::PowerOff),
        Request::End(End::Halt),
        Request::End(End::Kexec),
    ]
}

fn welcome(start: StartReason, cause: Option<&str>, kept: Vec<FdName>) -> Reply {
    Reply::Welcome(Welcome {
        generation: 7,
        boot_id: UUID.parse().unwrap(),
        kernel_boot_id: KERNEL_UUID.parse().unwrap(),
        start,
        cause: cause.map(line),
        failed_version: (start == StartReason::Rollback).then(|| line("v9")),
        deadline: 299,
        workloads: (start == StartReason::Next).then_some(Domain::Kept),
        finish: (start == StartReason::Next).then_some(2),
        kept,
    })
}

fn replies() -> Vec<Reply> {
    let cause = Some("machined was killed by signal 9");
    let kept = vec!["api".parse().unwrap(), "handover".parse().unwrap()];
    vec![
        welcome(StartReason::Boot, None, vec![]),
        welcome(StartReason::Next, None, kept),
        welcome(StartReason::Rollback, cause, vec![]),
        welcome(StartReason::Fresh, cause, vec![]),
        welcome(StartReason::Restart, cause, vec![]),
        Reply::Ok {
            to: line("healthy"),
        },
        Reply::Error {
            to: line("next"),
            code: line("wrong-digest"),
            text: line("it hashes to 00…"),
        },
        Reply::Error {
            to: line("-"),
            code: line("from-the-future"),
            text: line("x"),
        },
        Reply::Exited {
            pid: 4711,
            status: 0x100,
        },
        Reply::Exited { pid: 1, status: -1 },
    ]
}

#[test]
fn every_message_survives_the_way_there_and_back() {
    for request in requests() {
        assert_eq!(Request::parse(&request.encode()).unwrap(), request);
    }
    for reply in replies() {
        assert_eq!(Reply::parse(&reply.encode()).unwrap(), reply);
    }
}

/// The bytes themselves are the contract: an old init meets a new machined.
#[test]
fn the_bytes_of_version_1() {
    assert_eq!(Request::Hello.encode(), b"instar 1 hello\n");
    let a5 = "a5".repeat(32);
    assert_eq!(
        String::from_utf8(next(Workloads::End, 0).encode()).unwrap(),
        format!("instar 1 next\nblake3 {a5}\nversion v0.2.0\ndeadline 120\n")
    );
    assert_eq!(
        String::from_utf8(next(Workloads::Keep, 2).encode()).unwrap(),
        format!(
            "instar 1 next\nblake3 {a5}\nversion v0.2.0\ndeadline 120\nworkloads keep\nfinish 2\n"
        )
    );
    assert_eq!(
        Reply::Ok { to: line("keep") }.encode(),
        b"instar 1 ok\nto keep\n"
    );
    assert_eq!(
        Reply::Exited { pid: 12, status: 9 }.encode(),
        b"instar 1 exited\npid 12\nstatus 9\n"
    );
    let expected = "instar 1 welcome\ngeneration 7\nboot-id 2f6b1c3a-0d4e-4f5a-8b6c-7d8e9fa0b1c2\n\
        kernel-boot-id ffffffff-ffff-4fff-bfff-ffffffffffff\nstart rollback\ndeadline 299\ncause too late\n\
        failed-version v9\nkept api log.x\n";
    let kept = vec!["api".parse().unwrap(), "log.x".parse().unwrap()];
    let rollback = welcome(StartReason::Rollback, Some("too late"), kept);
    assert_eq!(String::from_utf8(rollback.encode()).unwrap(), expected);
}

#[test]
fn order_unknown_keys_and_the_last_newline_do_not_matter() {
    let packet =
        format!("instar 1 keep\nscope machine\ncolour blue\nempty \nname api\nboot-id {UUID}");
    let expected = Request::Keep {
        name: "api".parse().unwrap(),
        scope: Scope::Machine,
    };
    assert_eq!(Request::parse(packet.as_bytes()).unwrap(), expected);
}

#[test]
fn unknown_verbs_and_other_versions_are_told_apart() {
    let unknown = (ErrorCode::UnknownVerb, "unknown verb".to_owned());
    assert_eq!(problem("instar 1 explode\n"), unknown);
    // A reply is not a request.
    assert_eq!(problem("instar 1 welcome\n"), unknown);
    for version in ["2", "01", "", "1.0"] {
        let error = Request::parse(format!("instar {version} hello\n").as_bytes()).unwrap_err();
        assert_eq!(error.code, ErrorCode::OtherVersion);
        assert_eq!(error.to, line("hello"));
        let text = format!("version '{version}', but only 1 is spoken here");
        assert_eq!(error.text, text);
    }
}

#[test]
fn malformed_packets_say_what_is_wrong() {
    for no_header in [
        "",
        "\n",
        "hello",
        "instar 1",
        "instar 1 hello now",
        "INSTAR 1 hello",
        " instar 1 hello",
    ] {
        bad(no_header, "the first line is not 'instar 1 VERB'");
    }
    for line in ["alone", "", " value", "key a\0b", "key a\r"] {
        let text = format!("the line '{line}' is not 'key value'");
        bad(format!("instar 1 hello\na b\n{line}\n"), &text);
    }
    bad(
        "instar 1 drop\nname a\nname b\n",
        "the key 'name' is given twice",
    );
    bad("instar 1 drop\n", "the key 'name' is missing");
    assert!(problem(b"instar 1 hello\xff").1.contains("from index 14"));
    bad(vec![b'a'; MAX_PACKET + 1], "more than 4096 bytes");
    // At the limit the error is about the content, not the length.
    bad(
        vec![b'a'; MAX_PACKET],
        "the first line is not 'instar 1 VERB'",
    );
    assert_eq!(Request::parse(b"\xff").unwrap_err().to, line("-"));
}

#[test]
fn invalid_values_name_their_key() {
    let invalid = |key: &str, packet: String| {
        let (code, text) = problem(&packet);
        assert_eq!(code, ErrorCode::BadMessage, "{packet:?}");
        assert!(
            text.starts_with(&format!("the key '{key}': ")),
            "{packet:?} gave {text}"
        );
    };
    let a5 = "a5".repeat(32);
    for deadline in ["0", "3601", "-1", "1.5", "x", "", "99999999999"] {
        invalid(
            "deadline",
            format!("instar 1 next\nblake3 {a5}\nversion v1\ndeadline {deadline}\n"),
        );
    }
    for blake3 in [
        "",
        "a5",
        &a5.to_uppercase(),
        &format!("{a5}0"),
        &format!("{a5}00"),
        &"é".repeat(32),
    ] {
        invalid(
            "blake3",
            format!("instar 1 next\nblake3 {blake3}\nversion v\ndeadline 1\n"),
        );
    }
    for name in ["", "A", "a b", "a/b", "../x", "naïve", &"n".repeat(33)] {
        invalid("name", format!("instar 1 drop\nname {name}\n"));
    }
    invalid("scope", "instar 1 keep\nname a\nscope forever\n".into());
    for id in [
        "x",
        &UUID.to_uppercase(),
        &UUID.replace('-', "0"),
        &UUID.replacen('a', "-", 1),
        &format!("{UUID}0"),
    ] {
        invalid("boot-id", format!("instar 1 healthy\nboot-id {id}\n"));
    }
}

/// A value can never start a line of its own.
#[test]
fn hostile_values_cannot_be_made() {
    for text in [
        "v1\ndeadline 3600",
        "a\rb",
        "\0",
        "",
        &"x".repeat(MAX_LINE + 1),
    ] {
        assert!(text.parse::<Line>().is_err(), "{text:?}");
    }
    assert_eq!(
        Line::lossy("boom\nreboot now\0").as_str(),
        "boom reboot now"
    );
    assert_eq!(Line::lossy("\n\n").as_str(), "-");
    let long = Line::lossy(&"é".repeat(1000));
    assert_eq!(long.as_str().len(), MAX_LINE);
    assert_eq!(long.as_str().parse::<Line>().unwrap(), long);
    // The result of `lossy` is always a Line that parses.
    for text in ["\u{85}x", "  a  ", "\t", &format!("{}\n", "y".repeat(600))] {
        let made = Line::lossy(text);
        assert_eq!(made.as_str().parse::<Line>().unwrap(), made);
    }
}

#[test]
fn the_longest_welcome_fits_into_a_packet() {
    let kept = (0..MAX_KEPT)
        .map(|i| format!("{i:032}").parse().unwrap())
        .collect();
    let longest = line(&"c".repeat(MAX_LINE));
    let packet = Reply::Welcome(Welcome {
        generation: u64::MAX,
        boot_id: UUID.parse().unwrap(),
        kernel_boot_id: UUID.parse().unwrap(),
        start: StartReason::Rollback,
        cause: Some(longest.clone()),
        failed_version: Some(longest),
        deadline: u32::MAX,
        workloads: Some(Domain::Kept),
        finish: Some(u32::MAX),
        kept,
    })
    .encode();
    assert!(packet.len() <= MAX_PACKET, "{} bytes", packet.len());
    Reply::parse(&packet).unwrap();
}

#[test]
fn no_byte_changed_in_a_message_makes_the_parser_fall() {
    for packet in requests()
        .iter()
        .map(Request::encode)
        .chain(replies().iter().map(Reply::encode))
    {
        for i in 0..packet.len() {
            for byte in [0, b'\n', b' ', 0x7f, 0x80, 0xff] {
                let mut hostile = packet.clone();
                hostile[i] = byte;
                // Only a panic would be an error.
                let _ = Request::parse(&hostile);
                let _ = Reply::parse(&hostile);
                let _ = Request::parse(&hostile[..i]);
            }
        }
    }
}
