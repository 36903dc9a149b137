//! Files that commands send to a node, and files that they write.

use std::io::Read as _;

use instar_api::machine as wire;

use super::*;

/// A pause of a busy node or connection is not the end of the history.
#[test]
fn support_has_the_events_of_a_node_that_pauses() {
    let setup = Setup::new(nothing);
    setup.node.phase("greet");
    setup.node.state().history_pause = Duration::from_millis(800);
    setup.run(&["support", "--file", "support.tar.gz"]).exits(0);
    let file = std::fs::File::open(setup.directory.path().join("support.tar.gz")).unwrap();
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(file));
    let mut events = archive.entries().unwrap().map(Result::unwrap);
    let mut events = events
        .find(|entry| entry.path().unwrap().ends_with("events.txt"))
        .unwrap();
    let mut text = String::new();
    events.read_to_string(&mut text).unwrap();
    // The greeting is not an event.
    let ids: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("    id: "))
        .collect();
    let expected = [1, 2, 3].map(|number| format!("    id: \"{number:08}\","));
    assert_eq!(ids, expected, "{text}");
}

#[test]
fn support_has_the_nodes_that_answer_and_tells_of_the_others() {
    let setup = Setup::new(nothing);
    let run = setup.run(&["support", "-n", "dead-1,node-2", "-O", "both.tar.gz"]);
    run.exits(3)
        .tells("missing: dead-1: cannot ask for the version: cannot connect to the node dead-1")
        .tells("error: 1 of 2 nodes failed (dead-1): ");
    assert!(run.out().contains("wrote both.tar.gz"), "{}", run.out());
    let file = std::fs::File::open(setup.directory.path().join("both.tar.gz")).unwrap();
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(file));
    let names: Vec<String> = archive
        .entries()
        .unwrap()
        .map(|entry| entry.unwrap().path().unwrap().display().to_string())
        .collect();
    assert!(
        names.contains(&"node-2/version.txt".to_owned()),
        "{names:?}"
    );
    let of_dead: Vec<_> = names
        .iter()
        .filter(|it| it.starts_with("dead-1/"))
        .collect();
    assert_eq!(of_dead, ["dead-1/missing.txt"]);

    // Without a connection, as in maintenance mode: each has its own.
    let endpoint = setup.endpoint();
    let nodes = format!("127.0.0.9:1,{endpoint}");
    let run = setup.run(&["support", "--insecure", "-n", &nodes, "-O", "none.tar.gz"]);
    run.exits(4)
        .tells("missing: 127.0.0.9: cannot connect to 127.0.0.9:1")
        .tells("missing: 127.0.0.1: no TLS connection to 127.0.0.1:");
    // One alone leaves no file.
    let alone = ["support", "-n", "dead-1", "-O", "alone.tar.gz"];
    setup.run(&alone).exits(3);
    assert!(!setup.directory.path().join("alone.tar.gz").exists());
}

#[test]
fn a_cluster_begins_with_the_snapshot_that_was_sent() {
    let setup = Setup::new(nothing);
    let begun = || std::mem::take(&mut setup.node.state().begun);
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|it| (it % 251) as u8).collect();
    std::fs::write(setup.directory.path().join("s.db"), &bytes).unwrap();

    let recover = ["bootstrap", "--recover-from", "s.db"];
    let said = setup.run(&recover).exits(0).out();
    assert!(said.contains("the data of s.db"), "{said}");
    let (sent, request) = begun();
    let request = request.unwrap();
    assert!(sent == bytes && request.recover_etcd && !request.recover_skip_hash_check);

    let unchecked = [&recover[..], &["--recover-skip-hash-check"]].concat();
    setup.run(&unchecked).exits(0);
    assert!(begun().1.unwrap().recover_skip_hash_check);

    // Nothing is begun without the file.
    let missing = ["bootstrap", "--recover-from", "none.db"];
    setup.run(&missing).exits(1).tells("none.db");
    assert_eq!(begun(), (Vec::new(), None));
    setup.run(&["bootstrap"]).exits(0);
    assert_eq!(
        begun(),
        (Vec::new(), Some(wire::BootstrapRequest::default()))
    );
    setup
        .run(&["bootstrap", "--recover-skip-hash-check"])
        .exits(2);
}

#[test]
fn captures_are_whole_files_however_they_end() {
    use std::os::unix::fs::PermissionsExt as _;
    let setup = Setup::new(nothing);
    let path = setup.directory.path().join("a.pcap");
    let written = || std::fs::read(&path).unwrap();

    let arguments = ["pcap", "-O", "a.pcap", "--duration", "90s"];
    let said = setup.run(&arguments).exits(0).out();
    assert_eq!(said, "wrote 1 packet to a.pcap\n");
    assert_eq!(written(), fake_node::capture());
    let mode = path.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let (request, deadline) = setup.node.state().capture.take().unwrap();
    assert_eq!(
        (request.interface.as_str(), request.snap_len),
        ("eth0", 65_535)
    );
    assert!(!request.promiscuous && request.bpf_filter.is_empty());
    assert_eq!(deadline.as_deref(), Some("90000000u"));

    setup.run(&arguments).exits(5).tells("a.pcap exists");
    std::fs::write(
        &path,
        "longer than the capture is, which nothing of this may outlive",
    )
    .unwrap();
    let broken = ["pcap", "-i", "eth1", "-O", "a.pcap", "--force"];
    setup.run(&broken).exits(1).tells("went away");
    assert_eq!(written(), fake_node::capture());
    assert_eq!(setup.node.state().capture.take().unwrap().1, None);

    // This node does not apply a deadline to its stream.
    let silent = ["pcap", "-i", "lo", "--duration", "1s"];
    assert_eq!(setup.run(&silent).exits(0).0.stdout, fake_node::capture());

    let refused = [
        "pcap",
        "-i",
        "eth7",
        "-O",
        "none.pcap",
        "--promiscuous",
        "-s",
        "9",
    ];
    setup.run(&refused).exits(1).tells("no link \"eth7\"");
    assert!(!setup.directory.path().join("none.pcap").exists());
    let (request, _) = setup.node.state().capture.take().unwrap();
    assert!(request.promiscuous && request.snap_len == 9);
}

/// No certificate is made that would be lost.
#[test]
fn a_file_that_is_there_is_seen_before_a_certificate_is_made() {
    let setup = Setup::new(nothing);
    let taken = setup.directory.path().join("taken.yaml");
    std::fs::write(&taken, "mine\n").unwrap();
    let new = ["config", "new", "taken.yaml"];
    setup
        .run(&new)
        .exits(5)
        .tells("taken.yaml exists")
        .tells("replace it with --force");
    let forced = [&new[..], &["--force"]].concat();
    setup.run(&forced).exits(1).tells("does not serve it");
    assert_eq!(std::fs::read_to_string(&taken).unwrap(), "mine\n");
}

#[test]
fn config_is_sent_as_it_is() {
    let setup = Setup::new(nothing);
    std::fs::write(setup.directory.path().join("c.yaml"), "a: [1\n").unwrap();
    let out = setup
        .run(&["apply-config", "-f", "c.yaml", "--dry-run"])
        .exits(0)
        .out();
    assert!(
        out.contains("warning: machine.features is not served"),
        "{out}"
    );
    let request = setup.node.state().config.clone().unwrap();
    assert_eq!(
        (request.data.as_slice(), request.mode, request.dry_run),
        (b"a: [1\n".as_slice(), 1, true)
    );
}
