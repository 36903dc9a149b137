//! Streams that go on after a change of versions, and after a broken connection.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Stdio};
use std::time::Instant;

use serde_json::Value;

use super::fake_node::FakeNode;
use super::{Duration, Run, Setup, command, nothing, pause};

/// Starts the program; its standard output is a pipe.
fn start(setup: &Setup, arguments: &[&str]) -> Child {
    let mut command = command(setup.directory.path(), arguments);
    command.stdout(Stdio::piped()).spawn().unwrap()
}

/// Waits for so many streams of events in all.
fn await_subscriptions(node: &FakeNode, wanted: usize) {
    let began = Instant::now();
    while node.state().subscriptions < wanted {
        assert!(
            began.elapsed() < Duration::from_secs(30),
            "no stream {wanted}"
        );
        pause(20);
    }
    // For the stream's begin to reach the program.
    pause(500);
}

#[test]
fn a_log_goes_on_over_a_change_of_versions_without_a_repeated_line() {
    let setup = Setup::new(nothing);
    let run = setup.run(&["logs", "halting", "-f"]);
    assert_eq!(run.exits(0).out(), "one\ntwo\nthree\n");
}

#[test]
fn a_log_whose_older_lines_come_late_is_not_told_again() {
    let setup = Setup::new(nothing);
    let run = setup.run(&["logs", "mounting", "-f"]);
    assert_eq!(run.exits(0).out(), "one\ntwo\nthree\n");
}

#[test]
fn a_tail_that_goes_on_shows_no_line_from_before_it() {
    for (arguments, shown) in [
        (&["logs", "quiet", "-f", "--tail", "0"][..], "four\n"),
        (
            &["logs", "quiet", "-f", "--tail", "2"],
            "two\nthree\nfour\n",
        ),
        (&["logs", "quiet", "-f"], "one\ntwo\nthree\nfour\n"),
        (&["dmesg", "-f", "--tail"], "four\n"),
    ] {
        let setup = Setup::new(nothing);
        assert_eq!(setup.run(arguments).exits(0).out(), shown, "{arguments:?}");
    }
}

/// Follows a log that goes on after so many milliseconds without a connection. Returns its lines, and the messages.
fn follow_over_a_pause(milliseconds: u64) -> (String, String) {
    let setup = Setup::new(nothing);
    let mut command = command(setup.directory.path(), &["logs", "torn", "-f"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut shown = String::new();
    for _ in 0..3 {
        out.read_line(&mut shown).unwrap();
    }
    setup.node.break_connections();
    pause(milliseconds);
    setup.node.begin_generation();
    out.read_to_string(&mut shown).unwrap();
    let run = Run(child.wait_with_output().unwrap());
    run.exits(0);
    (shown, run.err())
}

#[test]
fn a_log_goes_on_over_a_broken_connection_which_is_told_of_once_if_it_lasts() {
    let told = "127.0.0.1: the connection is broken; the node is asked again for up to 60 s\n";
    for (milliseconds, told) in [(200, ""), (300, ""), (4_000, told)] {
        let run = follow_over_a_pause(milliseconds);
        let lines = "one\ntwo\nthree\nfour\n";
        assert_eq!(
            run,
            (lines.to_owned(), told.to_owned()),
            "{milliseconds} ms"
        );
    }
}

#[test]
fn events_go_on_over_broken_connections_without_those_of_before() {
    let setup = Setup::new(nothing);
    setup.node.phase("greet");
    let child = start(&setup, &["events", "-o", "json"]);
    // The first stream is for the newest event alone.
    for streams in [2, 3] {
        await_subscriptions(&setup.node, streams);
        setup.node.break_connections();
        setup.node.begin_generation();
    }
    await_subscriptions(&setup.node, 4);
    setup.node.phase("leave");
    setup.node.end_events();
    let run = child.wait_with_output().unwrap();
    assert!(run.status.success());
    let lines = String::from_utf8(run.stdout).unwrap();
    let phase = |line: &str| serde_json::from_str::<Value>(line).unwrap()["data"]["phase"].clone();
    assert_eq!(
        lines.lines().map(phase).collect::<Vec<_>>(),
        ["leave", "leave"],
        "{lines}"
    );
}
