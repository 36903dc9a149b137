//! An upgrade is followed to its end, whatever comes between.

use tonic::Status;

use super::fake_node::ACTOR;
use super::*;

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
