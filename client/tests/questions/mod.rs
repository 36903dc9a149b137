//! What a node is asked for, and what it answers.

use super::*;

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
fn what_a_node_does_not_serve_is_said_so() {
    let setup = Setup::new(nothing);
    setup.run(&["memory"]).exits(1).tells("does not serve it");
}
