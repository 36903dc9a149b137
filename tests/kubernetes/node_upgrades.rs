//! The operator of a fleet: what it says of its pools, and how it upgrades nodes one by one, killed and started again meanwhile.

mod configs;
mod five_nodes;
mod fleet;
mod replacement;
mod told;

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use instar_tests::{
    Channels, ControlPlane, FleetOperator, Identity, ImageUnderTest, Outcome, Registry, Scratch,
    Test, chapters, install_fleet_operator, tests,
};

use self::configs::a_pool_configures_its_nodes_one_by_one;
use self::five_nodes::five_nodes_are_upgraded_while_machines_come_and_go;
pub(crate) use self::fleet::{BROKEN, NAMES, REASON, boot, join, push_versions};
use self::fleet::{Fleet, the_engine_comes_to_the_same_actions};
use self::replacement::a_pool_replaces_its_node;
use self::told::{Told, has_event};
pub(crate) use self::told::{column, granted, is_told};
use crate::PATIENCE;

pub(crate) fn tests() -> Vec<Test> {
    tests![
        pools_without_machines_tell_what_they_wait_for,
        pools_follow_channels,
        many_nodes_cost_little,
        a_pool_upgrades_its_nodes_one_by_one,
        a_pool_configures_its_nodes_one_by_one,
        a_pool_replaces_its_node,
        five_nodes_are_upgraded_while_machines_come_and_go,
    ]
}

async fn pools_without_machines_tell_what_they_wait_for(scratch: Scratch) -> Outcome {
    let plane = ControlPlane::start(&scratch)?;
    install_fleet_operator(&plane)?;
    let config = Identity::administrator()?.client_config("127.0.0.1:1")?;
    let operator = FleetOperator::start(&plane, &scratch, "first", &config)?;
    chapters![
        a_bad_pool_is_refused_by_the_api_server(&plane),
        a_pool_that_cannot_be_meant_says_why(&plane),
        a_pool_without_nodes_waits_for_them(&plane),
        a_node_that_does_not_answer_is_named(&plane),
        a_node_of_two_pools_is_a_conflict(&plane),
        nothing_is_asked_while_nothing_changes(&plane),
        another_operator_takes_over(&plane, &scratch, &config, operator),
    ]
    .await
}

/// A pool over nodes with this label.
pub(crate) fn pool(name: &str, label: &str, image: &str, rest: &str) -> String {
    format!(
        "apiVersion: instar.dev/v1alpha1\nkind: Pool\nmetadata: {{name: {name}}}\n\
         spec:\n  nodeSelector: {{matchLabels: {{rack: {label}}}}}\n  image: {image}\n{rest}"
    )
}

async fn a_bad_pool_is_refused_by_the_api_server(plane: &ControlPlane) -> Outcome {
    for rest in [
        "  policy: {atOnce: 0}\n",
        "  policy: {share: 200}\n",
        "  policy: {patience: soon}\n",
        "  policy: {onFailure: cry}\n",
    ] {
        let pool = pool("bad", "none", "r/i:v0.2.0", rest);
        let refused = plane.kubectl().apply("bad", &pool).err();
        ensure!(refused.is_some(), "it took {rest}");
    }
    Ok(())
}

async fn a_pool_that_cannot_be_meant_says_why(plane: &ControlPlane) -> Outcome {
    let rest = "  policy: {windows: [\"Mon 25:00-26:00\"]}\n";
    let pool = pool("lab", "none", "r/i:v0.2.0", rest);
    plane.kubectl().apply("lab", &pool)?;
    is_told(plane, "lab", "Invalid", "policy: ").await?;
    let shown = Told::of(plane, "lab")?;
    ensure!(shown.condition("Valid") == "False/BadPolicy", "{shown:?}");
    has_event(plane, ("Pool", "lab"), "RolloutInvalid", "policy: ").await
}

async fn a_pool_without_nodes_waits_for_them(plane: &ControlPlane) -> Outcome {
    let pool = pool("lab", "r1", "r/i:v0.2.0", "  policy: {windows: null}\n");
    plane.kubectl().apply("lab", &pool)?;
    is_told(plane, "lab", "Waiting", "no node fits").await?;
    println!("{}", plane.kubectl().run(&["get", "pools"])?);
    Ok(())
}

async fn a_node_that_does_not_answer_is_named(plane: &ControlPlane) -> Outcome {
    let kubectl = plane.kubectl();
    let node = "apiVersion: v1\nkind: Node\nmetadata: {name: nobody, labels: {rack: r1}, annotations: {instar.dev/api-address: \"127.0.0.1:1\"}}\n";
    kubectl.apply("nobody", node)?;
    let ready = r#"{"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "T", "message": "t"}]}}"#;
    let patch = [
        "patch",
        "node",
        "nobody",
        "--subresource=status",
        "--type=merge",
        "-p",
        ready,
    ];
    kubectl.run(&patch)?;
    is_told(plane, "lab", "Waiting", "127.0.0.1:1").await
}

async fn a_node_of_two_pools_is_a_conflict(plane: &ControlPlane) -> Outcome {
    let kubectl = plane.kubectl();
    kubectl.apply("other", &pool("other", "r1", "r/i:v0.3.0", ""))?;
    is_told(plane, "other", "Invalid", "belongs to pool lab as well").await?;
    is_told(plane, "lab", "Invalid", "belongs to pool other as well").await?;
    kubectl.run(&["delete", "pool", "other"])?;
    is_told(plane, "lab", "Waiting", "127.0.0.1:1").await?;
    kubectl.run(&["delete", "node", "nobody"])?;
    is_told(plane, "lab", "Waiting", "no node fits").await
}

/// A Channel of the key and the server.
fn channel(name: &str, url: &str, key: &str) -> String {
    let key: Vec<String> = key.lines().map(|line| format!("    {line}\n")).collect();
    format!(
        "apiVersion: instar.dev/v1alpha1\nkind: Channel\nmetadata: {{name: {name}}}\n\
         spec:\n  url: {url}\n  interval: 5s\n  publicKey: |\n{}",
        key.concat()
    )
}

async fn shows(plane: &ControlPlane, channel: &str, field: &str, words: &str) -> Outcome {
    eventually(&format!("{channel} shows {words}"), || {
        let shown = plane.kubectl().get(&["channel", channel])?;
        ensure!(column(&shown, field).contains(words), "{}", shown["status"]);
        Ok(())
    })
    .await
}

async fn pools_follow_channels(scratch: Scratch) -> Outcome {
    let plane = ControlPlane::start(&scratch)?;
    install_fleet_operator(&plane)?;
    let config = Identity::administrator()?.client_config("127.0.0.1:1")?;
    let _operator = FleetOperator::start(&plane, &scratch, "first", &config)?;
    chapters![
        a_channel_shows_its_newest_release(&plane, &scratch),
        a_pool_follows_a_channel(&plane),
    ]
    .await
}

async fn a_channel_shows_its_newest_release(plane: &ControlPlane, scratch: &Scratch) -> Outcome {
    let registry = Registry::start(scratch)?;
    for image in [ImageUnderTest::first()?, ImageUnderTest::second()?] {
        registry.push_installer_without_kernel(&image)?;
    }
    let channels = Channels::serve(scratch, &registry)?;
    channels.publish(&["create", "stable"])?;
    channels.add("stable", &registry.installer_for_guest("v0.1.0"), &[])?;
    let url = format!("http://{}", channels.address());
    let stable = channel("stable", &url, &channels.public_key()?);
    plane.kubectl().apply("stable", &stable)?;
    shows(plane, "stable", "version", "v0.1.0").await?;
    channels.add("stable", &registry.installer_for_guest("v0.2.0"), &[])?;
    shows(plane, "stable", "version", "v0.2.0").await?;
    println!("{}", plane.kubectl().run(&["get", "channels"])?);
    Ok(())
}

/// The server is gone meanwhile, and the channel says so; what it has said before stays.
async fn a_pool_follows_a_channel(plane: &ControlPlane) -> Outcome {
    shows(plane, "stable", "message", "connect").await?;
    shows(plane, "stable", "version", "v0.2.0").await?;
    let kubectl = plane.kubectl();
    let follows = pool("lab", "r1", "null", "  channel: stable\n");
    kubectl.apply("lab", &follows)?;
    is_told(plane, "lab", "Waiting", "no node fits").await?;
    kubectl.run(&["delete", "channel", "stable"])?;
    is_told(plane, "lab", "Invalid", "channel stable: there is none").await?;
    kubectl.apply("lab", &pool("lab", "r1", "r/i:v0.2.0", "  channel: null\n"))?;
    is_told(plane, "lab", "Waiting", "no node fits").await
}

/// The requests that the API server has had for our own resources, but for watches.
fn requests(plane: &ControlPlane) -> anyhow::Result<Vec<String>> {
    let metrics = plane.kubectl().run(&["get", "--raw", "/metrics"])?;
    let lines = metrics.lines().filter(|line| {
        let is_ours =
            line.contains("resource=\"pools\"") || line.contains("resource=\"nodeupgrades\"");
        line.starts_with("apiserver_request_total") && is_ours && !line.contains("verb=\"WATCH\"")
    });
    Ok(lines.map(str::to_owned).collect())
}

/// Waits until nothing is asked for the last change any more, which takes a busy host longer; returns the requests until then.
async fn requests_of_all_changes(plane: &ControlPlane) -> anyhow::Result<Vec<String>> {
    let until = Instant::now() + 3 * PATIENCE;
    let mut before = requests(plane)?;
    loop {
        tokio::time::sleep(Duration::from_secs(30)).await;
        let now = requests(plane)?;
        if now == before {
            return Ok(now);
        }
        ensure!(Instant::now() < until, "{before:#?} became {now:#?}");
        before = now;
    }
}

async fn nothing_is_asked_while_nothing_changes(plane: &ControlPlane) -> Outcome {
    let before = requests_of_all_changes(plane).await?;
    tokio::time::sleep(Duration::from_secs(45)).await;
    let after = requests(plane)?;
    ensure!(
        before == after && !before.is_empty(),
        "{before:#?} became {after:#?}"
    );
    Ok(())
}

async fn another_operator_takes_over(
    plane: &ControlPlane,
    scratch: &Scratch,
    config: &str,
    first: FleetOperator,
) -> Outcome {
    println!("{}", first.log()?);
    let second = FleetOperator::start(plane, scratch, "second", config)?;
    first.kill();
    let rest = "  policy: {patience: 99999999999999999999d}\n";
    plane
        .kubectl()
        .apply("lab", &pool("lab", "none", "r/i:v0.2.0", rest))?;
    is_told(plane, "lab", "Invalid", "policy: ").await?;
    let log = second.log()?;
    ensure!(log.contains("second: has the lease"), "{log}");
    Ok(())
}

/// The number of nodes in a large cluster, and the memory that the operator may have there.
const MANY: usize = 10_000;
const MEMORY_MIB: u64 = 150;

async fn many_nodes_cost_little(scratch: Scratch) -> Outcome {
    let plane = ControlPlane::start(&scratch)?;
    install_fleet_operator(&plane)?;
    let config = Identity::administrator()?.client_config("127.0.0.1:1")?;
    plane.kubectl().create("many", &many_nodes())?;
    let operator = FleetOperator::start(&plane, &scratch, "first", &config)?;
    chapters![
        all_nodes_are_seen(&plane),
        memory_is_small(&operator),
        nothing_is_asked_while_nothing_changes(&plane),
        memory_is_small(&operator),
    ]
    .await
}

fn many_nodes() -> String {
    let node = |number| {
        format!(
            "apiVersion: v1\nkind: Node\nmetadata: {{name: n{number}, labels: {{rack: r1, instar.dev/version: v0.1.0}}}}\n"
        )
    };
    let nodes: Vec<String> = (0..MANY).map(node).collect();
    nodes.join("---\n")
}

async fn all_nodes_are_seen(plane: &ControlPlane) -> Outcome {
    plane
        .kubectl()
        .apply("lab", &pool("lab", "r1", "r/i:v0.2.0", ""))?;
    is_told(plane, "lab", "Waiting", "no node is ready").await
}

async fn memory_is_small(operator: &FleetOperator) -> Outcome {
    let mib = operator.memory()?.now_mib;
    println!("the operator has {mib} MiB with {MANY} nodes");
    ensure!(
        mib <= MEMORY_MIB,
        "{mib} MiB, and {MEMORY_MIB} MiB are promised"
    );
    Ok(())
}

async fn a_pool_upgrades_its_nodes_one_by_one(scratch: Scratch) -> Outcome {
    let mut fleet = Fleet::start(&scratch).await?;
    chapters![
        the_nodes_are_the_fleets(&fleet, &scratch),
        one_node_after_the_other_is_upgraded_under_its_pods(&mut fleet, &scratch),
        kubectl_tells_the_story(&fleet),
        a_bad_version_stops_after_the_first_node(&fleet),
        a_persons_command_ends_the_rollout(&fleet),
        pods_are_drained_where_they_would_end(&fleet),
        a_person_steers_it(&fleet),
        a_pool_that_is_made_again_is_another_one(&fleet),
        a_channel_that_cannot_be_read_says_why(&fleet),
        every_right_was_used(&fleet),
        the_engine_comes_to_the_same_actions(&fleet),
    ]
    .await
}

async fn pods_are_drained_where_they_would_end(fleet: &Fleet) -> Outcome {
    chapters![
        pods_that_would_end_stay_while_their_budget_forbids(fleet),
        they_are_deleted_where_the_pool_says_so(fleet),
        they_are_evicted_before_the_upgrade(fleet),
    ]
    .await
}

async fn a_person_steers_it(fleet: &Fleet) -> Outcome {
    chapters![
        a_person_sends_the_nodes_back(fleet),
        a_persons_cordon_stays(fleet),
        a_node_that_failed_tries_again_when_a_person_says_so(fleet),
    ]
    .await
}

async fn the_nodes_are_the_fleets(fleet: &Fleet, scratch: &Scratch) -> Outcome {
    for name in NAMES {
        fleet.wait_for_label(name, "v0.1.0").await?;
    }
    fleet.they_list_those_that_they_may_read(scratch).await
}

/// The operator is killed when the first node has begun, and another one goes on.
async fn one_node_after_the_other_is_upgraded_under_its_pods(
    fleet: &mut Fleet,
    scratch: &Scratch,
) -> Outcome {
    let image = fleet.image("v0.2.0");
    fleet.roll(&image, "")?;
    let first = format!("lab.{}.1", NAMES[0]);
    fleet.wait_for_phase(&first, "Upgrading").await?;
    fleet.restart_operator(scratch, "second")?;
    fleet.told("Done", "2 of 2 nodes run v0.2.0").await?;
    they_are_in_service(fleet, "v0.2.0").await?;
    fleet.never_two_at_once(&NAMES)
}

async fn kubectl_tells_the_story(fleet: &Fleet) -> Outcome {
    fleet.print(&["get", "pools"])?;
    fleet.print(&["get", "nodeupgrades"])?;
    let shown = Told::of(&fleet.cluster.plane, "lab")?;
    ensure!(shown.condition("Updated") == "True/AllNodes", "{shown:?}");
    for name in NAMES {
        its_upgrade_is_told(fleet, name).await?;
    }
    has_event(
        &fleet.cluster.plane,
        ("Pool", "lab"),
        "RolloutDone",
        "2 of 2",
    )
    .await
}

async fn its_upgrade_is_told(fleet: &Fleet, node: &str) -> Outcome {
    let plane = &fleet.cluster.plane;
    let upgrade = format!("lab.{node}.1");
    let upgrade = plane.kubectl().get(&["nodeupgrade", &upgrade])?;
    ensure!(column(&upgrade, "from") == "v0.1.0", "{upgrade:#}");
    ensure!(!column(&upgrade, "ended").is_empty(), "{upgrade:#}");
    has_event(plane, ("Node", node), "Upgraded", "v0.2.0").await
}

async fn a_bad_version_stops_after_the_first_node(fleet: &Fleet) -> Outcome {
    let plane = &fleet.cluster.plane;
    let image = fleet.image(BROKEN);
    fleet.roll(&image, "")?;
    fleet.told("Halted", REASON).await?;
    let shown = Told::of(plane, "lab")?;
    fleet.print(&["get", "nodeupgrades", "-o", "wide"])?;
    ensure!(shown.condition("Failed") == "True/NodeFailed", "{shown:?}");
    let first = ("Node", NAMES[0]);
    has_event(plane, first, "UpgradeFailed", REASON).await?;
    let second = format!("lab.{}.2", NAMES[1]);
    fleet.wait_for_phase(&second, "Waiting").await?;
    they_are_in_service(fleet, "v0.2.0").await
}

/// All nodes run the version, and none is cordoned.
async fn they_are_in_service(fleet: &Fleet, version: &str) -> Outcome {
    for name in NAMES {
        fleet.wait_for_label(name, version).await?;
        fleet.wait_until_uncordoned(name).await?;
    }
    Ok(())
}

async fn a_persons_command_ends_the_rollout(fleet: &Fleet) -> Outcome {
    fleet.command("abort").await?;
    fleet.told("Aborted", "a person").await
}

/// The node says that its pods would not live through this image. It is not upgraded, and the pod runs on.
async fn pods_that_would_end_stay_while_their_budget_forbids(fleet: &Fleet) -> Outcome {
    let held = fleet.run_guarded_pod(NAMES[0]).await?;
    let image = fleet.push_that_reboots(1)?;
    fleet.roll(&image, "  drain: {timeout: 20s}\n")?;
    fleet.told("Halted", "disruption budget").await?;
    they_are_in_service(fleet, "v0.2.0").await?;
    ensure!(fleet.guarded_pod()? == held, "the pod was replaced");
    Ok(())
}

/// The same upgrade once more, by a pool that forces it after the time of the drain, against the budget.
async fn they_are_deleted_where_the_pool_says_so(fleet: &Fleet) -> Outcome {
    let before = fleet.guarded_pod()?;
    let upgrade = format!("lab.{}.3", NAMES[0]);
    fleet.wait_for_phase(&upgrade, "Failed").await?;
    fleet.roll(
        &fleet.rebooting_image(1),
        "  drain: {timeout: 20s, onTimeout: Force}\n",
    )?;
    fleet.command("retry").await?;
    fleet.wait_for_phase(&upgrade, "Upgrading").await?;
    fleet.told("Halted", NAMES[0]).await?;
    they_are_in_service(fleet, "v0.2.0").await?;
    let after = fleet.run_guarded_pod(NAMES[0]).await?;
    ensure!(after != before, "the pod was not deleted");
    Ok(())
}

/// Without the budget the pod goes before the node is asked. The installer of this image does not run: the node stays, and the pod comes back.
async fn they_are_evicted_before_the_upgrade(fleet: &Fleet) -> Outcome {
    let kubectl = fleet.cluster.plane.kubectl();
    let before = fleet.guarded_pod()?;
    kubectl.run(&["delete", "pdb", "guarded"])?;
    fleet.roll(&fleet.push_that_reboots(2)?, "")?;
    fleet.told("Halted", NAMES[0]).await?;
    they_are_in_service(fleet, "v0.2.0").await?;
    let after = fleet.run_guarded_pod(NAMES[0]).await?;
    ensure!(after != before, "the pod was not evicted");
    Ok(())
}

/// Another image of the same version, and back to the one that they ran before.
async fn a_person_sends_the_nodes_back(fleet: &Fleet) -> Outcome {
    fleet.roll(&fleet.push_another()?, "")?;
    fleet.told("Done", "2 of 2 nodes").await?;
    fleet.command("rollback").await?;
    fleet.told("WentBack", "a person asked for it").await?;
    for name in NAMES {
        let upgrade = format!("lab.{name}.5");
        fleet.wait_for_phase(&upgrade, "WentBack").await?;
    }
    they_are_in_service(fleet, "v0.2.0").await
}

/// A node that a person has cordoned is left alone, and the cordon is not taken back.
async fn a_persons_cordon_stays(fleet: &Fleet) -> Outcome {
    let plane = &fleet.cluster.plane;
    let held = NAMES[0];
    plane.kubectl().run(&["cordon", held])?;
    let image = fleet.image("v0.1.0");
    fleet.roll(&image, "")?;
    fleet.told("Done", "1 of 2 nodes run v0.1.0").await?;
    fleet.wait_for_label(NAMES[1], "v0.1.0").await?;
    fleet.wait_for_label(held, "v0.2.0").await?;
    fleet
        .wait_for_phase(&format!("lab.{held}.6"), "Left")
        .await?;
    ensure!(fleet.is_cordoned(held)?, "{held} was uncordoned");
    Ok(())
}

/// The other node is still cordoned. This one refuses an image that it has given up, and the retry ends with that reason.
async fn a_node_that_failed_tries_again_when_a_person_says_so(fleet: &Fleet) -> Outcome {
    let upgrade = format!("lab.{}.7", NAMES[1]);
    fleet.roll(&fleet.image(BROKEN), "")?;
    fleet.told("Halted", REASON).await?;
    fleet.wait_for_phase(&upgrade, "Failed").await?;
    fleet.command("retry").await?;
    fleet.wait_for_phase(&upgrade, "Upgrading").await?;
    fleet.told("Halted", "failed here before").await
}

/// Its rollout begins anew, although the object has the same name and text as the one before, which was never changed.
async fn a_pool_that_is_made_again_is_another_one(fleet: &Fleet) -> Outcome {
    let kubectl = fleet.cluster.plane.kubectl();
    let image = fleet.image("v0.2.0");
    for _ in 0..2 {
        kubectl.run(&["delete", "pool", "lab"])?;
        fleet.roll(&image, "")?;
        fleet.told("Done", "nodes run v0.2.0").await?;
    }
    let upgrade = format!("lab.{}.1", NAMES[1]);
    fleet.wait_for_phase(&upgrade, "Updated").await
}

async fn a_channel_that_cannot_be_read_says_why(fleet: &Fleet) -> Outcome {
    let plane = &fleet.cluster.plane;
    let nowhere = channel("nowhere", "http://127.0.0.1:1", "no key");
    plane.kubectl().apply("nowhere", &nowhere)?;
    shows(plane, "nowhere", "message", "publicKey").await
}

/// The operator has used every right of its roles meanwhile: without any of these verbs the chapters above would fail. Secrets are for configs, whose
/// test looks itself.
async fn every_right_was_used(fleet: &Fleet) -> Outcome {
    let plane = &fleet.cluster.plane;
    let used = plane.audited("instar-operator")?;
    println!("{used:#?}");
    let (kubectl, name) = (plane.kubectl(), "instar-operator");
    let everywhere = kubectl.get(&["clusterrole", name])?;
    let at_home = kubectl.get(&["role", name, "-n", "instar-system"])?;
    let granted = granted(&[everywhere, at_home]);
    let mut unused: Vec<&String> = granted.difference(&used).collect();
    unused.retain(|right| !right.ends_with(" secrets"));
    ensure!(unused.is_empty(), "never used: {unused:?}");
    let missing: Vec<&String> = used.difference(&granted).collect();
    ensure!(missing.is_empty(), "asked for in vain: {missing:?}");
    Ok(())
}

/// Waits for something that the cluster shows.
pub(crate) async fn eventually<T>(
    what: &str,
    look: impl Fn() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let until = Instant::now() + 3 * PATIENCE;
    loop {
        match look() {
            Ok(seen) => return Ok(seen),
            Err(error) if Instant::now() > until => {
                return Err(error).with_context(|| format!("not seen in time: {what}"));
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(300)).await,
        }
    }
}
