//! The conditions of a node: by `get conditions`, in its metrics, and in its counts of starts.

use anyhow::{Context as _, ensure};
use instar_tests::{
    Ending, FollowedProgram, INSTALLER, ImageUnderTest, Instarctl, MachineConfig, Node, OciImage,
    Outcome, Registry, Scratch, Test, chapters, push_greeter, reboot_and_follow, tests,
    upgrade_and_follow,
};
use serde_json::Value;

use crate::PATIENCE;
use crate::observing::{METRICS_PORT, page};

/// A version that gives itself up, and why.
const BAD: (&str, &str) = ("v0.3.1", "the moon is full");
/// Containers that end at once: one by itself, one because it takes more memory than it may.
const CRASHER: &str = "crasher";
const EATER: &str = "eater";
/// The line of `instar_condition` about an upgrade that failed.
const FAILED: &str = "instar_condition{type=\"UpgradeFailed\",reason=\"PreviousVersionRuns\"} 1";

/// The same in the log, which goes to receivers of logs.
const TOLD: &str = "condition UpgradeFailed (PreviousVersionRuns): v0.1.0 runs on";

pub(crate) fn tests() -> Vec<Test> {
    tests![a_node_says_what_is_wrong_with_it]
}

/// A node, the registry of its images, and a client.
struct Watched {
    node: Node,
    registry: Registry,
    client: Instarctl,
}

async fn a_node_says_what_is_wrong_with_it(scratch: Scratch) -> Outcome {
    let watched = Watched::boot(&scratch).await?;
    chapters![
        nothing_is_wrong_at_first(&watched),
        an_upgrade_that_fails_is_told(&watched),
        a_good_upgrade_ends_it(&watched),
        a_reboot_is_counted(&watched),
        containers_that_end_again_and_again_are_told(&watched),
    ]
    .await
}

impl Watched {
    async fn boot(scratch: &Scratch) -> anyhow::Result<Self> {
        let registry = registry(scratch)?;
        let host = registry.host_for_guest();
        let plan = Node::plan(scratch, &ImageUnderTest::first()?).forward(METRICS_PORT);
        let plan = plan
            .blank_disk()?
            .configure(move |it| configured(it, &host));
        let node = plan.boot_until_ready(PATIENCE).await?;
        Ok(Self {
            client: Instarctl::of(&node, scratch)?,
            node,
            registry,
        })
    }

    /// The content of a condition.
    async fn condition(&self, kind: &str) -> anyhow::Result<Value> {
        let get = ["get", "conditions", kind, "-o", "json"];
        let said = self.client.run(&get).await?;
        let told: Value =
            serde_json::from_str(&said.output).with_context(|| format!("{said:?}"))?;
        Ok(told["spec"].clone())
    }

    /// Waits until a condition is true or false, and returns its content.
    async fn wait_for(&self, kind: &str, status: bool) -> anyhow::Result<Value> {
        let look = async || {
            let condition = self.condition(kind).await?;
            ensure!(condition["status"] == status, "{condition}");
            Ok(condition)
        };
        let what = format!("{kind} is {status}");
        self.node.wait_until(&what, PATIENCE, look).await
    }

    async fn upgrade(&self, tag: &str) -> anyhow::Result<Ending> {
        let image = self.registry.installer_for_guest(tag);
        let followed = upgrade_and_follow(&self.node, &image, PATIENCE).await?;
        self.node.wait_until_ready(PATIENCE).await?;
        Ok(followed.ending)
    }

    /// Waits until the metrics count these boots, generations and rollbacks.
    async fn has_counted(&self, counts: [u64; 3]) -> Outcome {
        let names = ["boots", "generations", "rollbacks"];
        let lines = names.into_iter().zip(counts);
        let lines = lines.map(|(name, count)| format!("\ninstar_{name}_total {count}\n"));
        let lines: Vec<String> = lines.collect();
        let look = async || {
            let page = page(&self.node).await?;
            ensure!(lines.iter().all(|line| page.contains(line)), "{page}");
            Ok(())
        };
        let what = format!("{lines:?}");
        self.node.wait_until(&what, PATIENCE, look).await
    }
}

/// A registry with the greeter, a good version and a bad one.
fn registry(scratch: &Scratch) -> anyhow::Result<Registry> {
    let registry = Registry::start(scratch)?;
    push_greeter(&registry)?;
    registry.push_installer(&ImageUnderTest::second()?)?;
    let good = OciImage::read(&ImageUnderTest::second()?.installer())?;
    let bad = good.giving_up(scratch, BAD.0, BAD.1)?;
    bad.push(&registry, INSTALLER, BAD.0)?;
    Ok(registry)
}

fn configured(config: MachineConfig, host: &str) -> MachineConfig {
    config.install_disk("/dev/vda").registry(host).document(&format!(
        "apiVersion: instar.dev/v1alpha1\nkind: MetricsConfig\nlisten: \"[::]:{METRICS_PORT}\"\nreaders: anyone\n"
    ))
}

async fn nothing_is_wrong_at_first(watched: &Watched) -> Outcome {
    let said = watched.client.run(&["get", "conditions"]).await?;
    ensure!(said.output.contains("REASON"), "{said:?}");
    for kind in ["UpgradeFailed", "CrashLoop", "DiskPressure", "Degraded"] {
        let condition = watched.condition(kind).await?;
        ensure!(condition["status"] == false, "{condition}");
    }
    let page = page(&watched.node).await?;
    ensure!(!page.contains("type=\"UpgradeFailed\""), "{page}");
    watched.has_counted([1, 1, 0]).await
}

async fn an_upgrade_that_fails_is_told(watched: &Watched) -> Outcome {
    let ending = watched.upgrade(BAD.0).await?;
    ensure!(matches!(ending, Ending::Failed(_)), "{ending:?}");
    let condition = watched.wait_for("UpgradeFailed", true).await?;
    ensure!(condition["reason"] == "PreviousVersionRuns", "{condition}");
    let message = condition["message"].as_str().context("no message")?;
    for words in ["v0.1.0 runs on", BAD.0, BAD.1, "upgrade again"] {
        ensure!(message.contains(words), "{words}: {message}");
    }
    let since = condition["since"].as_str().context("no time")?;
    ensure!(since.starts_with("20"), "{since}");
    let page = page(&watched.node).await?;
    ensure!(page.contains(FAILED), "{page}");
    watched.node.wait_for_line(TOLD, PATIENCE)?;
    // The version that failed was a generation, too.
    watched.has_counted([1, 3, 1]).await
}

async fn a_good_upgrade_ends_it(watched: &Watched) -> Outcome {
    let ending = watched.upgrade("v0.2.0").await?;
    ensure!(ending == Ending::Done, "{ending:?}");
    watched.wait_for("UpgradeFailed", false).await?;
    let page = page(&watched.node).await?;
    ensure!(!page.contains("type=\"UpgradeFailed\""), "{page}");
    watched.has_counted([1, 4, 1]).await
}

async fn a_reboot_is_counted(watched: &Watched) -> Outcome {
    let followed = reboot_and_follow(&watched.node, PATIENCE * 2).await?;
    ensure!(followed.ending == Ending::Done, "{followed:?}");
    watched.node.wait_until_ready(PATIENCE).await?;
    watched.has_counted([2, 5, 1]).await
}

async fn containers_that_end_again_and_again_are_told(watched: &Watched) -> Outcome {
    let mut watcher = watched.client.follow(&["get", "conditions", "-w"])?;
    let is_first = |line: &str| line.starts_with('+') && line.contains("CrashLoop");
    watcher.wait_for("the first row", PATIENCE, is_first)?;
    let host = watched.registry.host_for_guest();
    let (node, who) = (&watched.node, watched.node.identity());
    let before = MachineConfig::from_yaml(node.config());
    node.apply_as(who, with_bad_ones(before, &host).to_yaml())
        .await?;
    chapters![
        the_crash_loop_has_names_and_last_words(watched),
        a_watcher_is_told(&mut watcher),
        the_kill_for_memory_is_told(watched),
        all_is_well_without_them(watched),
    ]
    .await
}

fn with_bad_ones(config: MachineConfig, host: &str) -> MachineConfig {
    let image = format!("{host}/greeter:v1");
    config
        .container(CRASHER, &image, "args: [has, /nothing]\n")
        .container(
            EATER,
            &image,
            "args: [eat]\nresources: {limits: {memory: 32MiB}}\n",
        )
}

async fn the_crash_loop_has_names_and_last_words(watched: &Watched) -> Outcome {
    let look = async || {
        let condition = watched.condition("CrashLoop").await?;
        let message = condition["message"].as_str().unwrap_or_default();
        let both = message.contains(CRASHER) && message.contains(EATER);
        ensure!(both && message.contains("exited with code 1"), "{message}");
        Ok(())
    };
    let what = "both containers are in a crash loop";
    watched.node.wait_until(what, PATIENCE, look).await?;
    let line = "condition CrashLoop (ServiceKeepsFailing)";
    watched.node.wait_for_line(line, PATIENCE)?;
    let page = page(&watched.node).await?;
    let sample = "instar_condition{type=\"CrashLoop\",reason=\"ServiceKeepsFailing\"} 1";
    ensure!(page.contains(sample), "{page}");
    Ok(())
}

async fn a_watcher_is_told(watcher: &mut FollowedProgram) -> Outcome {
    let is_told = |line: &str| line.contains("CrashLoop") && line.contains(CRASHER);
    watcher.wait_for("the crash loop", PATIENCE, is_told)?;
    Ok(())
}

async fn the_kill_for_memory_is_told(watched: &Watched) -> Outcome {
    let condition = watched.wait_for("OutOfMemory", true).await?;
    let message = condition["message"].as_str().unwrap_or_default();
    ensure!(
        message.contains(EATER) && !message.contains(CRASHER),
        "{message}"
    );
    let eater = watched.node.service(EATER).await?;
    let events = format!("{:?}", eater.events);
    ensure!(
        events.contains("killed by the kernel for lack of memory"),
        "{events}"
    );
    Ok(())
}

async fn all_is_well_without_them(watched: &Watched) -> Outcome {
    let (node, who) = (&watched.node, watched.node.identity());
    node.apply_as(who, node.config().to_owned()).await?;
    watched.wait_for("CrashLoop", false).await?;
    watched.wait_for("OutOfMemory", false).await?;
    let line = "condition CrashLoop is over";
    watched.node.wait_for_line(line, PATIENCE).map(drop)
}
