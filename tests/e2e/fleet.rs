//! Rollouts over three machines with `instarctl fleet`, without a server.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use instar_pki::Role;
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
const NAMES: [&str; 3] = ["lamp-1", "lamp-2", "lamp-3"];
/// A version that gives itself up, and why.
const BAD: (&str, &str) = ("v0.3.1", "the moon is full");
/// A second build of the good version, which the last machine's gate does not let pass.
const UNLUCKY: &str = "unlucky";
/// Limit on the test: machines boot side by side, and upgrade eight times.
const LIFETIME: Duration = Duration::from_secs(1500);
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
    let fleet = Fleet::boot(&scratch).await?;
    chapters![
        a_plan_changes_nothing(&fleet),
        one_file_has_the_diagnostics_of_a_pool(&fleet, &scratch),
        a_rollout_is_killed_twice(&fleet),
        a_person_steers_it_with_a_phone(&fleet, &scratch),
        it_goes_on_where_it_was(&fleet),
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
    for name in NAMES {
        nodes.push(machine(scratch, name, &authority, registry, gate)?);
    }
    for node in &nodes {
        node.wait_until_ready(PATIENCE * 3).await?;
    }
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

    /// The arguments of a rollout of the image with this tag.
    fn arguments<'a>(&'a self, verb: &'a str, image: &'a str) -> Vec<&'a str> {
        let what = ["fleet", verb, "--image", image, "--fleet", &self.file];
        let how = ["--state", &self.state, "--canary", "1", "--at-once", "2"];
        let told = ["--roll-back", "--trace", &self.trace, "-o", "json"];
        [&what[..], &how, &told].concat()
    }

    async fn roll(&self, tag: &str) -> anyhow::Result<Said> {
        let image = self.registry.installer_for_guest(tag);
        let said = self.client.run(&self.arguments("roll", &image)).await?;
        println!("{}{}", said.output, said.complaint);
        Ok(said)
    }

    async fn status(&self) -> anyhow::Result<Value> {
        let status = ["fleet", "status", "--state", &self.state, "-o", "json"];
        let said = self.client.run(&status).await?;
        Ok(serde_json::from_str(&said.output)?)
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
    let unlucky = good.label("dev.instar.test", UNLUCKY);
    unlucky.push(&registry, INSTALLER, UNLUCKY)?;
    Ok(registry)
}

fn machine(
    scratch: &Scratch,
    name: &str,
    authority: &Identity,
    registry: &Registry,
    gate: &HttpServer,
) -> anyhow::Result<Node> {
    let mut config = MachineConfig::new(authority)
        .hostname(name)
        .registry(&registry.host_for_guest());
    if Some(&name) == NAMES.last() {
        config = config.gate_asks_the_web(OPEN_GATE, &gate.url_for_guest("/healthz"));
    }
    Node::plan(scratch, &ImageUnderTest::first()?)
        .name(name)
        .memory_mib(MEMORY_MIB)
        .config(config.to_yaml(), authority.with_role(Role::Admin)?)
        .spec(|spec| spec.deadline(LIFETIME))
        .start()
}

fn file_of(scratch: &Scratch, nodes: &[Node]) -> anyhow::Result<PathBuf> {
    let addresses: Result<Vec<_>, _> = nodes.iter().map(Node::endpoint).collect();
    fleet_file(scratch, NAMES.iter().zip(addresses?))
}

async fn a_plan_changes_nothing(fleet: &Fleet) -> Outcome {
    let image = fleet.registry.installer_for_guest("v0.2.0");
    let said = fleet.client.run(&fleet.arguments("plan", &image)).await?;
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
    let arguments = fleet.arguments("roll", &image);
    for (node, doing) in [("lamp-1", "begins now"), ("lamp-2", "begins now")] {
        let mut roll = fleet.client.follow(&arguments)?;
        let is_meant = |line: &str| line.contains(node) && line.contains(doing);
        roll.wait_for("the machine's turn", PATIENCE * 3, is_meant)?;
        // Dropped: killed, while the machine upgrades.
    }
    Ok(())
}

async fn it_goes_on_where_it_was(fleet: &Fleet) -> Outcome {
    let said = fleet.roll("v0.2.0").await?;
    ensure!(said.code == Some(0), "{said:#?}");
    ensure!(
        said.complaint.contains("goes on with the rollout"),
        "{said:#?}"
    );
    ensure!(fleet.steps().await? == ["updated"; 3]);
    fleet.all_run("v0.2.0").await
}

async fn a_bad_version_stops_after_the_first(fleet: &Fleet) -> Outcome {
    let said = fleet.roll(BAD.0).await?;
    ensure!(said.code == Some(ROLLED_BACK), "{said:#?}");
    ensure!(said.complaint.contains(BAD.1), "{said:#?}");
    let steps = fleet.steps().await?;
    ensure!(steps == ["failed", "waiting", "waiting"], "{steps:?}");
    fleet.all_run("v0.2.0").await
}

async fn the_status_has_the_conditions_of_each_node(fleet: &Fleet) -> Outcome {
    let status = fleet.status().await?;
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
    let of_the_last = "[data-machine=lamp-3]";
    let hold = format!("[data-command=hold]{of_the_last}");
    page.click(&hold, "held: on the page")?;
    let held = fleet.status().await?;
    ensure!(held["nodes"][2]["hold"] == "on the page", "{held:#}");
    let phase = "rolling, paused: on the page";
    ensure!(held["phase"] == phase, "{held:#}");
    let release = format!("[data-command=release]{of_the_last}");
    page.click(&release, "Hold")
}

async fn the_page_tells_why(fleet: &Fleet, scratch: &Scratch) -> Outcome {
    let page = Page::open(fleet, scratch, Screen::Laptop)?;
    let text = page.browser.wait_for_text(BAD.1)?;
    ensure!(
        text.contains("went back") && text.contains("0 of 3 updated"),
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
    let said = fleet.roll(UNLUCKY).await?;
    ensure!(said.code == Some(ROLLED_BACK), "{said:#?}");
    let steps = fleet.steps().await?;
    ensure!(steps == ["went back", "went back", "failed"], "{steps:?}");
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
