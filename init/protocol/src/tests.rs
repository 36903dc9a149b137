#![allow(clippy::unwrap_used, clippy::panic)]

use super::*;

const UUID: &str = "2f6b1c3a-0d4e-4f5a-8b6c-7d8e9fa0b1c2";

fn line(text: &str) -> Line {
    text.parse().unwrap()
}

fn problem(packet: impl AsRef<[u8]>) -> Problem {
    Request::parse(packet.as_ref()).unwrap_err().problem
}

fn next() -> Request {
    Request::Next {
        blake3: Blake3::from([0xa5; 32]),
        version: line("v0.2.0"),
        deadline: Deadline::from_secs(120).unwrap(),
    }
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
        next(),
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
        Request::Reboot,
        Request::Poweroff,
        Request::Halt,
        Request::Kexec,
    ]
}

fn welcome(start: StartReason, kept: Vec<FdName>) -> Reply {
    Reply::Welcome(Welcome {
        generation: 7,
        boot_id: UUID.parse().unwrap(),
        kernel_boot_id: BootId::from_random([0xff; 16]),
        start,
        deadline: 299,
        kept,
    })
}

fn replies() -> Vec<Reply> {
    let cause = line("machined was killed by signal 9");
    vec![
        welcome(StartReason::Boot, vec![]),
        welcome(
            StartReason::Next,
            vec!["api".parse().unwrap(), "handover".parse().unwrap()],
        ),
        welcome(
            StartReason::Rollback {
                cause: cause.clone(),
                failed_version: line("v0.2.0"),
            },
            vec![],
        ),
        welcome(
            StartReason::Fresh {
                cause: cause.clone(),
            },
            vec![],
        ),
        welcome(StartReason::Restart { cause }, vec![]),
        Reply::Ok {
            to: line("healthy"),
        },
        Reply::Error {
            to: line("next"),
            code: ErrorCode::WrongDigest,
            text: line("it hashes to 00…"),
        },
        Reply::Error {
            to: line("-"),
            code: ErrorCode::Other(line("from-the-future")),
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
        String::from_utf8(next().encode()).unwrap(),
        format!("instar 1 next\nblake3 {a5}\nversion v0.2.0\ndeadline 120\n")
    );
    assert_eq!(
        Reply::Ok { to: line("keep") }.encode(),
        b"instar 1 ok\nto keep\n"
    );
    assert_eq!(
        Reply::Exited { pid: 12, status: 9 }.encode(),
        b"instar 1 exited\npid 12\nstatus 9\n"
    );
    let rollback = StartReason::Rollback {
        cause: line("too late"),
        failed_version: line("v9"),
    };
    let expected = "instar 1 welcome\ngeneration 7\nboot-id 2f6b1c3a-0d4e-4f5a-8b6c-7d8e9fa0b1c2\n\
        kernel-boot-id ffffffff-ffff-4fff-bfff-ffffffffffff\nstart rollback\ncause too late\nfailed-version v9\n\
        deadline 299\nkept api log.x\n";
    let kept = vec!["api".parse().unwrap(), "log.x".parse().unwrap()];
    assert_eq!(
        String::from_utf8(welcome(rollback, kept).encode()).unwrap(),
        expected
    );
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
    assert_eq!(problem("instar 1 explode\n"), Problem::UnknownVerb);
    assert_eq!(
        problem("instar 2 hello\n"),
        Problem::OtherVersion(line("2"))
    );
    assert_eq!(
        problem("instar 01 hello\n"),
        Problem::OtherVersion(line("01"))
    );
    // A reply is not a request.
    assert_eq!(problem("instar 1 welcome\n"), Problem::UnknownVerb);

    let error = Request::parse(b"instar 2 hello\n").unwrap_err();
    assert_eq!(error.code(), ErrorCode::OtherVersion);
    assert_eq!(error.verb, Some(line("hello")));
    assert_eq!(error.to_string(), "version '2', but only 1 is spoken here");
    assert_eq!(
        Request::parse(b"instar 1 explode").unwrap_err().code(),
        ErrorCode::UnknownVerb
    );
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
        assert_eq!(problem(no_header), Problem::NoHeader, "{no_header:?}");
    }
    assert_eq!(problem("instar 1 hello\nalone\n"), Problem::NotKeyValue(2));
    assert_eq!(
        problem("instar 1 hello\na b\n\nc d\n"),
        Problem::NotKeyValue(3)
    );
    assert_eq!(problem("instar 1 hello\n value\n"), Problem::NotKeyValue(2));
    assert_eq!(
        problem("instar 1 hello\nkey a\0b\n"),
        Problem::NotKeyValue(2)
    );
    assert_eq!(
        problem("instar 1 hello\nkey a\r\n"),
        Problem::NotKeyValue(2)
    );
    assert_eq!(
        problem("instar 1 drop\nname a\nname b\n"),
        Problem::Duplicate(line("name"))
    );
    assert_eq!(problem("instar 1 drop\n"), Problem::Missing("name"));
    assert_eq!(problem(b"instar 1 hello\xff"), Problem::NotUtf8(14));
    assert_eq!(problem(vec![b'a'; MAX_PACKET + 1]), Problem::TooLong(4097));
    // At the limit it is only nonsense, not too long.
    assert_eq!(problem(vec![b'a'; MAX_PACKET]), Problem::NoHeader);
}

#[test]
fn invalid_values_name_their_key() {
    let invalid = |packet: String| match problem(&packet) {
        Problem::Invalid(key, _) => key,
        other => panic!("{packet:?} gave {other:?}"),
    };
    let a5 = "a5".repeat(32);
    for deadline in ["0", "3601", "-1", "1.5", "x", "", "99999999999"] {
        let packet = format!("instar 1 next\nblake3 {a5}\nversion v1\ndeadline {deadline}\n");
        assert_eq!(invalid(packet), "deadline", "{deadline:?}");
    }
    for blake3 in [
        "",
        "a5",
        &a5.to_uppercase(),
        &format!("{a5}0"),
        &format!("{a5}00"),
        &"é".repeat(32),
    ] {
        assert_eq!(
            invalid(format!(
                "instar 1 next\nblake3 {blake3}\nversion v\ndeadline 1\n"
            )),
            "blake3"
        );
    }
    for name in ["", "A", "a b", "a/b", "../x", "naïve", &"n".repeat(33)] {
        assert_eq!(
            invalid(format!("instar 1 drop\nname {name}\n")),
            "name",
            "{name:?}"
        );
    }
    assert_eq!(
        invalid("instar 1 keep\nname a\nscope forever\n".into()),
        "scope"
    );
    for id in [
        "x",
        &UUID.to_uppercase(),
        &UUID.replace('-', "0"),
        &format!("{UUID}0"),
    ] {
        assert_eq!(
            invalid(format!("instar 1 healthy\nboot-id {id}\n")),
            "boot-id"
        );
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
        &"x".repeat(Line::MAX + 1),
    ] {
        assert!(text.parse::<Line>().is_err(), "{text:?}");
    }
    assert_eq!(
        Line::lossy("boom\nreboot now\0").as_str(),
        "boom reboot now"
    );
    assert_eq!(Line::lossy("\n\n").as_str(), "-");
    let long = Line::lossy(&"é".repeat(1000));
    assert_eq!(long.as_str().len(), Line::MAX);
    assert_eq!(long.as_str().parse::<Line>().unwrap(), long);
    // Whatever lossy makes is a Line that parses.
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
    let longest = line(&"c".repeat(Line::MAX));
    let start = StartReason::Rollback {
        cause: longest.clone(),
        failed_version: longest,
    };
    let packet = welcome(start, kept).encode();
    assert!(packet.len() <= MAX_PACKET, "{} bytes", packet.len());
    Reply::parse(&packet).unwrap();
}

#[test]
fn a_made_boot_id_is_a_version_4_uuid() {
    let id = BootId::from_random([0; 16]);
    assert_eq!(id.as_str(), "00000000-0000-4000-8000-000000000000");
    assert_eq!(id.as_str().parse::<BootId>().unwrap(), id);
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
                let _ = Request::parse(&hostile);
                let _ = Reply::parse(&hostile);
                let _ = Request::parse(&hostile[..i]);
            }
        }
    }
}
