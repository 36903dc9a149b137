//! Versions that fail: the old one is back by itself, and the caller learns the reason.

use std::time::Duration;

use anyhow::{Context, ensure};
use instar_api::machine::ServiceRestartRequest;
use instar_qemu::{PortLease, Timing, lease_port};
use instar_tests::{
    Ending, Followed, GREETER, Greeter, HOST_FOR_GUEST, HttpServer, INSTALLER, ImageUnderTest,
    Instarctl, Node, OPEN_GATE, OciImage, Outcome, Registry, SHUT_GATE, Scratch, Test, chapters,
    plan_with_greeter, rootfs_with_script, rootfs_without_runtime, tests, upgrade_and_follow,
};

use crate::PATIENCE;

/// Limit on the test: seven upgrades, on a host that runs other machines too.
const LIFETIME: Duration = Duration::from_secs(1200);
/// `instarctl`'s exit codes.
const REFUSED: i32 = 5;
const ROLLED_BACK: i32 = 6;

pub(crate) fn tests() -> Vec<Test> {
    tests![
        the_old_version_is_back_and_says_why,
        an_upgrade_commits_only_when_the_gate_services_answer,
    ]
}

/// A version that fails, and words of the reason.
struct Bad {
    tag: &'static str,
    rootfs: Vec<u8>,
    reason: &'static str,
}

fn bad_versions(scratch: &Scratch) -> anyhow::Result<Vec<Bad>> {
    let mut bad_versions = Vec::new();
    for (tag, script, reason) in BAD_MACHINEDS {
        bad_versions.push(Bad {
            tag,
            rootfs: rootfs_with_script(scratch, tag, script)?,
            reason,
        });
    }
    bad_versions.push(Bad {
        tag: "v0.3.5",
        rootfs: rootfs_without_runtime(scratch, "v0.3.5", &ImageUnderTest::second()?)?,
        reason: "service greeter",
    });
    Ok(bad_versions)
}

/// A version, the script of its machined, and the reason for the rollback.
const BAD_MACHINEDS: [(&str, &str, &str); 4] = [
    ("v0.3.1", "abort\n", "signal 6"),
    ("v0.3.2", "hello\nexit 3\n", "exited with code 3"),
    ("v0.3.3", "hello\nhang\n", "did not report healthy in time"),
    (
        "v0.3.4",
        "hello\ngive-up the moon is full\n",
        "the moon is full",
    ),
];

async fn the_old_version_is_back_and_says_why(scratch: Scratch) -> Outcome {
    let registry = Registry::start(&scratch)?;
    let bad_versions = bad_versions(&scratch)?;
    push_bad_ones(&scratch, &registry, &bad_versions)?;
    let node = with_a_greeter(&scratch, &registry).await?;
    let instarctl = Instarctl::of(&node, &scratch)?;
    chapters![
        each_bad_version_gives_way_to_the_old_one(&node, &registry, &instarctl, &bad_versions),
        readiness_of_before_is_no_success(&node, &registry),
        what_failed_once_is_not_tried_again(&registry, &instarctl),
        a_good_version_is_taken_all_the_same(&node, &registry),
    ]
    .await
}

async fn with_a_greeter(scratch: &Scratch, registry: &Registry) -> anyhow::Result<Node> {
    // Two of the bad versions last until this timeout.
    let node = plan_with_greeter(scratch, registry, |config| config.gate_timeout(SHUT_GATE))?
        .blank_disk()?
        .spec(|spec| spec.deadline(LIFETIME))
        .boot_until_ready(PATIENCE)
        .await?;
    let greeter = Greeter::of(&node)?;
    greeter.greets()?;
    greeter.write_to_var("kept-over-rollbacks")?;
    Ok(node)
}

async fn each_bad_version_gives_way_to_the_old_one(
    node: &Node,
    registry: &Registry,
    instarctl: &Instarctl,
    bad_versions: &[Bad],
) -> Outcome {
    let kernel = node.kernel_boot_id().await?;
    for (number, bad) in bad_versions.iter().enumerate() {
        let image = registry.installer_for_guest(bad.tag);
        let generation = node.boot_id().await?;
        // Every second upgrade is by the real client.
        let why = match number % 2 {
            0 => who_follows_the_events_is_told_why(node, bad, &image).await?,
            _ => instarctl_tells_why(instarctl, bad, &image).await?,
        };
        the_reason_names_the_version_and_what_it_did(bad, &why)?;
        the_old_version_runs_in_a_fresh_generation(node, bad, &generation, &kernel).await?;
        the_container_and_its_data_are_there_again(node).await?;
    }
    Ok(())
}

fn push_bad_ones(scratch: &Scratch, registry: &Registry, bad_versions: &[Bad]) -> Outcome {
    let good = OciImage::read(&ImageUnderTest::second()?.installer())?;
    let early = good.clone();
    let early = early.giving_up(scratch, EARLY, "it came too early")?;
    early.push(registry, INSTALLER, EARLY)?;
    for bad in bad_versions {
        let image = good.clone().installing(bad.tag, &bad.rootfs)?;
        image.push(registry, INSTALLER, bad.tag)?;
    }
    Ok(())
}

async fn who_follows_the_events_is_told_why(
    node: &Node,
    bad: &Bad,
    image: &str,
) -> anyhow::Result<String> {
    let followed = upgrade_and_follow(node, image, SHUT_GATE + PATIENCE).await?;
    let Ending::Failed(why) = followed.ending else {
        anyhow::bail!("{} was kept: {:#?}", bad.tag, followed.told);
    };
    Ok(why)
}

async fn instarctl_tells_why(
    instarctl: &Instarctl,
    bad: &Bad,
    image: &str,
) -> anyhow::Result<String> {
    let upgrade = ["upgrade", "--image", image, "--wait"];
    let said = instarctl.run(&upgrade).await?;
    ensure!(said.code == Some(ROLLED_BACK), "{}: {said:#?}", bad.tag);
    Ok(said.complaint)
}

fn the_reason_names_the_version_and_what_it_did(bad: &Bad, why: &str) -> Outcome {
    println!("{}: {}", bad.tag, why.trim());
    ensure!(
        why.contains(bad.reason) && why.contains(bad.tag),
        "{}: expected {:?} in {why:?}",
        bad.tag,
        bad.reason
    );
    Ok(())
}

async fn the_old_version_runs_in_a_fresh_generation(
    node: &Node,
    bad: &Bad,
    generation: &str,
    kernel: &str,
) -> Outcome {
    ensure!(node.version().await?.tag == "v0.1.0", "after {}", bad.tag);
    ensure!(
        node.boot_id().await? != generation,
        "{}: the previous generation did not start anew",
        bad.tag
    );
    ensure!(
        node.kernel_boot_id().await? == kernel,
        "{}: the kernel rebooted",
        bad.tag
    );
    Ok(())
}

async fn the_container_and_its_data_are_there_again(node: &Node) -> Outcome {
    node.wait_until_ready(PATIENCE).await?;
    let greeter = Greeter::of(node)?;
    greeter.greets()?;
    let kept = greeter.read_from_var("kept-over-rollbacks");
    ensure!(kept? == "written by greeter\n");
    Ok(())
}

/// A version that failed once is refused, unless forced.
async fn what_failed_once_is_not_tried_again(
    registry: &Registry,
    instarctl: &Instarctl,
) -> Outcome {
    let image = registry.installer_for_guest("v0.3.4");
    let upgrade = ["upgrade", "--image", &image, "--wait"];
    let said = instarctl.run(&upgrade).await?;
    ensure!(
        said.code == Some(REFUSED) && said.complaint.contains("failed here before"),
        "{said:#?}"
    );
    Ok(())
}

/// A good version is taken after the bad ones.
async fn a_good_version_is_taken_all_the_same(node: &Node, registry: &Registry) -> Outcome {
    registry.push_installer(&ImageUnderTest::second()?)?;
    let image = registry.installer_for_guest("v0.2.0");
    node.set_gate_timeout(OPEN_GATE).await?;
    let followed = upgrade_and_follow(node, &image, PATIENCE).await?;
    ensure!(followed.ending == Ending::Done, "{followed:#?}");
    ensure!(node.version().await?.tag == "v0.2.0");
    let greeter = Greeter::of(node)?;
    greeter.greets().context("ready, but not greeting")
}

/// A version that fails as well, requested in the moment in which the node turns ready.
const EARLY: &str = "v0.3.6";

/// A client that requests an upgrade while the node is about to be ready does not take that readiness for the upgrade's
/// end.
async fn readiness_of_before_is_no_success(node: &Node, registry: &Registry) -> Outcome {
    let id = GREETER.to_owned();
    let restart = ServiceRestartRequest { id };
    node.machine().await?.service_restart(restart).await?;
    let image = registry.installer_for_guest(EARLY);
    let followed = upgrade_and_follow(node, &image, PATIENCE).await?;
    let Ending::Failed(why) = &followed.ending else {
        anyhow::bail!("{followed:#?}");
    };
    ensure!(why.contains("it came too early"), "{why}");
    the_greeter_was_told_to_be_up(&followed)?;
    node.wait_until_ready(PATIENCE).await
}

/// The greeter was up before the upgrade began, but the client had not been told.
fn the_greeter_was_told_to_be_up(followed: &Followed) -> Outcome {
    let told = &followed.told;
    let is_up = |line: &String| line.contains("service greeter") && line.contains("healthy true");
    ensure!(
        told.iter().any(is_up),
        "the greeter was up before the client looked: {told:#?}"
    );
    Ok(())
}

/// A node with two probes in its gate, and the services that answer them.
struct Gated {
    node: Node,
    registry: Registry,
    web: HttpServer,
    port: u16,
    /// Keeps the port from other processes meanwhile.
    _lease: PortLease,
}

impl Gated {
    async fn boot(scratch: &Scratch) -> anyhow::Result<Self> {
        let registry = Registry::start(scratch)?;
        push_one_version_thrice(&registry)?;
        let (web, lease) = (HttpServer::start()?, lease_port()?);
        let gate = gate(&web.url_for_guest("/healthz"), lease.port());
        Ok(Self {
            node: with_gate(scratch, &registry, gate).await?,
            registry,
            web,
            port: lease.port(),
            _lease: lease,
        })
    }

    /// Upgrades; returns how it ended, and the version that runs then.
    async fn upgrade(&self, tag: &str) -> anyhow::Result<(Ending, String)> {
        let image = self.registry.installer_for_guest(tag);
        // The gate's time is the machine's own, which takes longer on a busy host.
        let within = 3 * GATE + PATIENCE;
        let followed = upgrade_and_follow(&self.node, &image, within).await?;
        self.node.wait_until_ready(PATIENCE).await?;
        Ok((followed.ending, self.node.version().await?.tag))
    }

    /// Returns the reason of an upgrade that is rolled back.
    async fn failure(&self, tag: &str) -> anyhow::Result<String> {
        let (ending, version) = self.upgrade(tag).await?;
        let Ending::Failed(why) = ending else {
            anyhow::bail!("the new version stays: {version}");
        };
        println!("{why}");
        ensure!(version == "v0.1.0", "{version}");
        Ok(why)
    }
}

/// The machine's time for a new version.
const GATE: Duration = Duration::from_secs(30);

/// A good version has the gate's time as processor time of its own: the host's load does not count.
async fn with_gate(scratch: &Scratch, registry: &Registry, gate: String) -> anyhow::Result<Node> {
    let host = registry.host_for_guest();
    Node::plan(scratch, &ImageUnderTest::first()?)
        .spec(|spec| spec.timing(Timing::InstructionsIdleOnHost))
        .configure(move |config| config.registry(&host).document(&gate))
        .boot_until_ready(PATIENCE)
        .await
}

/// Pushes one version under three tags: an image that failed once is refused from then on.
fn push_one_version_thrice(registry: &Registry) -> Outcome {
    let good = OciImage::read(&ImageUnderTest::second()?.installer())?;
    for tag in ["first", "second", "third"] {
        let image = good.clone().label("dev.instar.test", tag);
        image.push(registry, INSTALLER, tag)?;
    }
    Ok(())
}

fn gate(url: &str, port: u16) -> String {
    format!(
        "apiVersion: instar.dev/v1alpha1\nkind: UpgradeGateConfig\ntimeout: {GATE:?}\nprobes:\n  - name: the web\n    http: {{url: \"{url}\"}}\n  - name: a port\n    tcp: {{address: \"{HOST_FOR_GUEST}:{port}\"}}\n    timeout: 2s\n"
    )
}

async fn an_upgrade_commits_only_when_the_gate_services_answer(scratch: Scratch) -> Outcome {
    let gated = Gated::boot(&scratch).await?;
    chapters![
        without_answers_the_version_goes_back_and_names_the_probes(&gated),
        with_half_of_the_answers_it_goes_back_as_well(&gated),
        with_all_answers_it_stays(&gated),
    ]
    .await
}

async fn without_answers_the_version_goes_back_and_names_the_probes(gated: &Gated) -> Outcome {
    let why = gated.failure("first").await?;
    ensure!(
        why.contains("probe \"the web\": GET http://") && why.contains("answered 404"),
        "{why}"
    );
    ensure!(why.contains("probe \"a port\": "), "{why}");
    Ok(())
}

async fn with_half_of_the_answers_it_goes_back_as_well(gated: &Gated) -> Outcome {
    gated.web.serve("/healthz", "well");
    let why = gated.failure("second").await?;
    ensure!(!why.contains("the web"), "{why}");
    Ok(())
}

async fn with_all_answers_it_stays(gated: &Gated) -> Outcome {
    let _listener = std::net::TcpListener::bind(("127.0.0.1", gated.port))?;
    let (ending, version) = gated.upgrade("third").await?;
    ensure!(
        ending == Ending::Done && version == "v0.2.0",
        "{ending:?} {version}"
    );
    Ok(())
}
