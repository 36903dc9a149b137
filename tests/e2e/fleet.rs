//! Rollouts over five machines with `instarctl fleet`, without a server. Four of the machines have clocks that are hours off, and one loses its power.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, ensure};
use instar_pki::Role;
use instar_qemu::VmSpec;
use instar_tests::{
    Browser, FollowedProgram, HttpServer, INSTALLER, Identity, ImageUnderTest, Instarctl,
    MachineConfig, Node, OPEN_GATE, OciImage, Outcome, Registry, SHUT_GATE, Said, Scratch, Screen,
    Test, chapters, fleet_file, tests,
};
use serde_json::Value;

use crate::PATIENCE;
use crate::api_methods::unpack_texts;

/// The memory of a machine.
const MEMORY_MIB: u32 = 384;
const NAMES: [&str; 5] = ["lamp-1", "lamp-2", "lamp-3", "lamp-4", "lamp-5"];
/// By how many hours the hardware clock of each machine is off. No time server sets those that are.
const CLOCKS: [i32; 5] = [0, 3, -5, 7, -2];
const WITHOUT_TIME_SERVERS: &str = "apiVersion: v1alpha1\nkind: TimeSyncConfig\nenabled: false\n";
/// A version that gives itself up, and why.
const BAD: (&str, &str) = ("v0.3.1", "the moon is full");
/// A second build of the good version, which the last machine's gate does not let pass.
const UNLUCKY: &str = "unlucky";
/// Two more builds of it: one that each machine gets by itself, and one that they get in a rollout.
const ALONE: &str = "alone";
const TOGETHER: &str = "together";
/// How long a rollout may take, against the upgrades of its machines one by one. Both are times of the host, which does other work as well, so a rollout
/// that pauses between its machines is to be found, and no tenth of a second (docs/fleets.md tells the measured figure).
const LONGEST: f64 = 2.0;
/// Limit on the test: machines boot side by side, and upgrade 26 times.
const LIFETIME: Duration = Duration::from_secs(2400);
/// `instarctl`'s exit code.
const ROLLED_BACK: i32 = 6;

pub(crate) fn tests() -> Vec<Test> {
    tests![a_fleet_is_upgraded_in_waves]
}

/// The machines, and the command with its folder.
struct Fleet {
    nodes: Vec<Node>,
    client: Instarctl,
    registry: Registry,
    /// The last machine's gate asks here.
    gate: HttpServer,
    file: String,
    state: String,
    /// The rounds of all rollouts.
    trace: String,
}

async fn a_fleet_is_upgraded_in_waves(scratch: Scratch) -> Outcome {
    let mut fleet = Fleet::boot(&scratch).await?;
    chapters![
        a_plan_changes_nothing(&fleet),
        one_file_has_the_diagnostics_of_a_pool(&fleet, &scratch),
        a_rollout_is_killed_twice(&fleet),
        a_person_steers_it_with_a_phone(&fleet, &scratch),
        it_goes_on_where_it_was(&mut fleet),
        a_rollout_takes_little_longer_than_upgrades_one_by_one(&fleet),
        a_bad_version_stops_after_the_first(&fleet),
        the_status_has_the_conditions_of_each_node(&fleet),
        the_page_tells_why(&fleet, &scratch),
        a_version_that_fails_later_sends_all_back(&fleet),
        the_engine_comes_to_the_same_actions(&fleet),
    ]
    .await
}

/// Boots the machines side by side.
async fn machines(
    scratch: &Scratch,
    registry: &Registry,
    gate: &HttpServer,
) -> anyhow::Result<Vec<Node>> {
    let authority = Identity::administrator()?;
    let mut nodes = Vec::new();
    for (name, clock) in NAMES.into_iter().zip(CLOCKS) {
        nodes.push(machine(scratch, (name, clock), &authority, registry, gate)?);
    }
    for node in &nodes {
        node.wait_until_ready(PATIENCE * 3).await?;
    }
    their_clocks_are_hours_apart(&nodes).await?;
    Ok(nodes)
}

impl Fleet {
    async fn boot(scratch: &Scratch) -> anyhow::Result<Self> {
        let registry = registry(scratch)?;
        let gate = HttpServer::start()?;
        gate.serve("/healthz", "well");
        let nodes = machines(scratch, &registry, &gate).await?;
        let first = nodes.first().context("no machine")?;
        Ok(Self {
            client: Instarctl::of(first, scratch)?,
            file: file_of(scratch, &nodes)?.display().to_string(),
            state: scratch.join("fleet").display().to_string(),
            trace: scratch.join("trace.jsonl").display().to_string(),
            nodes,
            registry,
            gate,
        })
    }

    /// The arguments of a rollout of an image over this many machines at once, after a canary.
    fn arguments<'a>(&'a self, verb: &'a str, image: &'a str, at_once: &'a str) -> Vec<&'a str> {
        let what = ["fleet", verb, "--image", image, "--fleet", &self.file];
        let how = [
            "--state",
            &self.state,
            "--canary",
            "1",
            "--at-once",
            at_once,
        ];
        let told = ["--roll-back", "--trace", &self.trace, "-o", "json"];
        [&what[..], &how, &told].concat()
    }

    async fn roll(&self, tag: &str, at_once: &str) -> anyhow::Result<Said> {
        let image = self.registry.installer_for_guest(tag);
        let arguments = self.arguments("roll", &image, at_once);
        let said = self.client.run(&arguments).await?;
        println!("{}{}", said.output, said.complaint);
        Ok(said)
    }

    /// Upgrades one machine to the image with this tag; returns the time until the command says that it has proved itself.
    async fn upgrade(&self, node: &Node, tag: &str) -> anyhow::Result<Duration> {
        let (image, endpoint) = (self.registry.installer_for_guest(tag), node.endpoint()?);
        let words = ["--endpoints", &endpoint, "upgrade", "--image", &image];
        let began = Instant::now();
        let said = self.client.run_elsewhere(&words).await?;
        ensure!(said.code == Some(0), "{said:#?}");
        Ok(began.elapsed())
    }

    async fn status(&self) -> anyhow::Result<Value> {
        let status = ["fleet", "status", "--state", &self.state, "-o", "json"];
        let said = self.client.run(&status).await?;
        Ok(serde_json::from_str(&said.output)?)
    }

    /// The status once each machine has told its conditions: five that are emulated may take longer than the command waits.
    async fn told_status(&self) -> anyhow::Result<Value> {
        let told = async || {
            let status = self.status().await?;
            let mut nodes = status["nodes"].as_array().context("no nodes")?.iter();
            let all_tell = nodes.all(|node| node["conditions"].is_array());
            ensure!(all_tell, "{status:#}");
            Ok(status)
        };
        let first = self.nodes.first().context("no machine")?;
        first.wait_until("all tell", PATIENCE, told).await
    }

    /// The steps of the machines, in their order.
    async fn steps(&self) -> anyhow::Result<Vec<String>> {
        let status = self.status().await?;
        let nodes = status["nodes"].as_array().context("no nodes")?.iter();
        let steps = nodes.map(|node| node["step"].as_str().unwrap_or_default().to_owned());
        Ok(steps.collect())
    }

    async fn all_run(&self, version: &str) -> Outcome {
        for node in &self.nodes {
            let runs = node.version().await?.tag;
            ensure!(runs == version, "{runs} instead of {version}");
        }
        Ok(())
    }

    /// The images that the running versions came from.
    async fn digests(&self) -> anyhow::Result<Vec<String>> {
        let mut digests = Vec::new();
        for node in &self.nodes {
            let reply = node.machine().await?.version(()).await?.into_inner();
            let release = reply.messages.into_iter().next().context("empty")?.release;
            digests.push(release.unwrap_or_default().digest);
        }
        Ok(digests)
    }
}

fn registry(scratch: &Scratch) -> anyhow::Result<Registry> {
    let registry = Registry::start(scratch)?;
    registry.push_installer(&ImageUnderTest::second()?)?;
    let good = OciImage::read(&ImageUnderTest::second()?.installer())?;
    let bad = good.clone().giving_up(scratch, BAD.0, BAD.1)?;
    bad.push(&registry, INSTALLER, BAD.0)?;
    for build in [UNLUCKY, ALONE, TOGETHER] {
        let other = good.clone().label("dev.instar.test", build);
        other.push(&registry, INSTALLER, build)?;
    }
    Ok(registry)
}

fn machine(
    scratch: &Scratch,
    (name, clock): (&str, i32),
    authority: &Identity,
    registry: &Registry,
    gate: &HttpServer,
) -> anyhow::Result<Node> {
    let config = config_of((name, clock), authority, registry, gate);
    let base = hardware_clock(clock)?;
    let with_clock = |spec: VmSpec| spec.extra_argument("-rtc").extra_argument(base);
    Node::plan(scratch, &ImageUnderTest::first()?)
        .name(name)
        .memory_mib(MEMORY_MIB)
        .config(config.to_yaml(), authority.with_role(Role::Admin)?)
        .spec(|spec| with_clock(spec.deadline(LIFETIME)))
        .start()
}

fn config_of(
    (name, clock): (&str, i32),
    authority: &Identity,
    registry: &Registry,
    gate: &HttpServer,
) -> MachineConfig {
    let mut config = MachineConfig::new(authority)
        .hostname(name)
        .registry(&registry.host_for_guest());
    if clock != 0 {
        config = config.document(WITHOUT_TIME_SERVERS);
    }
    if Some(&name) == NAMES.last() {
        config = config.gate_asks_the_web(OPEN_GATE, &gate.url_for_guest("/healthz"));
    }
    config
}

/// A hardware clock that is off by some hours, as QEMU reads it.
fn hardware_clock(hours: i32) -> anyhow::Result<String> {
    let now = format!("{hours:+} hours");
    let words = ["-u", "-d", &now, "+base=%Y-%m-%dT%H:%M:%S"];
    let told = Command::new("date").args(words).output()?;
    Ok(String::from_utf8(told.stdout)?.trim().to_owned())
}

async fn their_clocks_are_hours_apart(nodes: &[Node]) -> Outcome {
    let host = |clock: SystemTime| match clock.duration_since(SystemTime::now()) {
        Ok(ahead) => ahead.as_secs_f64() / 3600.0,
        Err(behind) => -behind.duration().as_secs_f64() / 3600.0,
    };
    for (node, off) in nodes.iter().zip(CLOCKS) {
        let found = host(node.clock().await?);
        println!("{found:+.2} h of {off:+} h");
        let is_off = (found - f64::from(off)).abs() < 0.1;
        ensure!(is_off, "{found:+.2} h instead of {off:+} h");
    }
    Ok(())
}

fn file_of(scratch: &Scratch, nodes: &[Node]) -> anyhow::Result<PathBuf> {
    let addresses: Result<Vec<_>, _> = nodes.iter().map(Node::endpoint).collect();
    fleet_file(scratch, NAMES.iter().zip(addresses?))
}

async fn a_plan_changes_nothing(fleet: &Fleet) -> Outcome {
    let image = fleet.registry.installer_for_guest("v0.2.0");
    let said = fleet
        .client
        .run(&fleet.arguments("plan", &image, "2"))
        .await?;
    ensure!(said.code == Some(0), "{said:#?}");
    let plan: Value = serde_json::from_str(&said.output)?;
    let reason = |number: usize| plan["nodes"][number]["reason"].clone();
    ensure!(reason(0) == "begins now", "{plan:#}");
    ensure!(
        reason(2) == "waits for lamp-1, which is in a wave before",
        "{plan:#}"
    );
    fleet.all_run("v0.1.0").await
}

/// The fleet's file, with the second machine in a pool, and beside it one that is away.
fn file_with_a_pool(fleet: &Fleet, scratch: &Scratch) -> anyhow::Result<String> {
    let known = std::fs::read_to_string(&fleet.file)?;
    let known = known.replace("lamp-2, ", "lamp-2, pool: hall, ");
    let away = "  - {name: lamp-9, pool: hall, address: \"127.0.0.1:1\"}\n";
    let file = scratch.write("pools.yaml", known + away)?;
    Ok(file.display().to_string())
}

async fn one_file_has_the_diagnostics_of_a_pool(fleet: &Fleet, scratch: &Scratch) -> Outcome {
    let (nodes, file) = (file_with_a_pool(fleet, scratch)?, scratch.join("p.tar.gz"));
    let out = file.display().to_string();
    let support = ["fleet", "support", "--fleet", &nodes, "-O", &out];
    let arguments = [&support[..], &["--pool", "hall"]].concat();
    let said = fleet.client.run(&arguments).await?;
    ensure!(said.code == Some(0), "{said:#?}");
    ensure!(said.complaint.contains("missing: lamp-9: "), "{said:#?}");
    let texts = unpack_texts(&file)?;
    let has = |name: &str, text: &str| texts.get(name).is_some_and(|it| it.contains(text));
    ensure!(has("lamp-2/version.txt", "v0.1.0"), "{:?}", texts.keys());
    ensure!(has("lamp-9/missing.txt", "127.0.0.1:1"), "{texts:#?}");
    ensure!(!texts.keys().any(|name| name.starts_with("lamp-1/")));
    Ok(())
}

async fn a_rollout_is_killed_twice(fleet: &Fleet) -> Outcome {
    let image = fleet.registry.installer_for_guest("v0.2.0");
    let arguments = fleet.arguments("roll", &image, "2");
    for (node, doing) in [("lamp-1", "begins now"), ("lamp-2", "begins now")] {
        let mut roll = fleet.client.follow(&arguments)?;
        let is_meant = |line: &str| line.contains(node) && line.contains(doing);
        roll.wait_for("the machine's turn", PATIENCE * 3, is_meant)?;
        // Dropped: killed, while the machine upgrades.
    }
    Ok(())
}

/// The last machine, which has not begun, loses its power, and is back only while the rollout goes on.
async fn it_goes_on_where_it_was(fleet: &mut Fleet) -> Outcome {
    let steps = fleet.steps().await?;
    ensure!(steps.last().is_some_and(|it| it == "waiting"), "{steps:?}");
    let last = fleet.nodes.pop().context("no machine")?;
    fleet.nodes.push(last.turn_off_and_on()?);
    let said = fleet.roll("v0.2.0", "2").await?;
    ensure!(said.code == Some(0), "{said:#?}");
    let words = "goes on with the rollout";
    ensure!(said.complaint.contains(words), "{said:#?}");
    ensure!(fleet.steps().await? == ["updated"; NAMES.len()]);
    fleet.all_run("v0.2.0").await
}

/// The command for one machine waits for the proof as well.
async fn a_rollout_takes_little_longer_than_upgrades_one_by_one(fleet: &Fleet) -> Outcome {
    let mut alone = Duration::ZERO;
    for node in &fleet.nodes {
        alone += fleet.upgrade(node, ALONE).await?;
    }
    let began = Instant::now();
    let said = fleet.roll(TOGETHER, "1").await?;
    let together = began.elapsed();
    ensure!(said.code == Some(0), "{said:#?}");
    println!("{alone:.1?} for the upgrades, and {together:.1?} for a rollout of the same machines");
    let limit = alone.mul_f64(LONGEST);
    ensure!(together <= limit, "{together:.1?} instead of {limit:.1?}");
    Ok(())
}

async fn a_bad_version_stops_after_the_first(fleet: &Fleet) -> Outcome {
    let said = fleet.roll(BAD.0, "2").await?;
    ensure!(said.code == Some(ROLLED_BACK), "{said:#?}");
    ensure!(said.complaint.contains(BAD.1), "{said:#?}");
    let steps = fleet.steps().await?;
    let expected = ["failed", "waiting", "waiting", "waiting", "waiting"];
    ensure!(steps == expected, "{steps:?}");
    fleet.all_run("v0.2.0").await
}

async fn the_status_has_the_conditions_of_each_node(fleet: &Fleet) -> Outcome {
    let status = fleet.told_status().await?;
    let failed = &status["nodes"][0]["conditions"];
    let failed = failed.as_array().context("the first one does not tell")?;
    let of_upgrade = failed.iter().find(|it| it["type"] == "UpgradeFailed");
    let message = of_upgrade.context("it says nothing of the upgrade")?["message"].as_str();
    ensure!(message.unwrap_or_default().contains(BAD.1), "{failed:?}");
    let others = status["nodes"][1]["conditions"].as_array();
    let others = others.context("the second one does not tell")?;
    ensure!(others.iter().all(|it| it["type"] != "UpgradeFailed"));
    let shown = ["fleet", "status", "--state", &fleet.state];
    let said = fleet.client.run(&shown).await?;
    ensure!(said.output.contains("CONDITIONS"), "{said:?}");
    Ok(())
}

/// The page of the rollout in the fleet's folder, in a browser.
struct Page {
    browser: Browser,
    _server: FollowedProgram,
}

impl Page {
    fn open(fleet: &Fleet, scratch: &Scratch, screen: Screen) -> anyhow::Result<Self> {
        let of = ["--state", &fleet.state];
        let (server, address) = fleet.client.serve_page(&of, PATIENCE)?;
        let browser = Browser::start(scratch, screen)?;
        browser.open(&address)?;
        browser.wait_for_text("connected")?;
        Ok(Self {
            browser,
            _server: server,
        })
    }

    /// Checks that nothing is wider than the screen, and that fingers hit each button.
    fn fits(&self, screen: Screen) -> Outcome {
        let width = "return document.documentElement.scrollWidth";
        let width = self.browser.run(width)?.as_u64().context("no width")?;
        ensure!(
            width <= u64::from(screen.size().0),
            "it is {width} pixels wide"
        );
        let smallest = "return Math.min(...[...document.querySelectorAll('main button')].map((it) => it.offsetHeight))";
        let smallest = self.browser.run(smallest)?.as_u64();
        ensure!(
            smallest.is_some_and(|it| it >= 44),
            "{smallest:?} pixels high"
        );
        Ok(())
    }

    /// Clicks, and waits until the page says these words.
    fn click(&self, button: &str, words: &str) -> Outcome {
        self.browser.click(button)?;
        self.browser.wait_for_text(words)?;
        Ok(())
    }
}

async fn a_person_steers_it_with_a_phone(fleet: &Fleet, scratch: &Scratch) -> Outcome {
    let page = Page::open(fleet, scratch, Screen::Phone)?;
    let words = "no command drives this rollout";
    page.browser.wait_for_text(words)?;
    page.fits(Screen::Phone)?;
    println!("{}", page.browser.screenshot("phone")?.display());
    page.click("[data-command=pause]", "paused: on the page")?;
    a_person_holds_a_machine(fleet, &page).await?;
    page.click("[data-command=abort]", "End the rollout?")?;
    page.click("dialog [value=no]", "Resume")?;
    page.click("[data-command=resume]", "Pause")
}

async fn a_person_holds_a_machine(fleet: &Fleet, page: &Page) -> Outcome {
    let of_the_last = "[data-machine=lamp-5]";
    let hold = format!("[data-command=hold]{of_the_last}");
    page.click(&hold, "held: on the page")?;
    let held = fleet.status().await?;
    ensure!(held["nodes"][4]["hold"] == "on the page", "{held:#}");
    let phase = "rolling, paused: on the page";
    ensure!(held["phase"] == phase, "{held:#}");
    let release = format!("[data-command=release]{of_the_last}");
    page.click(&release, "Hold")
}

async fn the_page_tells_why(fleet: &Fleet, scratch: &Scratch) -> Outcome {
    let page = Page::open(fleet, scratch, Screen::Laptop)?;
    let text = page.browser.wait_for_text(BAD.1)?;
    ensure!(
        text.contains("went back") && text.contains("0 of 5 updated"),
        "{text}"
    );
    println!("{}", page.browser.screenshot("laptop")?.display());
    Ok(())
}

/// The last machine refuses what the others have taken.
async fn a_version_that_fails_later_sends_all_back(fleet: &Fleet) -> Outcome {
    let before = fleet.digests().await?;
    fleet.gate.take_away("/healthz");
    let last = fleet.nodes.last().context("no machine")?;
    last.set_gate_timeout(SHUT_GATE).await?;
    let said = fleet.roll(UNLUCKY, "2").await?;
    ensure!(said.code == Some(ROLLED_BACK), "{said:#?}");
    let steps = fleet.steps().await?;
    let expected = ["went back", "went back", "went back", "went back", "failed"];
    ensure!(steps == expected, "{steps:?}");
    ensure!(said.complaint.contains("the web"), "{said:#?}");
    let after = fleet.digests().await?;
    ensure!(after == before, "{before:?} and {after:?}");
    Ok(())
}

async fn the_engine_comes_to_the_same_actions(fleet: &Fleet) -> Outcome {
    let replayed = instar_rollout_driver::replay_file(fleet.trace.as_ref())?;
    println!("{replayed:?}");
    ensure!(replayed.actions >= NAMES.len(), "{replayed:?}");
    Ok(())
}
