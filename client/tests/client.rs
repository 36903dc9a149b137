//! The program itself against a node in this process: its output and its exit code.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::panic)]

use std::io::Read as _;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use instar_api::machine as wire;
use instar_api::machine::machine_status_event::MachineStage;
use instar_api::machine::sequence_event::Action;
use instar_pki::CertificateAuthority;
use serde_json::Value;
use tempfile::TempDir;
use tonic::Status;

mod fake_node;
mod fleet;
mod streams;
mod validate;

use fake_node::{ACTOR, FakeNode};

/// A node, and the directory with the files that `gen config` made for it.
struct Setup {
    directory: TempDir,
    node: Arc<FakeNode>,
}

impl Setup {
    fn new(script: impl Fn(&Arc<FakeNode>) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let directory = generate(&listener.local_addr().unwrap().to_string());
        let authority = authority(directory.path());
        let node = FakeNode::start(listener, &authority, Box::new(script));
        Self { directory, node }
    }

    fn run(&self, arguments: &[&str]) -> Run {
        run(self.directory.path(), arguments)
    }

    /// The node's address with its port.
    fn endpoint(&self) -> String {
        let text = std::fs::read_to_string(self.directory.path().join("talosconfig")).unwrap();
        let mut lines = text.lines();
        let endpoint = lines.find_map(|line| line.trim().strip_prefix("- "));
        endpoint.unwrap().trim_matches('"').to_owned()
    }

    fn upgrade(&self) -> Run {
        self.run(&[
            "upgrade",
            "--image",
            "r/i:v0.2.0",
            "--timeout",
            "30s",
            "-o",
            "json",
        ])
    }
}

/// Makes a configuration with the program.
fn generate(endpoint: &str) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let run = run(
        directory.path(),
        &["gen", "config", "demo", endpoint, "--output-dir", "."],
    );
    run.exits(0);
    directory
}

/// The authority in the machine config, read as a node reads it.
fn authority(directory: &Path) -> CertificateAuthority {
    use base64::Engine;
    #[derive(serde::Deserialize)]
    struct Main {
        machine: Machine,
    }
    #[derive(serde::Deserialize)]
    struct Machine {
        ca: Authority,
    }
    #[derive(serde::Deserialize)]
    struct Authority {
        crt: String,
        key: String,
    }
    let text = std::fs::read_to_string(directory.join("machine.yaml")).unwrap();
    let main: Main = serde_saphyr::from_str(text.split("---\n").next().unwrap()).unwrap();
    let decode = |value: &str| String::from_utf8(BASE64_STANDARD.decode(value).unwrap()).unwrap();
    let ca = main.machine.ca;
    CertificateAuthority::from_pem(&decode(&ca.crt), &decode(&ca.key)).unwrap()
}

struct Run(Output);

fn run(directory: &Path, arguments: &[&str]) -> Run {
    Run(command(directory, arguments).output().unwrap())
}

fn command(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_instarctl"));
    command
        .args(arguments)
        .current_dir(directory)
        .env_clear()
        .env("TALOSCONFIG", directory.join("talosconfig"));
    command
}

impl Run {
    #[track_caller]
    fn exits(&self, code: i32) -> &Self {
        assert_eq!(
            self.0.status.code(),
            Some(code),
            "\nstdout: {}\nstderr: {}",
            self.out(),
            self.err()
        );
        self
    }

    fn out(&self) -> String {
        String::from_utf8(self.0.stdout.clone()).unwrap()
    }

    fn err(&self) -> String {
        String::from_utf8(self.0.stderr.clone()).unwrap()
    }

    #[track_caller]
    fn tells(&self, text: &str) -> &Self {
        assert!(self.err().contains(text), "no {text:?} in\n{}", self.err());
        self
    }

    #[track_caller]
    fn json(&self) -> Value {
        serde_json::from_str(&self.out()).unwrap_or_else(|error| panic!("{error}: {}", self.out()))
    }
}

fn pause(milliseconds: u64) {
    std::thread::sleep(Duration::from_millis(milliseconds));
}

fn nothing(_: &Arc<FakeNode>) {}

/// The first half of an upgrade, up to the swap.
fn leave(node: &FakeNode) {
    node.status(MachineStage::Upgrading, false);
    node.sequence("upgrade", Action::Start, None);
    node.phase("stopServices");
    node.phase("install");
}

fn become_version(node: &FakeNode, tag: &str) {
    let mut state = node.state();
    state.tag = tag.into();
    state.boot_id = format!("boot-of-{tag}");
}

#[test]
fn upgrade_over_a_dropped_link() {
    let setup = Setup::new(|node| {
        leave(node);
        node.end_generation();
        pause(300);
        become_version(node, "v0.2.0");
        node.status(MachineStage::Booting, false);
        node.begin_generation();
        pause(500);
        node.status(MachineStage::Running, true);
    });
    let run = setup.upgrade();
    let json = run.exits(0).json();
    assert_eq!(json["version_before"], "v0.1.0");
    assert_eq!(json["version_after"], "v0.2.0");
    assert_eq!(json["boot_id_before"], "boot-1");
    assert_eq!(json["boot_id_after"], "boot-of-v0.2.0");
    assert_eq!(json["actor_id"], ACTOR);
    // Messages that were in flight when the link broke may be lost, so the phases are not checked here.
    run.tells("the link is down").tells("running, ready");
    let request = setup.node.state().upgrade.clone().unwrap();
    assert_eq!(
        (request.image.as_str(), request.preserve, request.force),
        ("r/i:v0.2.0", true, false)
    );
}

#[test]
fn upgrade_that_was_ready_before_the_client_came_back() {
    let setup = Setup::new(|node| {
        leave(node);
        node.end_generation();
        become_version(node, "v0.2.0");
        node.status(MachineStage::Running, true);
        node.begin_generation();
    });
    assert_eq!(setup.upgrade().exits(0).json()["version_after"], "v0.2.0");
}

#[test]
fn upgrade_without_a_dropped_link() {
    let setup = Setup::new(|node| {
        leave(node);
        become_version(node, "v0.2.0");
        node.status(MachineStage::Running, true);
    });
    let run = setup.upgrade();
    assert_eq!(run.exits(0).json()["version_after"], "v0.2.0");
    run.tells("phase install done");
    assert!(!run.err().contains("link is down"), "{}", run.err());
}

#[test]
fn a_boot_id_that_changes_late_is_waited_for() {
    let setup = Setup::new(|node| {
        leave(node);
        node.status(MachineStage::Running, true);
        pause(1500);
        become_version(node, "v0.2.0");
    });
    assert_eq!(
        setup.upgrade().exits(0).json()["boot_id_after"],
        "boot-of-v0.2.0"
    );
}

#[test]
fn rollback_told_before_the_node_is_ready() {
    let setup = Setup::new(|node| {
        leave(node);
        node.end_generation();
        node.state().boot_id = "boot-3".into();
        node.sequence(
            "upgrade",
            Action::Noop,
            Some("version v0.2.0 was rolled back: web is not healthy"),
        );
        node.status(MachineStage::Running, true);
        node.begin_generation();
    });
    setup
        .upgrade()
        .exits(6)
        .tells("rolled back")
        .tells("web is not healthy");
}

#[test]
fn rollback_told_after_the_node_is_ready() {
    let setup = Setup::new(|node| {
        leave(node);
        node.end_generation();
        node.state().boot_id = "boot-3".into();
        node.status(MachineStage::Running, true);
        node.sequence("upgrade", Action::Noop, Some("web is not healthy"));
        node.begin_generation();
    });
    setup.upgrade().exits(6).tells("web is not healthy");
}

#[test]
fn rollback_that_nobody_tells_shows_in_the_version() {
    let setup = Setup::new(|node| {
        leave(node);
        node.end_generation();
        node.state().boot_id = "boot-3".into();
        node.status(MachineStage::Running, true);
        node.begin_generation();
    });
    setup.upgrade().exits(6).tells("not with v0.2.0");
}

#[test]
fn failure_before_the_swap_is_no_rollback() {
    let setup = Setup::new(|node| {
        leave(node);
        node.sequence("upgrade", Action::Noop, Some("the installer exited with 7"));
    });
    setup
        .upgrade()
        .exits(1)
        .tells("the installer exited with 7")
        .tells("runs on as before");
}

#[test]
fn upgrade_that_never_ends_times_out_and_says_where_it_was() {
    let setup = Setup::new(|node| {
        leave(node);
        node.task("runInstaller");
    });
    let run = setup.run(&["upgrade", "--image", "r/i:v0.2.0", "--timeout", "2s"]);
    run.exits(7)
        .tells("not done after 2 s")
        .tells("task runInstaller started");
}

#[test]
fn node_that_never_comes_back_times_out() {
    let setup = Setup::new(|node| {
        leave(node);
        node.end_generation();
    });
    setup
        .run(&["upgrade", "--image", "r/i:v0.2.0", "--timeout", "3s"])
        .exits(7)
        .tells("the link is down");
}

#[test]
fn refused_upgrade_shows_the_nodes_words() {
    let setup = Setup::new(nothing);
    setup.node.state().refusal = Some(Status::failed_precondition("an upgrade is already running"));
    let run = setup.run(&["upgrade", "--image", "r/i:v0.2.0", "-o", "json"]);
    run.exits(5);
    let error: Value = serde_json::from_str(run.err().lines().last().unwrap()).unwrap();
    assert_eq!(error["exit_code"], 5);
    assert!(
        error["error"]
            .as_str()
            .unwrap()
            .contains("an upgrade is already running"),
        "{error}"
    );
}

#[test]
fn upgrade_without_waiting_returns_at_once() {
    let setup = Setup::new(nothing);
    let run = setup.run(&[
        "upgrade",
        "--image",
        "r/i:v0.2.0",
        "--no-wait",
        "--stage",
        "-o",
        "json",
    ]);
    assert_eq!(run.exits(0).json()["actor_id"], ACTOR);
    assert!(setup.node.state().upgrade.clone().unwrap().stage);
}

#[test]
fn an_upgrade_is_only_prepared_where_it_is_not_to_reboot() {
    let setup = Setup::new(nothing);
    let prepare = |lines, code| {
        setup.node.state().preparation = (lines, code);
        setup.run(&["upgrade", "--image", "r/i:v0.2.0", "--no-reboot"])
    };
    let run = prepare(vec!["looking it up", "v0.2.0 is ready"], Some(0));
    run.exits(0).tells("looking it up");
    assert_eq!(run.out(), "127.0.0.1: v0.2.0 is ready\n");
    let run = prepare(vec!["the image is for arm64"], Some(3));
    run.exits(5)
        .tells("error: 127.0.0.1: the image is for arm64");
    let run = prepare(vec!["the disk is full"], Some(7));
    run.exits(1).tells("the disk is full (exit code 7)");
    // Other clients take that for a success.
    prepare(vec!["well"], None)
        .exits(1)
        .tells("did not say how the preparation ended");
    assert!(setup.node.state().upgrade.is_none());
    setup
        .run(&["upgrade", "--image", "i", "--no-reboot", "--stage"])
        .exits(2);
}

#[test]
fn reboot_by_somebody_who_may_not_read_files() {
    let setup = Setup::new(|node| {
        node.sequence("reboot", Action::Start, None);
        node.end_generation();
        node.status(MachineStage::Running, true);
        node.begin_generation();
    });
    setup.node.state().read_refusal = Some(Status::permission_denied("not authorized"));
    let json = setup.run(&["reboot", "-o", "json"]).exits(0).json();
    assert_eq!(json["boot_id_before"], Value::Null);
}

#[test]
fn reboot_is_not_sent_when_it_cannot_be_followed() {
    let setup = Setup::new(|node| become_version(node, "v-sent"));
    setup.node.state().read_refusal = Some(Status::not_found("no file"));
    setup
        .run(&["reboot"])
        .exits(1)
        .tells("cannot read the boot id");
    pause(300);
    assert_eq!(setup.node.state().tag, "v0.1.0", "the action was sent");
}

#[test]
fn shutdown_ends_when_everything_stopped() {
    let setup = Setup::new(|node| {
        node.sequence("shutdown", Action::Start, None);
        node.task("stopAllServices");
        pause(200);
        node.end_generation();
    });
    setup.run(&["shutdown"]).exits(0);
}

#[test]
fn shutdown_ends_when_the_link_goes_after_it_began() {
    let setup = Setup::new(|node| {
        node.sequence("shutdown", Action::Start, None);
        pause(200);
        node.end_generation();
    });
    setup.run(&["shutdown", "--timeout", "20s"]).exits(0);
}

#[test]
fn version_names_the_node_that_is_asked() {
    let setup = Setup::new(nothing);
    assert_eq!(
        setup.run(&["version", "-o", "json"]).exits(0).json()["version"],
        "v0.1.0"
    );
    setup.run(&["version", "-n", "10.0.2.15,node-2"]).exits(0);
    let asked = setup.node.state().asked_for.clone();
    assert_eq!(
        asked,
        [
            None,
            Some("10.0.2.15".to_owned()),
            Some("node-2".to_owned())
        ]
    );
}

#[test]
fn a_node_that_is_away_keeps_no_other_from_its_answer() {
    let setup = Setup::new(nothing);
    let run = setup.run(&["version", "-n", "dead-1,node-2,dead-3"]);
    run.exits(3)
        .tells("error: dead-1: cannot ask for the version: cannot connect to the node dead-1")
        .tells("help: the node may be restarting")
        .tells("error: 2 of 3 nodes failed (dead-1, dead-3): ");
    assert!(run.out().contains("node-2"), "{}", run.out());

    // The worst failure counts: this one is the node's own word, and says nothing of being away.
    std::fs::write(setup.directory.path().join("c.yaml"), "a: 1\n").unwrap();
    let apply = ["apply-config", "-f", "c.yaml", "-n"];
    let apply = |nodes: &str| setup.run(&[&apply[..], &[nodes]].concat());
    apply("dead-1,full-2,node-3").exits(5);
    let asked = setup.node.state().asked_for.clone();
    assert_eq!(asked.last().unwrap().as_deref(), Some("node-3"));
    // One node alone fails as ever.
    let alone = apply("dead-1");
    alone.exits(3);
    assert_eq!(alone.err().matches("error: ").count(), 1, "{}", alone.err());
    let json = setup.run(&["version", "-n", "dead-1,node-2", "-o", "json"]);
    assert_eq!(json.exits(3).json()["node"], "node-2");
    assert_eq!(json.err().lines().count(), 2, "{}", json.err());
}

#[test]
fn services_are_listed_shown_and_controlled() {
    let setup = Setup::new(nothing);
    let list = setup.run(&["services"]).exits(0).out();
    let lines: Vec<&str> = list.lines().collect();
    assert!(lines[0].starts_with("NODE"), "{list}");
    assert!(
        lines[1].contains("apid") && lines[1].contains("OK"),
        "{list}"
    );
    assert!(
        lines[2].contains("web") && lines[2].contains("Fail"),
        "{list}"
    );
    assert!(
        setup
            .run(&["service", "web", "restart"])
            .exits(0)
            .out()
            .contains("\"web\" restarted")
    );
    setup
        .run(&["service", "nope"])
        .exits(1)
        .tells("it has apid, web");
}

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
fn sign_asks_each_node_without_a_config() {
    let setup = Setup::new(nothing);
    let nodes = format!("127.0.0.9:1,{}", setup.endpoint());
    let sign = ["fleet", "sign", "--authority", "machine.yaml", "--insecure"];
    setup
        .run(&[&sign[..], &["-n", &nodes]].concat())
        .exits(1)
        .tells("not signed: cannot connect to 127.0.0.9:1")
        .tells("refused the client's certificate")
        .tells("not signed for 127.0.0.9, 127.0.0.1");
}

#[test]
fn logs_join_lines_over_pieces() {
    let setup = Setup::new(nothing);
    assert_eq!(
        setup.run(&["logs", "web"]).exits(0).out(),
        "one\ntwo\nthree\n"
    );
    let run = setup.run(&["logs", "web", "-f"]);
    assert_eq!(run.exits(1).out(), "one\ntwo\n");
    run.tells("the service's log went away");
}

#[test]
fn read_gives_the_bytes() {
    let setup = Setup::new(nothing);
    assert_eq!(
        setup.run(&["read", "/etc/os-release"]).exits(0).out(),
        "ID=instar\n"
    );
    setup
        .run(&["read", "/nope"])
        .exits(1)
        .tells("no file /nope");
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

#[test]
fn what_a_node_does_not_serve_is_said_so() {
    let setup = Setup::new(nothing);
    setup.run(&["memory"]).exits(1).tells("does not serve it");
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

#[test]
fn nobody_at_the_endpoint() {
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let directory = generate(&format!("127.0.0.1:{port}"));
    run(directory.path(), &["version"])
        .exits(3)
        .tells(&format!("error: cannot connect to 127.0.0.1:{port}: "))
        .tells("port 50000 of the guest is forwarded");
}

#[test]
fn something_else_at_the_endpoint() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let directory = generate(&listener.local_addr().unwrap().to_string());
    std::thread::spawn(move || {
        use std::io::Write;
        for stream in listener.incoming() {
            // The client may have disconnected.
            let _ = stream.unwrap().write_all(b"SSH-2.0-OpenSSH_9.9\r\n");
        }
    });
    run(directory.path(), &["version"])
        .exits(3)
        .tells("is the API of a node and not something else");
}

#[test]
fn secrets_of_a_fleet_are_written_once() {
    let directory = TempDir::new().unwrap();
    let place = directory.path();
    run(place, &["gen", "secrets"]).exits(0);
    let file = place.join("secrets.yaml");
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&file), 0o600);
    let secrets = std::fs::read(&file).unwrap();
    run(place, &["gen", "secrets"]).tells("secrets.yaml exists");
    assert_eq!(std::fs::read(&file).unwrap(), secrets);

    // Machines and clients of one authority, in either order of making them.
    let config = |name: &str, more: &[&str]| {
        let arguments = ["gen", "config", name, "127.0.0.1:1", "--output-dir", name];
        run(place, &[&arguments[..], more].concat())
    };
    for name in ["first", "second"] {
        config(name, &["--with-secrets", "secrets.yaml"]).exits(0);
    }
    let read = |path: &str| std::fs::read_to_string(place.join(path)).unwrap();
    assert_eq!(read("first/machine.yaml"), read("second/machine.yaml"));
    assert_eq!(mode(&place.join("first/machine.yaml")), 0o600);

    // The other way round: the authority of a machine config, and the rest made anew.
    let from = [
        "gen",
        "secrets",
        "--from-controlplane-config",
        "first/machine.yaml",
    ];
    run(
        place,
        &[&from[..], &["--output-file", "again.yaml"]].concat(),
    )
    .exits(0)
    .tells("made anew: cluster.id");
    config("third", &["--with-secrets", "again.yaml"]).exits(0);
    assert_eq!(read("first/machine.yaml"), read("third/machine.yaml"));

    run(place, &["gen", "secrets", "--force"]).exits(0);
    assert_ne!(std::fs::read(&file).unwrap(), secrets);
    config("fourth", &["--with-secrets", "first/talosconfig"]).tells("certs.os");
    assert!(!place.join("fourth/machine.yaml").exists());
}

#[test]
fn secrets_of_a_cluster_of_kubeadm_are_taken_over() {
    let directory = TempDir::new().unwrap();
    let place = directory.path();
    std::fs::create_dir_all(place.join("pki/etcd")).unwrap();
    let write = |name: &str, text: String| std::fs::write(place.join("pki").join(name), text);
    for name in ["ca", "etcd/ca", "front-proxy-ca"] {
        let made = CertificateAuthority::generate_p256(&[], Some(name), SystemTime::now());
        let made = made.unwrap();
        write(&format!("{name}.crt"), made.certificate_pem()).unwrap();
        write(&format!("{name}.key"), made.key_pem()).unwrap();
    }
    let token = "znzio1.1ifu15frz7jd59pv";
    let secrets = |more: &[&str]| {
        let arguments = ["gen", "secrets", "-p", "pki"];
        run(place, &[&arguments[..], more].concat())
    };
    secrets(&["-t", token]).exits(1).tells("pki/sa.key");
    assert!(!place.join("secrets.yaml").exists());
    let key = instar_pki::PrivateKey::generate_p256_sec1().unwrap();
    write("sa.key", key.to_pem()).unwrap();
    secrets(&["-t", "znzio1"]).exits(2).tells("kubeadm token");
    secrets(&["-t", token])
        .exits(0)
        .tells("the Kubernetes PKI lacks, and so made anew: cluster.id");

    let text = std::fs::read_to_string(place.join("secrets.yaml")).unwrap();
    let made: Value = serde_saphyr::from_str(&text).unwrap();
    assert_eq!(made["secrets"]["bootstraptoken"], token);
    let encoded = made["certs"]["k8sserviceaccount"]["key"].as_str().unwrap();
    assert_eq!(
        BASE64_STANDARD.decode(encoded).unwrap(),
        key.to_pem().into_bytes()
    );
    let config = ["gen", "config", "node", "127.0.0.1:1"];
    run(
        place,
        &[&config[..], &["--with-secrets", "secrets.yaml"]].concat(),
    )
    .exits(0);

    // Without the cluster's token there is one that the cluster does not know.
    secrets(&["-f"]).exits(0).tells("secrets.bootstraptoken");
    secrets(&["--from-controlplane-config", "machine.yaml"]).exits(2);
    let only_token = ["gen", "secrets", "--kubernetes-bootstrap-token", token];
    run(place, &only_token).exits(2);
}

#[test]
fn secrets_are_those_of_a_version() {
    let directory = TempDir::new().unwrap();
    let of = |version: &str| {
        let arguments = ["gen", "secrets", "--output-file", "-", "--talos-version"];
        run(directory.path(), &[&arguments[..], &[version]].concat())
    };
    for (version, key) in [
        ("v1.13", "secretboxencryptionsecret"),
        ("v1.2", "aescbcencryptionsecret"),
    ] {
        let made: Value = serde_saphyr::from_str(&of(version).exits(0).out()).unwrap();
        assert!(made["secrets"][key].is_string(), "{version}");
    }
    of("v0.8").exits(2).tells("take v1.0 to v1.14");
    of("newest").exits(2).tells("write it like v1.14");
}

#[test]
fn node_of_another_authority() {
    let setup = Setup::new(nothing);
    let other = generate("127.0.0.1:1");
    let endpoint =
        String::from_utf8(std::fs::read(setup.directory.path().join("talosconfig")).unwrap())
            .unwrap();
    let endpoint = endpoint
        .lines()
        .find_map(|line| line.trim().strip_prefix("- "))
        .unwrap();
    run(other.path(), &["version", "-e", endpoint.trim_matches('"')])
        .exits(4)
        .tells("belongs to another authority");
}

#[test]
fn node_under_a_name_that_its_certificate_lacks() {
    let setup = Setup::new(nothing);
    let text = std::fs::read_to_string(setup.directory.path().join("talosconfig")).unwrap();
    let port = text
        .lines()
        .find_map(|line| {
            line.rsplit_once(':')?
                .1
                .trim_matches('"')
                .parse::<u16>()
                .ok()
        })
        .unwrap();
    setup
        .run(&["version", "-e", &format!("localhost:{port}")])
        .exits(4)
        .tells("machine.certSANs");
}

#[test]
fn client_certificate_of_another_authority() {
    let setup = Setup::new(nothing);
    // The node's authority, but another client's identity.
    let other = generate("127.0.0.1:1");
    // The key's line and the folded value below it.
    let take = |directory: &Path, key: &str| {
        let text = std::fs::read_to_string(directory.join("talosconfig")).unwrap();
        let indent = |line: &str| line.len() - line.trim_start().len();
        let mut lines = text
            .lines()
            .skip_while(|line| !line.trim().starts_with(key));
        let first = lines.next().unwrap();
        let value = lines.take_while(|line| indent(line) > indent(first));
        [first]
            .into_iter()
            .chain(value)
            .collect::<Vec<_>>()
            .join("\n")
    };
    let text = std::fs::read_to_string(setup.directory.path().join("talosconfig")).unwrap();
    let mut mixed = text.clone();
    for key in ["crt:", "key:"] {
        mixed = mixed.replace(&take(setup.directory.path(), key), &take(other.path(), key));
    }
    assert_ne!(mixed, text);
    std::fs::write(setup.directory.path().join("talosconfig"), mixed).unwrap();
    setup
        .run(&["version"])
        .exits(4)
        .tells("refused the client's certificate");
}

#[test]
fn insecure_takes_any_node_or_the_pinned_one() {
    let setup = Setup::new(nothing);
    // This node asks for a certificate all the same, so the handshake gets that far.
    let endpoint = &setup.endpoint();
    setup
        .run(&["version", "--insecure", "-n", endpoint])
        .exits(4)
        .tells("refused the client's certificate");
    setup
        .run(&[
            "version",
            "--insecure",
            "-n",
            endpoint,
            "--cert-fingerprint",
            "AAAA",
        ])
        .exits(4)
        .tells("has another key");
    setup.run(&["version", "--insecure"]).exits(2);
}

#[test]
fn configuration_that_is_missing_or_bad() {
    let directory = tempfile::tempdir().unwrap();
    run(directory.path(), &["version"])
        .exits(2)
        .tells("gen config");
    std::fs::write(directory.path().join("talosconfig"), "contexts: 5\n").unwrap();
    run(directory.path(), &["version"])
        .exits(2)
        .tells("talosconfig");
    let other = generate("127.0.0.1:1");
    run(other.path(), &["version", "--context", "nope"])
        .exits(2)
        .tells("it has demo");
    run(other.path(), &["nonsense"]).exits(2);
}

#[test]
fn generating_twice_is_refused() {
    let directory = generate("127.0.0.1:1");
    run(directory.path(), &["gen", "config", "demo", "127.0.0.1:1"])
        .exits(5)
        .tells("--force");
    run(
        directory.path(),
        &["gen", "config", "demo", "127.0.0.1:1", "--force"],
    )
    .exits(0);
    run(directory.path(), &["gen", "config", "demo", "http://x"]).exits(2);
}

#[test]
fn completions_and_help_need_no_node() {
    let directory = tempfile::tempdir().unwrap();
    assert!(
        run(directory.path(), &["completion", "bash"])
            .exits(0)
            .out()
            .contains("instarctl")
    );
    assert!(
        run(directory.path(), &["--help"])
            .exits(0)
            .out()
            .contains("rolled back")
    );
}
