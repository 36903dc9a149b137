//! `make fleet`: five machines that follow a channel by themselves, with who ran what when written down.
//!
//! ```text
//! a candidate in beta ──► promoted to stable, for the canary ──► the canary proves it ──► opened to all: one at a time, by the fleet's lock
//!   ──► a bad release ──► the first machine goes back, and keeps the lock: nobody else tries it ──► withdrawn: all is quiet
//! ```
//!
//! Nobody drives the machines: after their boot only `instar-channel` is called.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use instar_pki::Role;
use instar_tests::{
    Channels, FleetLockServer, INSTALLER, Identity, ImageUnderTest, MachineConfig, Node, OciImage,
    Registry, Scratch,
};
use serde_json::{Value, json};

use crate::fleet_page::Page;
use crate::{Place, VERSION_AFTER, VERSION_BEFORE, clear};

const NAMES: [&str; 5] = ["lamp-1", "lamp-2", "lamp-3", "lamp-4", "lamp-5"];
const MEMORY_MIB: u32 = 384;
/// A version that gives itself up, and why.
const BAD: (&str, &str) = ("v0.3.1", "the moon is full");
const CLOCK: &str = "apiVersion: v1alpha1\nkind: TimeSyncConfig\nenabled: false\n";
const GROUP: &str = "drawer";
/// Limit on the demonstration, and on each thing that is waited for.
const LIFETIME: Duration = Duration::from_secs(3600);
const PATIENCE: Duration = Duration::from_secs(1200);
/// For so long nobody may try the bad release after the first machine.
const QUIET: Duration = Duration::from_secs(90);
const PAUSE: Duration = Duration::from_secs(1);

/// The machines and all around them.
struct Fleet {
    nodes: Vec<Node>,
    registry: Registry,
    channels: Channels,
    lock: FleetLockServer,
    page: Page,
    /// Pictures of the page.
    pictures: Vec<PathBuf>,
    begun: Instant,
    /// The version of each machine that was seen last.
    seen: Vec<String>,
    /// Who ran what when.
    history: Vec<Value>,
}

/// Lets five machines follow a channel.
pub(crate) async fn demonstrate(place: &Place) -> Result<()> {
    clear(place)?;
    let mut fleet = Fleet::boot(&Scratch::at(&place.folder)?).await?;
    let canary = fleet.canary().await?;
    let all = fleet.all_follow().await?;
    let failed = fleet.a_bad_release().await?;
    let result = json!({
        "machines": NAMES,
        "seconds_until_the_canary_ran_it": canary,
        "seconds_until_all_ran_it": all,
        "failed_on": failed,
        "order_of_the_lock": fleet.lock.history(),
        "refused_by_the_lock": fleet.lock.refused(),
        "history": fleet.history,
        "pictures": fleet.pictures,
        "reports": fleet.lock.reports(),
        "seconds_total": fleet.seconds(),
    });
    let file = place.file("result.json");
    std::fs::write(&file, format!("{result:#}\n")).context("cannot write result.json")?;
    println!("{}", file.display());
    Ok(())
}

impl Fleet {
    async fn boot(scratch: &Scratch) -> Result<Self> {
        println!("five machines that follow the channel stable");
        let begun = Instant::now();
        let registry = registry(scratch)?;
        let channels = Channels::serve(scratch, &registry)?;
        for channel in ["beta", "stable"] {
            channels.publish(&["create", channel])?;
        }
        let lock = FleetLockServer::start()?;
        let authority = Identity::administrator()?;
        let mut nodes = Vec::new();
        for name in NAMES {
            let follows = channels.document("stable", &policy(name, &lock.url_for_guest()))?;
            nodes.push(machine(scratch, name, &authority, &registry, &follows)?);
        }
        for node in &nodes {
            node.wait_until_ready(PATIENCE).await?;
        }
        let mut fleet = Self {
            seen: vec![String::new(); nodes.len()],
            page: Page::serve(scratch, &NAMES, &nodes)?,
            pictures: Vec::new(),
            nodes,
            registry,
            channels,
            lock,
            begun,
            history: Vec::new(),
        };
        fleet.look().await;
        Ok(fleet)
    }

    fn seconds(&self) -> u64 {
        self.begun.elapsed().as_secs()
    }

    fn say(&self, what: &str) {
        println!("  {what} ({} s since the start)", self.seconds());
    }

    fn picture(&mut self, name: &str, words: &str) -> Result<()> {
        self.pictures.push(self.page.picture(name, words)?);
        Ok(())
    }

    /// Asks each machine for its version, and notes changes.
    async fn look(&mut self) {
        for (number, (name, node)) in NAMES.into_iter().zip(&self.nodes).enumerate() {
            let asked = tokio::time::timeout(PAUSE * 5, node.version()).await;
            let Ok(Ok(version)) = asked else { continue };
            if self.seen[number] != version.tag {
                let at = self.begun.elapsed().as_secs();
                println!("  {name} runs {} ({at} s since the start)", version.tag);
                let entry = json!({"machine": name, "runs": version.tag, "at": at});
                self.history.push(entry);
                self.seen[number] = version.tag;
            }
        }
    }

    /// Looks until this many machines run a version.
    async fn until(&mut self, count: usize, version: &str) -> Result<u64> {
        let until = Instant::now() + PATIENCE;
        loop {
            self.look().await;
            let running = self.seen.iter().filter(|seen| *seen == version).count();
            if running == count {
                return Ok(self.seconds());
            }
            if Instant::now() > until {
                bail!("{running} machines run {version} instead of {count}");
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn canary(&mut self) -> Result<u64> {
        println!("{VERSION_AFTER} is promoted from beta to stable, for canaries");
        let image = self.registry.installer_for_guest(VERSION_AFTER);
        self.channels.add("beta", &image, &[])?;
        let canaries = ["--unofficial", "--only-for", "canary=yes"];
        self.channels
            .promote(VERSION_AFTER, "beta", "stable", &canaries)?;
        let ran = self.until(1, VERSION_AFTER).await?;
        self.picture("canary", &format!("runs {VERSION_AFTER}"))?;
        Ok(ran)
    }

    async fn all_follow(&mut self) -> Result<u64> {
        println!("it is opened to all");
        self.channels.publish(&["open", "stable", VERSION_AFTER])?;
        let ran = self.until(NAMES.len(), VERSION_AFTER).await?;
        self.picture("all", "current")?;
        Ok(ran)
    }

    /// Publishes a bad release; returns the machines that it has failed on.
    async fn a_bad_release(&mut self) -> Result<Vec<Value>> {
        println!("{} is promoted, which does not work", BAD.0);
        let image = self.registry.installer_for_guest(BAD.0);
        self.channels.add("stable", &image, &[])?;
        self.reported("locked").await?;
        self.say("the first machine is back, and keeps the lock");
        self.picture("bad-release", "locked")?;
        let quiet = Instant::now() + QUIET;
        while Instant::now() < quiet {
            self.look().await;
            tokio::time::sleep(PAUSE).await;
        }
        let failed: Vec<Value> = self.reports("locked").collect();
        let withdraw = ["withdraw", "stable", BAD.0, "--why", BAD.1];
        self.channels.publish(&withdraw)?;
        let until = Instant::now() + PATIENCE;
        while self.lock.owner(GROUP).is_some() {
            anyhow::ensure!(Instant::now() < until, "the lock is not given back");
            tokio::time::sleep(PAUSE).await;
        }
        self.say("it is withdrawn, and the lock is free");
        anyhow::ensure!(failed.len() == 1, "it was tried on {failed:?}");
        self.until(NAMES.len(), VERSION_AFTER).await?;
        Ok(failed)
    }

    /// The machines that have reported this state of the bad release, or of none.
    fn reports(&self, state: &str) -> impl Iterator<Item = Value> {
        let reports = self.lock.reports().into_iter();
        let state = state.to_owned();
        reports
            .filter(move |report| report["state"] == state.as_str())
            .map(|report| report["node"].clone())
    }

    async fn reported(&mut self, state: &str) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        while self.reports(state).next().is_none() {
            anyhow::ensure!(Instant::now() < until, "no machine reports {state}");
            self.look().await;
            tokio::time::sleep(PAUSE).await;
        }
        Ok(())
    }
}

/// How a machine follows; the first one is the canary.
fn policy(name: &str, lock: &str) -> String {
    let labels = match name == NAMES[0] {
        true => "labels: [canary=yes]\n",
        false => "",
    };
    format!(
        "{labels}jitter: 5s\nhealthyFor: 3s\nreport: \"{lock}/report\"\nfleetLock: {{url: \"{lock}\", group: {GROUP}}}\n"
    )
}

fn registry(scratch: &Scratch) -> Result<Registry> {
    let registry = Registry::start(scratch)?;
    let image = ImageUnderTest::second()?;
    registry.push_installer_without_kernel(&image)?;
    let good = OciImage::read(&image.installer())?.first_layer_alone();
    good.giving_up(scratch, BAD.0, BAD.1)?
        .push(&registry, INSTALLER, BAD.0)?;
    Ok(registry)
}

fn machine(
    scratch: &Scratch,
    name: &str,
    authority: &Identity,
    registry: &Registry,
    follows: &str,
) -> Result<Node> {
    let config = MachineConfig::new(authority)
        .hostname(name)
        .registry(&registry.host_for_guest())
        .document(CLOCK)
        .document(follows);
    let image = ImageUnderTest::first()?;
    anyhow::ensure!(image.version() == VERSION_BEFORE, "another version");
    Node::plan(scratch, &image)
        .name(name)
        .memory_mib(MEMORY_MIB)
        .config(config.to_yaml(), authority.with_role(Role::Admin)?)
        .spec(|spec| spec.deadline(LIFETIME))
        .start()
}
