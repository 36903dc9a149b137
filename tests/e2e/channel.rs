//! A machine that follows a channel by itself: which releases it takes, when, and what it does after one that fails.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, ensure};
use instar_tests::{
    Channels, FleetLockServer, INSTALLER, ImageUnderTest, Instarctl, MachineConfig, Node, OciImage,
    Outcome, Registry, Said, Scratch, Test, chapters, rootfs_of_version, tests,
};
use serde_json::Value;

use crate::PATIENCE;

/// The clock of the test's machine is right from the start, and nobody is asked for the time.
pub(crate) const CLOCK: &str = "apiVersion: v1alpha1\nkind: TimeSyncConfig\nenabled: false\n";
/// A version that gives itself up, and why.
const BAD: (&str, &str) = ("v0.3.1", "the moon is full");
/// The version after it.
const NEXT: &str = "v0.4.0";
/// The group of the machine at the fleet's lock.
const GROUP: &str = "drawer";
const OPEN: &str = "healthyFor: 2s\n";

pub(crate) fn tests() -> Vec<Test> {
    tests![a_machine_follows_its_channel]
}

pub(crate) fn long_tests() -> Vec<Test> {
    tests![a_machine_follows_its_channel_through_failures]
}

/// A machine, its client, and the channel that it follows.
struct Story {
    node: Node,
    client: Instarctl,
    registry: Registry,
    channels: Channels,
    lock: FleetLockServer,
    /// The document by which the machine followed at its boot.
    follows: String,
    scratch: Scratch,
}

async fn a_machine_follows_its_channel(scratch: Scratch) -> Outcome {
    let story = Story::begin(&scratch, &format!("{OPEN}{}", shut()?)).await?;
    chapters![
        nothing_is_there(&story),
        a_list_by_another_key_is_refused_and_told(&story),
        a_release_for_other_machines_is_not_taken(&story),
        a_release_is_fetched_and_waits_for_its_window(&story),
        without_a_list_nothing_is_taken(&story),
        it_is_taken_in_its_window(&story),
        an_old_list_is_refused_and_told(&story),
    ]
    .await
}

async fn a_machine_follows_its_channel_through_failures(scratch: Scratch) -> Outcome {
    let story = Story::begin(&scratch, &format!("{OPEN}{}approval: call\n", shut()?)).await?;
    push_later_versions(&scratch, &story.registry)?;
    a_candidate_is_promoted(&story).await?;
    let story = killed_between_download_and_switch(story).await?;
    chapters![
        it_waits_for_an_approval_and_for_the_lock(&story),
        a_withdrawn_release_is_not_taken(&story),
        a_bad_release_goes_back_and_keeps_the_lock(&story),
        the_next_good_one_is_taken(&story),
        a_release_that_a_person_holds_is_not_taken(&story),
    ]
    .await
}

/// A switch window that opens in two hours.
pub(crate) fn shut() -> Result<String> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    let later = (now + Duration::from_secs(2 * 3600)).as_secs() % 86_400;
    let (hours, minutes) = (later / 3600, later / 60 % 60);
    Ok(format!(
        "switch: {{window: {{start: \"{hours:02}:{minutes:02}\", length: 1h}}}}\n"
    ))
}

fn push_later_versions(scratch: &Scratch, registry: &Registry) -> Outcome {
    let image = ImageUnderTest::second()?;
    let good = OciImage::read(&image.installer())?.first_layer_alone();
    let bad = good.clone().giving_up(scratch, BAD.0, BAD.1)?;
    bad.push(registry, INSTALLER, BAD.0)?;
    let next = good.installing(NEXT, &rootfs_of_version(scratch, &image, NEXT)?)?;
    next.push(registry, INSTALLER, NEXT)?;
    Ok(())
}

/// A machine with a disk that follows by this document.
async fn boot(scratch: &Scratch, registry: &Registry, follows: &str) -> Result<Node> {
    let (host, follows) = (registry.host_for_guest(), follows.to_owned());
    Node::plan(scratch, &ImageUnderTest::first()?)
        .blank_disk()?
        .configure(move |config| {
            let config = config.install_disk("/dev/vda").registry(&host);
            config.document(CLOCK).document(&follows)
        })
        .boot_until_ready(PATIENCE)
        .await
}

impl Story {
    async fn begin(scratch: &Scratch, policy: &str) -> Result<Self> {
        let registry = Registry::with_both_installers_without_kernel(scratch)?;
        let channels = Channels::serve(scratch, &registry)?;
        channels.publish(&["create", "stable"])?;
        let follows = channels.document("stable", policy)?;
        let node = boot(scratch, &registry, &follows).await?;
        Ok(Self {
            client: Instarctl::of(&node, scratch)?,
            node,
            registry,
            channels,
            lock: FleetLockServer::start()?,
            follows,
            scratch: scratch.clone(),
        })
    }

    async fn run(&self, words: &[&str]) -> Result<Said> {
        let said = self.client.run(words).await?;
        ensure!(said.code == Some(0), "{words:?}: {said:?}");
        Ok(said)
    }

    async fn status(&self) -> Result<Value> {
        let said = self.run(&["follow", "status", "-o", "json"]).await?;
        Ok(serde_json::from_str(&said.output)?)
    }

    /// Has the machine look, and waits until this field of its status has these words.
    async fn says(&self, field: &str, words: &str) -> Outcome {
        let what = format!("{field} says {words:?}");
        let shown = async || {
            self.run(&["follow", "check"]).await?;
            let status = self.status().await?;
            let said = status[field].as_str().unwrap_or_default();
            ensure!(said.contains(words), "{status:#}");
            Ok(())
        };
        self.node.wait_until(&what, PATIENCE, shown).await
    }

    /// Waits until the machine is in this state, on the way to this release.
    async fn is(&self, state: &str, release: &str) -> Outcome {
        self.says("state", state).await?;
        let status = self.status().await?;
        ensure!(status["release"] == release, "{status:#}");
        Ok(())
    }

    /// Waits until the machine gives these words for a release of the list.
    async fn says_of(&self, version: &str, words: &str) -> Outcome {
        let what = format!("{version}: {words:?}");
        let shown = async || {
            self.run(&["follow", "check"]).await?;
            let status = self.status().await?;
            let mut releases = status["releases"].as_array().context("no list")?.iter();
            let release = releases.find(|it| it["version"] == version);
            let why = release.and_then(|it| it["why"].as_str());
            ensure!(why.is_some_and(|why| why.contains(words)), "{status:#}");
            Ok(())
        };
        self.node.wait_until(&what, PATIENCE, shown).await
    }

    async fn comes_to_run(&self, version: &str) -> Outcome {
        let what = format!("{version} runs");
        let runs = async || {
            let runs = self.node.version().await?.tag;
            ensure!(runs == version, "{runs} runs");
            Ok(())
        };
        self.node.wait_until(&what, PATIENCE * 2, runs).await
    }

    fn add(&self, channel: &str, version: &str, more: &[&str]) -> Outcome {
        let image = self.registry.installer_for_guest(version);
        self.channels.add(channel, &image, more)
    }

    /// Gives the machine another policy.
    async fn follow_with(&self, policy: &str) -> Outcome {
        let (config, follows) = (self.node.config(), self.follows.trim_end());
        ensure!(config.contains(follows), "the config lacks the document");
        let document = self.channels.document("stable", policy)?;
        let config = MachineConfig::from_yaml(&config.replace(follows, document.trim_end()));
        self.node
            .apply_as(self.node.identity(), config.to_yaml())
            .await
    }
}

async fn nothing_is_there(story: &Story) -> Outcome {
    story.is("current", "").await?;
    let shown = story
        .run(&["get", "follows", "stable", "-o", "json"])
        .await?;
    let shown: Value = serde_json::from_str(&shown.output)?;
    ensure!(shown["spec"]["serial"] == 1, "{shown:#}");
    Ok(())
}

async fn a_list_by_another_key_is_refused_and_told(story: &Story) -> Outcome {
    let files = story.files();
    let good = files.clone().map(fs::read);
    let other = story.scratch.join("other.key");
    story.channels.make_key(&other)?;
    story.channels.publish_by(&other, &["renew", "stable"])?;
    story.says("look_error", "is not signed by the key").await?;
    fs::remove_file(&files[1])?;
    story.says("look_error", "404").await?;
    for (file, good) in files.iter().zip(good) {
        fs::write(file, good?)?;
    }
    story.says("state", "current").await
}

async fn a_release_for_other_machines_is_not_taken(story: &Story) -> Outcome {
    story.add("stable", "v0.2.0", &["--only-for", "canary=yes"])?;
    story
        .says_of("v0.2.0", "machines with other labels")
        .await?;
    story.channels.publish(&["open", "stable", "v0.2.0"])
}

async fn a_release_is_fetched_and_waits_for_its_window(story: &Story) -> Outcome {
    story.is("window", "v0.2.0").await?;
    let pins = story.run(&["get", "pins", "-o", "json"]).await?.output;
    ensure!(pins.contains("\"channel\""), "{pins}");
    ensure!(pins.contains("\"pinned\""), "{pins}");
    ensure!(story.node.version().await?.tag == "v0.1.0");
    Ok(())
}

/// The machine begins to follow anew, as after a restart: what it has noted of the release starts nothing.
async fn without_a_list_nothing_is_taken(story: &Story) -> Outcome {
    let list = story.channels.list("stable");
    let good = fs::read(&list)?;
    fs::remove_file(&list)?;
    story.follow_with(OPEN).await?;
    story.is("list", "v0.2.0").await?;
    ensure!(story.node.version().await?.tag == "v0.1.0");
    Ok(fs::write(list, good)?)
}

async fn it_is_taken_in_its_window(story: &Story) -> Outcome {
    story.follow_with(OPEN).await?;
    story.comes_to_run("v0.2.0").await?;
    story.is("current", "").await?;
    story.says_of("v0.2.0", "it runs").await
}

async fn an_old_list_is_refused_and_told(story: &Story) -> Outcome {
    let files = story.files();
    let old = files.clone().map(fs::read);
    story.channels.publish(&["renew", "stable"])?;
    story.sees_list(4).await?;
    for (file, old) in files.iter().zip(old) {
        fs::write(file, old?)?;
    }
    story.says("look_error", "this is an old list").await
}

impl Story {
    async fn gives_the_lock_back(&self) -> Outcome {
        let free = async || {
            let owner = self.lock.owner(GROUP);
            ensure!(owner.is_none(), "{owner:?} has the lock");
            Ok(())
        };
        let what = "the lock is free";
        self.node.wait_until(what, PATIENCE, free).await
    }

    /// The list and its signature.
    fn files(&self) -> [PathBuf; 2] {
        let channels = &self.channels;
        [channels.list("stable"), channels.signature("stable")]
    }

    async fn sees_list(&self, serial: u64) -> Outcome {
        let seen = async || {
            self.run(&["follow", "check"]).await?;
            let status = self.status().await?;
            ensure!(status["serial"] == serial, "{status:#}");
            Ok(())
        };
        self.node
            .wait_until("it has the list", PATIENCE, seen)
            .await
    }
}

/// A candidate goes to the stable channel by its digest, from the channel beta, which this machine does not follow.
async fn a_candidate_is_promoted(story: &Story) -> Outcome {
    story.channels.publish(&["create", "beta"])?;
    story.add("beta", "v0.2.0", &[])?;
    story.is("current", "").await?;
    let promote = |more: &[&str]| story.channels.promote("v0.2.0", "beta", "stable", more);
    let refused = promote(&[]).err().context("it is not official")?;
    let refused = format!("{refused:#}");
    ensure!(refused.contains("not an official release"), "{refused}");
    promote(&["--unofficial"])?;
    story.is("approval", "v0.2.0").await
}

/// The image is here, the power is cut, and no server is there when the machine is back.
async fn killed_between_download_and_switch(story: Story) -> Result<Story> {
    let node = story.node.power_cycle().await?;
    node.wait_until_ready(PATIENCE).await?;
    let story = Story {
        client: Instarctl::of(&node, &story.scratch)?,
        node,
        ..story
    };
    story.is("approval", "v0.2.0").await?;
    Ok(story)
}

fn locked(url: &str) -> String {
    format!(
        "{OPEN}approval: call\nreport: \"{url}/report\"\nfleetLock: {{url: \"{url}\", group: {GROUP}}}\n"
    )
}

async fn it_waits_for_an_approval_and_for_the_lock(story: &Story) -> Outcome {
    story.lock.give(GROUP, "another machine");
    let policy = locked(&story.lock.url_for_guest());
    story.follow_with(&policy).await?;
    story.is("approval", "v0.2.0").await?;
    story.run(&["follow", "approve", "v0.2.0"]).await?;
    story.says("reason", "all slots are taken").await?;
    ensure!(story.node.version().await?.tag == "v0.1.0");
    story.lock.take_back(GROUP);
    story.comes_to_run("v0.2.0").await?;
    story.is("current", "").await?;
    story.gives_the_lock_back().await
}

async fn a_withdrawn_release_is_not_taken(story: &Story) -> Outcome {
    story
        .follow_with(&locked(&story.lock.url_for_guest()).replace("approval: call\n", ""))
        .await?;
    story.lock.give(GROUP, "another machine");
    story.add("stable", NEXT, &[])?;
    story.says("reason", "all slots are taken").await?;
    let withdraw = ["withdraw", "stable", NEXT, "--why", "it loses data"];
    story.channels.publish(&withdraw)?;
    story.says_of(NEXT, "it loses data").await?;
    story.lock.take_back(GROUP);
    story.is("current", "").await
}

async fn a_bad_release_goes_back_and_keeps_the_lock(story: &Story) -> Outcome {
    story.add("stable", BAD.0, &[])?;
    story.says_of(BAD.0, BAD.1).await?;
    story.is("locked", "").await?;
    ensure!(story.node.version().await?.tag == "v0.2.0");
    ensure!(story.lock.owner(GROUP).is_some(), "the lock is free");
    let reports = story.lock.reports();
    let states: Vec<&str> = reports
        .iter()
        .filter_map(|it| it["state"].as_str())
        .collect();
    ensure!(states.contains(&"locked"), "{reports:?}");
    Ok(())
}

/// The same image under another version: a withdrawn version does not come back.
async fn the_next_good_one_is_taken(story: &Story) -> Outcome {
    let image = ImageUnderTest::second()?;
    let rootfs = rootfs_of_version(&story.scratch, &image, "v0.4.1")?;
    let good = OciImage::read(&image.installer())?.first_layer_alone();
    let good = good.installing("v0.4.1", &rootfs)?;
    good.push(&story.registry, INSTALLER, "v0.4.1")?;
    story.add("stable", "v0.4.1", &[])?;
    story.comes_to_run("v0.4.1").await?;
    story.is("current", "").await
}

async fn a_release_that_a_person_holds_is_not_taken(story: &Story) -> Outcome {
    let refused = story.client.run(&["follow", "hold", "v9.9.9"]).await?;
    ensure!(refused.complaint.contains("has no release"), "{refused:?}");
    story.lock.give(GROUP, "another machine");
    let good = OciImage::read(&ImageUnderTest::second()?.installer())?;
    let later = good.label("dev.instar.version", "v0.5.0");
    later.push(&story.registry, INSTALLER, "v0.5.0")?;
    story.add("stable", "v0.5.0", &[])?;
    story.is("lock", "v0.5.0").await?;
    story.run(&["follow", "hold", "v0.5.0"]).await?;
    story.says_of("v0.5.0", "a person holds it").await?;
    story.is("current", "").await
}
