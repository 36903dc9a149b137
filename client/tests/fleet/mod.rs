//! Tests of `fleet` with three nodes in this process.

use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use instar_api::machine::machine_status_event::MachineStage;
use instar_api::machine::sequence_event::Action;
use instar_rollout::Replayed;
use instar_rollout_driver::replay_file;
use serde_json::Value;
use tempfile::TempDir;

use super::fake_node::FakeNode;
use super::{Duration, Run, authority, become_version, generate, leave, pause, run};

/// Nodes `n0`, `n1` and `n2`, and the directory with the file of their fleet.
struct Fleet {
    directory: TempDir,
    nodes: Vec<Arc<FakeNode>>,
}

impl Fleet {
    /// Nodes that follow this script, which gets the number of its node.
    fn new(script: impl Fn(usize, &Arc<FakeNode>) + Clone + Send + Sync + 'static) -> Self {
        let directory = generate("127.0.0.1:1");
        let authority = authority(directory.path());
        let mut file = String::from("nodes:\n");
        let mut nodes = Vec::new();
        for number in 0..3 {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            file.push_str(&format!(
                "  - {{name: n{number}, address: \"{address}\"}}\n"
            ));
            let script = script.clone();
            let script = Box::new(move |node: &Arc<FakeNode>| script(number, node));
            nodes.push(FakeNode::start(listener, &authority, script));
        }
        std::fs::write(directory.path().join("fleet.yaml"), file).unwrap();
        Self { directory, nodes }
    }

    fn roll<'a>(options: &[&'a str]) -> Vec<&'a str> {
        let roll = [
            "fleet",
            "roll",
            "--image",
            "r/i:v0.2.0",
            "--fleet",
            "fleet.yaml",
        ];
        [&roll[..], &["-o", "json", "--canary", "1"], options].concat()
    }

    fn run(&self, arguments: &[&str]) -> Run {
        run(self.directory.path(), arguments)
    }

    fn steps(&self) -> Vec<String> {
        let status = self.run(&["fleet", "status", "-o", "json"]);
        let nodes = status.exits(0).json()["nodes"].clone();
        let step = |node: &Value| node["step"].as_str().unwrap().to_owned();
        nodes.as_array().unwrap().iter().map(step).collect()
    }

    fn tags(&self) -> Vec<String> {
        self.nodes
            .iter()
            .map(|node| node.state().tag.clone())
            .collect()
    }
}

fn upgrade(node: &Arc<FakeNode>) {
    leave(node);
    pause(300);
    become_version(node, "v0.2.0");
    node.status(MachineStage::Running, true);
}

#[test]
fn a_fleet_is_rolled_with_the_canary_first() {
    let fleet = Fleet::new(|_, node| upgrade(node));
    let run = fleet.run(&Fleet::roll(&["--at-once", "2"]));
    let told = run.exits(0).out();
    assert_eq!(fleet.steps(), ["updated"; 3]);
    let place = |text: &str| {
        told.find(text)
            .unwrap_or_else(|| panic!("no {text} in {told}"))
    };
    let canary = place(r#"{"node":"n0","reason":"runs the version"}"#);
    assert!(
        canary < place(r#"{"node":"n1","reason":"begins now"}"#),
        "{told}"
    );
    assert!(
        place(r#"{"node":"n2","reason":"begins now"}"#) > canary,
        "{told}"
    );
}

#[test]
fn a_failure_stops_before_the_next_node_and_a_person_goes_on() {
    let fleet = Fleet::new(|number, node| match number {
        0 => {
            leave(node);
            node.sequence("upgrade", Action::Noop, Some("the moon is full"));
        }
        _ => upgrade(node),
    });
    let run = fleet.run(&Fleet::roll(&[]));
    run.exits(1).tells("the moon is full");
    assert_eq!(fleet.steps(), ["failed", "waiting", "waiting"]);
    assert!(fleet.nodes[1].state().upgrade.is_none());
    let resumed = fleet.run(&["fleet", "resume"]);
    resumed
        .exits(1)
        .tells("the rollout is done, and 1 node failed: n0: ")
        .tells("`instarctl fleet retry`");
    assert_eq!(fleet.steps(), ["failed", "updated", "updated"]);
    assert_eq!(fleet.tags(), ["v0.1.0", "v0.2.0", "v0.2.0"]);
}

#[test]
fn a_rollout_that_is_killed_goes_on_where_it_was() {
    let fleet = Fleet::new(|_, node| {
        // Longer than a second driver waits for the first one's end.
        pause(8000);
        upgrade(node);
    });
    let mut killed = Command::new(env!("CARGO_BIN_EXE_instarctl"))
        .args(Fleet::roll(&[]))
        .current_dir(fleet.directory.path())
        .env_clear()
        .env("TALOSCONFIG", fleet.directory.path().join("talosconfig"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let until = Instant::now() + Duration::from_secs(30);
    while fleet.nodes[0].state().upgrade.is_none() {
        assert!(Instant::now() < until, "it does not begin");
        pause(20);
    }
    // A second driver is refused meanwhile; people are not.
    let second = fleet.run(&Fleet::roll(&[]));
    second.exits(5).tells("another command drives the rollout");
    fleet
        .run(&["fleet", "hold", "n2", "--reason", "mine"])
        .exits(0);
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert_eq!(fleet.steps(), ["upgrading", "waiting", "waiting"]);
    let run = fleet.run(&Fleet::roll(&[]));
    run.exits(0)
        .tells("goes on with the rollout of r/i:v0.2.0, with the policies that it began with");
    assert_eq!(fleet.steps(), ["updated", "updated", "left"]);
    assert_eq!(fleet.tags(), ["v0.2.0", "v0.2.0", "v0.1.0"]);
}

#[test]
fn a_plan_shows_who_would_wait_for_whom() {
    let fleet = Fleet::new(|_, _| {});
    let mut arguments = Fleet::roll(&[]);
    arguments[1] = "plan";
    let plan = fleet.run(&arguments).exits(0).json();
    let reason = |number: usize| plan["nodes"][number]["reason"].as_str().unwrap().to_owned();
    assert_eq!(reason(0), "begins now");
    assert_eq!(reason(2), "waits for n0, which is in a wave before");
    assert_eq!(plan["nodes"][0]["refused"], false);
    assert_eq!(fleet.tags(), ["v0.1.0"; 3]);
    fleet
        .run(&["fleet", "status"])
        .exits(5)
        .tells("there is no rollout");
}

#[test]
fn a_plan_that_no_node_answers_says_why() {
    let directory = generate("127.0.0.1:1");
    let nodes =
        (1..=4).map(|number| format!("  - {{name: n{number}, address: \"127.0.0.1:{number}\"}}\n"));
    let file = format!("nodes:\n{}", nodes.collect::<String>());
    std::fs::write(directory.path().join("fleet.yaml"), file).unwrap();
    let mut arguments = Fleet::roll(&[]);
    arguments[1] = "plan";
    let plan = run(directory.path(), &arguments);
    plan.exits(3)
        .tells("; n1: cannot connect to 127.0.0.1:1")
        .tells("; n3: ")
        .tells("instarctl -e ADDRESS version");
    assert!(!plan.err().contains("; n4: "), "{}", plan.err());
}

#[test]
fn a_share_is_no_single_node_and_the_file_may_name_more() {
    for (options, policies) in [
        (vec!["--share", "100"], ""),
        (vec![], "policies:\n  - {atOnce: 3}\n"),
    ] {
        let fleet = Fleet::new(|_, _| {});
        let file = fleet.directory.path().join("fleet.yaml");
        let nodes = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, format!("{nodes}{policies}")).unwrap();
        let plan = [
            "fleet",
            "plan",
            "--image",
            "r/i:v0.2.0",
            "--fleet",
            "fleet.yaml",
        ];
        let plan = fleet.run(&[&plan[..], &["-o", "json"], &options].concat());
        for node in plan.exits(0).json()["nodes"].as_array().unwrap() {
            assert_eq!(node["reason"], "begins now", "{options:?} {policies}");
        }
    }
}

#[test]
fn a_node_that_is_away_keeps_no_other_from_its_certificate() {
    let fleet = Fleet::new(|_, _| {});
    let file = fleet.directory.path().join("fleet.yaml");
    let others = std::fs::read_to_string(&file).unwrap();
    let away = "nodes:\n  - {name: away, address: \"127.0.0.1:1\"}\n";
    std::fs::write(&file, others.replace("nodes:\n", away)).unwrap();
    let sign = ["fleet", "sign", "--authority", "machine.yaml"];
    let run = fleet.run(&[&sign[..], &["--fleet", "fleet.yaml"]].concat());
    run.exits(1)
        .tells("not signed: away: ")
        .tells("not signed for away");
    for name in ["n0", "n1", "n2"] {
        let line = format!("{name}: has its authority's key and signs for itself");
        assert!(run.out().contains(&line), "{}", run.out());
    }
}

#[test]
fn a_node_that_knows_its_cluster_names_the_fleet() {
    let fleet = Fleet::new(|_, node| upgrade(node));
    let node = &fleet.nodes[0];
    node.state().members = [1, 2]
        .map(|number| (format!("worker-{number}"), [10, 0, 0, number]))
        .into();
    let endpoint = node.address().to_string();
    let roll = |verb| {
        let image = ["-e", &endpoint, "fleet", verb, "--image", "r/i:v0.2.0"];
        fleet.run(&[&image[..], &["--members", "-o", "json"]].concat())
    };
    let plan = roll("plan");
    plan.exits(0).tells("worker-1, worker-2");
    let names: Vec<_> = plan.json()["nodes"].as_array().unwrap().clone();
    let names: Vec<&str> = names
        .iter()
        .map(|it| it["node"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["worker-1", "worker-2"]);
    roll("roll").exits(0);
    assert_eq!(fleet.steps(), ["updated"; 2]);
    // Each call went through the endpoint, to the address of its member.
    let asked = node.state().asked_for.clone();
    for address in ["10.0.0.1", "10.0.0.2"] {
        assert!(asked.contains(&Some(address.to_owned())), "{asked:?}");
    }
    assert!(node.state().upgrade.is_some());
}

/// Nobody passes the call on: the certificate has to be the member's own.
#[test]
fn members_are_signed_for_and_rotated_at_their_own_addresses() {
    let fleet = Fleet::new(|_, _| {});
    let node = &fleet.nodes[0];
    // The address of a group: a connection to it fails at once.
    node.state().members = vec![("worker-1".to_owned(), [224, 0, 0, 7])];
    let endpoint = node.address().to_string();
    let run = |arguments: &[&str]| {
        let members = ["-e", &endpoint, "fleet"];
        fleet.run(&[&members[..], arguments, &["--members"]].concat())
    };
    let signed = run(&["sign", "--authority", "machine.yaml"]);
    signed.exits(3).tells("worker-1: ").tells("224.0.0.7");
    let plan = run(&["rotate", "--dry-run"]);
    let line = "then: waits for worker-1 (";
    assert!(plan.exits(0).out().contains(line), "{}", plan.out());
    assert!(plan.out().contains("224.0.0.7"), "{}", plan.out());
    let asked = node.state().asked_for.clone();
    assert!(asked.iter().all(Option::is_none), "{asked:?}");
}

#[test]
fn a_config_is_for_no_fleet() {
    let fleet = Fleet::new(|_, _| {});
    let sign = ["fleet", "sign", "--authority", "machine.yaml", "--members"];
    for one in ["--apply", "--name"] {
        let run = fleet.run(&[&sign[..], &[one, "machine.yaml"]].concat());
        run.exits(2).tells("--members");
    }
}

#[test]
fn a_node_that_knows_no_member_is_no_fleet() {
    let fleet = Fleet::new(|_, _| {});
    let endpoint = fleet.nodes[0].address().to_string();
    let plan = [
        "fleet",
        "plan",
        "--image",
        "r/i:v0.2.0",
        "--members",
        "-e",
        &endpoint,
    ];
    fleet.run(&plan).exits(2).tells("lists no members");
}

/// Replays a trace that a run has written, and keeps it for the tests of the engine if they are to be written anew.
fn replay(fleet: &Fleet, name: &str) -> Replayed {
    let file = fleet.directory.path().join("trace.jsonl");
    let replayed = replay_file(&file).unwrap_or_else(|failure| panic!("{}", failure.chain()));
    if std::env::var_os("INSTAR_BLESS").is_some() {
        let kept = format!(
            "{}/../rollout/tests/data/{name}",
            env!("CARGO_MANIFEST_DIR")
        );
        std::fs::copy(&file, kept).unwrap();
    }
    replayed
}

#[test]
fn trace_of_a_run_in_waves_is_what_the_engine_decides() {
    let fleet = Fleet::new(|_, node| upgrade(node));
    let roll = Fleet::roll(&["--at-once", "2", "--trace", "trace.jsonl"]);
    fleet.run(&roll).exits(0);
    let replayed = replay(&fleet, "waves.jsonl");
    assert_eq!(replayed.actions, 3);
    assert!(replayed.rounds < 12, "{replayed:?}");
}

#[test]
fn trace_of_a_run_that_goes_back_is_what_the_engine_decides() {
    let fleet = Fleet::new(|number, node| match number {
        1 => {
            leave(node);
            node.sequence("upgrade", Action::Noop, Some("the moon is full"));
        }
        _ => {
            let runs = node.state().tag.clone();
            leave(node);
            pause(300);
            become_version(node, if runs == "v0.1.0" { "v0.2.0" } else { "v0.1.0" });
            node.status(MachineStage::Running, true);
        }
    });
    let roll = Fleet::roll(&["--roll-back", "--trace", "trace.jsonl"]);
    fleet.run(&roll).exits(6);
    assert_eq!(replay(&fleet, "way-back.jsonl").actions, 3);
}
