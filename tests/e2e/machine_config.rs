//! A new machine config for a running machine: parts that apply at once, parts that wait, and a config that is taken
//! back.

use std::time::Duration;

use anyhow::{Result, ensure};
use instar_tests::{
    Greeter, ImageUnderTest, Instarctl, Node, NodePlan, Outcome, Registry, Said, Scratch, Test,
    chapters, push_greeter, tests,
};

use crate::PATIENCE;

const FIRST_PORT: u16 = 8080;
const SECOND_PORT: u16 = 8081;
/// machined's words when it takes a trial back.
const TRIAL_IS_OVER: &str = "the trial is over, the config before it is taken back";
/// A trial in which a busy host has time to look at the config.
const LONG_ENOUGH: &str = "20s";
/// A trial in which a busy host has time for one more command; the test waits for its end.
const TO_CONFIRM: Duration = Duration::from_secs(10);
/// The begin of a document whose list of names grows with each patch.
const HOSTS: &str = "apiVersion: v1alpha1\nkind: StaticHostConfig\nname: 192.0.2.1\n";

pub(crate) fn tests() -> Vec<Test> {
    tests![the_config_is_changed_while_the_machine_runs]
}

/// One boot serves all chapters: each begins where the one before ended.
async fn the_config_is_changed_while_the_machine_runs(scratch: Scratch) -> Outcome {
    let registry = Registry::start(&scratch)?;
    let story = Story::begin(&scratch, &registry).await?;
    chapters![
        bad_input_changes_nothing(&story),
        a_dry_run_tells_the_difference(&story),
        what_takes_a_reboot_is_named(&story),
        the_next_pull_asks_where_the_config_says(&story),
        a_trial_is_taken_back_by_itself(&story),
        a_trial_that_is_confirmed_stays(&story),
        a_container_comes_and_the_other_one_is_not_touched(&story),
        a_container_goes(&story),
        a_staged_config_waits_for_the_next_boot(&story),
        patches_of_a_staged_config_add_up(&story),
    ]
    .await
}

/// A node and its first config.
struct Story<'a> {
    scratch: &'a Scratch,
    node: Node,
    client: Instarctl,
    /// The registry's address in the guest.
    host: String,
    image: String,
    config: String,
}

impl<'a> Story<'a> {
    async fn begin(scratch: &'a Scratch, registry: &Registry) -> Result<Self> {
        push_greeter(registry)?;
        let host = registry.host_for_guest();
        let image = format!("{host}/greeter:v1");
        let plan = plan(scratch, host.clone(), image.clone())?;
        let node = plan.blank_disk()?.boot().await?;
        node.wait_until_ready(PATIENCE).await?;
        Ok(Self {
            scratch,
            client: Instarctl::of(&node, scratch)?,
            config: node.config().to_owned(),
            node,
            host,
            image,
        })
    }

    async fn apply(&self, yaml: &str, more: &[&str]) -> Result<Said> {
        let file = self.scratch.write("next.yaml", yaml)?;
        let file = file.display().to_string();
        let command = [&["apply-config", "--file", &file], more].concat();
        self.client.run(&command).await
    }

    fn renamed(&self) -> String {
        self.config.replace("hostname: node", "hostname: renamed")
    }

    /// The config with a second greeter.
    fn with_another(&self) -> String {
        format!(
            "{}---\napiVersion: v1alpha1\nkind: ContainerConfig\nname: second\nimage: {}\nargs: [\"{SECOND_PORT}\"]\nnetwork: {{mode: host}}\n",
            self.renamed(),
            self.image
        )
    }

    /// The config with this endpoint as the mirror of another registry.
    fn mirrored(&self, endpoint: &str) -> String {
        format!(
            "{}---\napiVersion: v1alpha1\nkind: RegistryMirrorConfig\nname: mirrored.example\nendpoints:\n  - url: http://{endpoint}\nskipFallback: true\n",
            self.config
        )
    }

    async fn is_called(&self, name: &str) -> Outcome {
        self.node
            .wait_until("it has its name", PATIENCE, async || {
                let called = self.node.hostname().await?;
                ensure!(called == name, "it is called {called}");
                Ok(())
            })
            .await
    }
}

fn plan(scratch: &Scratch, host: String, image: String) -> Result<NodePlan> {
    Ok(Node::plan(scratch, &ImageUnderTest::first()?)
        .forward(FIRST_PORT)
        .forward(SECOND_PORT)
        .configure(move |config| {
            config
                .install_disk("/dev/vda")
                .registry(&host)
                .greeter_at("first", &image, FIRST_PORT, "")
        }))
}

async fn bad_input_changes_nothing(story: &Story<'_>) -> Outcome {
    let wrong = story.config.replace("hostname:", "hostnam:");
    let said = story.apply(&wrong, &[]).await?;
    ensure!(said.code != Some(0), "{said:?}");
    ensure!(said.complaint.contains("hostnam"), "{said:?}");
    Ok(())
}

async fn a_dry_run_tells_the_difference(story: &Story<'_>) -> Outcome {
    let said = story.apply(&story.renamed(), &["--dry-run"]).await?;
    for expected in [
        "nothing was changed",
        "the host name",
        "-hostname: node\n+hostname: renamed\n",
    ] {
        ensure!(said.output.contains(expected), "{said:?}");
    }
    ensure!(story.node.hostname().await? == "node");
    Ok(())
}

async fn what_takes_a_reboot_is_named(story: &Story<'_>) -> Outcome {
    let other_disk = story.config.replace("/dev/vda", "/dev/vdb");
    let said = story.apply(&other_disk, &["--mode", "no-reboot"]).await?;
    ensure!(
        said.code != Some(0) && said.complaint.contains("this takes a reboot: the disk"),
        "{said:?}"
    );
    Ok(())
}

async fn the_next_pull_asks_where_the_config_says(story: &Story<'_>) -> Outcome {
    let pid = story.node.service_pid("first").await?;
    chapters![
        a_pull_from_where_nobody_listens_fails(story),
        a_pull_from_the_registry_succeeds(story),
    ]
    .await?;
    let now = story.node.service_pid("first").await?;
    ensure!(now == pid, "the container was started again");
    Ok(())
}

const PULL: [&str; 3] = ["image", "pull", "mirrored.example/greeter:v1"];

async fn a_pull_from_where_nobody_listens_fails(story: &Story<'_>) -> Outcome {
    let nowhere = story.mirrored("127.0.0.1:9");
    let said = story.apply(&nowhere, &["--mode", "no-reboot"]).await?;
    ensure!(said.code == Some(0), "{said:?}");
    let expected = "taken over now: registries";
    ensure!(said.output.contains(expected), "{said:?}");
    let said = story.client.run(&PULL).await?;
    ensure!(said.code != Some(0), "{said:?}");
    Ok(())
}

async fn a_pull_from_the_registry_succeeds(story: &Story<'_>) -> Outcome {
    let said = story.apply(&story.mirrored(&story.host), &[]).await?;
    let expected = "Applied without a reboot: taken over now: registries.";
    ensure!(said.output.contains(expected), "{said:?}");
    let said = story.client.run(&PULL).await?;
    ensure!(said.code == Some(0), "{said:?}");
    Ok(())
}

async fn a_trial_is_taken_back_by_itself(story: &Story<'_>) -> Outcome {
    let trial = ["--mode", "try", "--timeout", LONG_ENOUGH];
    let said = story.apply(&story.renamed(), &trial).await?;
    ensure!(said.code == Some(0), "{said:?}");
    story.is_called("renamed").await?;
    story.is_called("node").await?;
    story.node.wait_for_line(TRIAL_IS_OVER, PATIENCE).map(drop)
}

async fn a_trial_that_is_confirmed_stays(story: &Story<'_>) -> Outcome {
    let ended = || story.node.vm().console().matches(TRIAL_IS_OVER).count();
    let (before, time) = (ended(), format!("{TO_CONFIRM:?}"));
    let trial = ["--mode", "try", "--timeout", &time];
    story.apply(&story.renamed(), &trial).await?;
    let said = story.apply(&story.renamed(), &[]).await?;
    ensure!(said.code == Some(0), "{said:?}");
    tokio::time::sleep(TO_CONFIRM + Duration::from_secs(1)).await;
    let called = story.node.hostname().await?;
    ensure!(called == "renamed", "a confirmed trial was taken back");
    ensure!(ended() == before, "it ended before it was confirmed");
    Ok(())
}

async fn a_container_comes_and_the_other_one_is_not_touched(story: &Story<'_>) -> Outcome {
    let node = &story.node;
    let first = Greeter::at(node, FIRST_PORT)?;
    let second = Greeter::at(node, SECOND_PORT)?;
    first.greets()?;
    let pid = node.service_pid("first").await?;
    let said = story.apply(&story.with_another(), &[]).await?;
    let expected = "containers started: second";
    ensure!(said.output.contains(expected), "{said:?}");
    let greets = async || second.greets();
    node.wait_until("the second container answers", PATIENCE, greets)
        .await?;
    first.greets()?;
    let now = node.service_pid("first").await?;
    ensure!(now == pid, "the first container was started again");
    Ok(())
}

async fn a_container_goes(story: &Story<'_>) -> Outcome {
    let third = story.with_another().replace("name: first", "name: third");
    let said = story.apply(&third, &[]).await?;
    let expected = "containers removed: first";
    ensure!(said.output.contains(expected), "{said:?}");
    Ok(())
}

async fn a_staged_config_waits_for_the_next_boot(story: &Story<'_>) -> Outcome {
    let more = story.with_another();
    let staged = more.replace("hostname: renamed", "hostname: staged");
    let said = story.apply(&staged, &["--mode", "staged"]).await?;
    for expected in ["Kept for the next reboot", "fw_cfg"] {
        ensure!(said.output.contains(expected), "{said:?}");
    }
    ensure!(story.node.hostname().await? == "renamed");
    Ok(())
}

/// The second patch begins with the config of the first one, which is not in force.
async fn patches_of_a_staged_config_add_up(story: &Story<'_>) -> Outcome {
    for name in ["first.example", "second.example"] {
        let patch = format!("{HOSTS}hostnames: [{name}]\n");
        let staged = ["patch", "mc", "persistent", "--mode", "staged", "-p"];
        let words = [&staged[..], &[&patch]].concat();
        let said = story.client.run(&words).await?;
        ensure!(said.code == Some(0));
    }
    for (id, expected) in [("persistent", true), ("v1alpha1", false)] {
        let said = story.client.run(&["get", "mc", id, "-o", "yaml"]).await?;
        for part in ["hostname: staged", "first.example", "second.example"] {
            ensure!(said.output.contains(part) == expected, "{part}: {said:?}");
        }
    }
    Ok(())
}
