//! A container runs a digest: the image's name is looked up on request, and at no other time.

use anyhow::{Result, ensure};
use instar_tests::{
    Ending, GREETER, GREETER_PORT, Greeter, ImageUnderTest, Instarctl, Node, Outcome, Registry,
    Scratch, Test, WITH_CGROUPS, chapters, push_greeter_edition, tests, upgrade_and_follow,
};

use crate::PATIENCE;
use crate::installed::INSTALLER;

/// machined's words when a container starts without its registry's answer.
const AWAY: &str = "its registry is away";
/// The same in full, for a registry that is silent.
const GIVEN_UP: &str = "is used, which is here: its registry is away: no answer within 10 s";

pub(crate) fn tests() -> Vec<Test> {
    tests![image_names_mean_what_they_meant_until_an_operator_asks]
}

/// A node, its greeter, and its clients.
struct Subject {
    node: Node,
    greeter: Greeter,
    client: Instarctl,
}

impl Subject {
    async fn new(node: Node, scratch: &Scratch) -> Result<Self> {
        node.wait_until_ready(PATIENCE).await?;
        Ok(Self {
            greeter: Greeter::of(&node)?,
            client: Instarctl::of(&node, scratch)?,
            node,
        })
    }

    async fn runs(&self, edition: &str, since: &str) -> Outcome {
        let read = async || self.greeter.get("/read/edition");
        let runs = self.node.wait_until("it answers", PATIENCE, read).await?;
        ensure!(runs == edition, "{since} it runs {runs}, not {edition}");
        Ok(())
    }

    /// Kills the greeter, and waits until it answers again.
    async fn crash(&self) -> Outcome {
        let before = self.node.service_pid(GREETER).await?;
        self.greeter.exit(1);
        let again = async || {
            ensure!(self.node.service_pid(GREETER).await? != before);
            self.greeter.greets()
        };
        self.node
            .wait_until("it has started again", PATIENCE, again)
            .await
    }

    /// How often machined's log has these words.
    async fn has_logged(&self, words: &str) -> Result<usize> {
        Ok(self.node.log("machined").await?.matches(words).count())
    }

    async fn restart(&self) -> Outcome {
        let said = self.client.run(&["restart", GREETER]).await?;
        ensure!(said.code == Some(0), "{said:?}");
        Ok(())
    }

    /// Checks that the image is kept, and that the API names the container that needs it.
    async fn keeps(&self, digest: &str) -> Outcome {
        let said = self
            .client
            .run(&["get", "images", digest, "-o", "yaml"])
            .await?;
        ensure!(
            said.output.contains(&format!("{GREETER}=")) && said.output.contains("greeter:v1"),
            "{said:?}"
        );
        Ok(())
    }

    async fn collects(&self, digest: &str) -> Outcome {
        let what = "the image that nothing names is gone";
        self.node
            .wait_until(what, PATIENCE, || self.has_no_image(digest))
            .await
    }

    async fn has_no_image(&self, digest: &str) -> Outcome {
        let said = self.client.run(&["image", "list"]).await?;
        ensure!(said.code == Some(0), "{said:?}");
        ensure!(!said.output.contains(digest), "{said:?}");
        let mut files = self.node.machine().await?;
        let hex = digest.trim_start_matches("sha256:");
        let path = format!("/var/lib/instar/images/{hex}/image.json");
        let is_there = self.node.has_file(&mut files, &path).await?;
        ensure!(!is_there, "{path} is there");
        Ok(())
    }
}

async fn image_names_mean_what_they_meant_until_an_operator_asks(scratch: Scratch) -> Outcome {
    let registry = Registry::start(&scratch)?;
    registry.push_both_installers()?;
    let one = push_greeter_edition(&registry, "one")?;
    let subject = Subject::new(boot(&scratch, &registry).await?, &scratch).await?;
    subject.runs("one", "at first").await?;
    let two = push_greeter_edition(&registry, "two")?;
    chapters![
        nobody_asks_for_a_name_by_itself(&subject, &registry, &one),
        a_restart_asks_for_the_name(&subject, &one, &two),
        a_restart_goes_back_with_the_name(&subject, &registry, &two),
        a_name_that_the_registry_does_not_know_is_an_error(&subject, &registry),
        a_registry_that_is_silent_is_not_needed(&subject, &registry),
        after_a_power_cut_it_runs_what_ran_before(subject, &scratch),
    ]
    .await
}

async fn nobody_asks_for_a_name_by_itself(
    subject: &Subject,
    registry: &Registry,
    one: &str,
) -> Outcome {
    chapters![
        a_crash_starts_what_ran_before(subject),
        a_crash_under_another_machined_starts_what_ran_before(subject),
        an_upgrade_starts_what_ran_before(subject, registry),
    ]
    .await?;
    subject.keeps(one).await
}

async fn boot(scratch: &Scratch, registry: &Registry) -> Result<Node> {
    let host = registry.host_for_guest();
    Node::plan(scratch, &ImageUnderTest::first()?)
        .blank_disk()?
        .forward(GREETER_PORT)
        .configure(move |config| {
            let image = format!("{host}/greeter:v1");
            let config = config.install_disk("/dev/vda").registry(&host);
            config.greeter_at(GREETER, &image, GREETER_PORT, WITH_CGROUPS)
        })
        .boot()
        .await
}

async fn a_crash_starts_what_ran_before(subject: &Subject) -> Outcome {
    subject.crash().await?;
    subject.runs("one", "after a crash").await
}

async fn a_crash_under_another_machined_starts_what_ran_before(subject: &Subject) -> Outcome {
    let Subject { node, greeter, .. } = subject;
    let mark = node.vm().console_mark()?;
    greeter.get("/write/cgroup/generation.1/machined/cgroup.kill?1")?;
    let line = "starting machined again";
    node.vm().wait_for_line_after(mark, line, PATIENCE)?;
    node.wait_for_api(PATIENCE).await?;
    node.wait_until_ready(PATIENCE).await?;
    subject.crash().await?;
    let since = "after a crash under another machined";
    subject.runs("one", since).await
}

async fn an_upgrade_starts_what_ran_before(subject: &Subject, registry: &Registry) -> Outcome {
    let image = registry.image_for_guest(&format!("{INSTALLER}:v0.2.0"));
    let followed = upgrade_and_follow(&subject.node, &image, PATIENCE).await?;
    ensure!(followed.ending == Ending::Done, "{followed:#?}");
    subject.runs("one", "after an upgrade").await
}

async fn a_restart_asks_for_the_name(subject: &Subject, one: &str, two: &str) -> Outcome {
    subject.restart().await?;
    subject.runs("two", "after a restart").await?;
    subject.keeps(two).await?;
    subject.collects(one).await
}

/// The name means an older image now.
async fn a_restart_goes_back_with_the_name(
    subject: &Subject,
    registry: &Registry,
    two: &str,
) -> Outcome {
    push_greeter_edition(registry, "one")?;
    subject.crash().await?;
    let since = "after a crash with the tag moved back";
    subject.runs("two", since).await?;
    subject.restart().await?;
    let since = "after a restart with the tag moved back";
    subject.runs("one", since).await?;
    subject.collects(two).await
}

async fn a_name_that_the_registry_does_not_know_is_an_error(
    subject: &Subject,
    registry: &Registry,
) -> Outcome {
    registry.remove_tag("greeter", "v1")?;
    let before = subject.node.service_pid(GREETER).await?;
    let said = subject.client.run(&["restart", GREETER]).await?;
    ensure!(said.code != Some(0), "{said:?}");
    ensure!(said.complaint.contains("goes on as it was"), "{said:?}");
    ensure!(subject.node.service_pid(GREETER).await? == before);
    Ok(())
}

async fn a_registry_that_is_silent_is_not_needed(
    subject: &Subject,
    registry: &Registry,
) -> Outcome {
    push_greeter_edition(registry, "two")?;
    registry.freeze()?;
    chapters![
        a_crash_asks_no_registry(subject),
        a_restart_does_without_a_registry_that_is_silent(subject),
    ]
    .await
}

async fn a_crash_asks_no_registry(subject: &Subject) -> Outcome {
    let before = subject.has_logged(AWAY).await?;
    subject.crash().await?;
    let after = subject.has_logged(AWAY).await?;
    ensure!(
        after == before,
        "a registry that is not needed was waited for"
    );
    Ok(())
}

/// An error from the registry fails the restart; a silent registry does not.
async fn a_restart_does_without_a_registry_that_is_silent(subject: &Subject) -> Outcome {
    let before = subject.has_logged(GIVEN_UP).await?;
    subject.restart().await?;
    let since = "after a restart without the registry";
    subject.runs("one", since).await?;
    let after = subject.has_logged(GIVEN_UP).await?;
    ensure!(after == before + 1, "{before}, and then {after} times");
    Ok(())
}

async fn after_a_power_cut_it_runs_what_ran_before(subject: Subject, scratch: &Scratch) -> Outcome {
    let node = subject.node.power_cycle().await?;
    let subject = Subject::new(node, scratch).await?;
    subject.runs("one", "after the power was cut").await
}
