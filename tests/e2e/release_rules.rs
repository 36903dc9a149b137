//! The rules between releases: the machine's floor, the versions that an image may follow, tags and labels that contradict each other; and
//! the image that the running version came from.

use anyhow::ensure;
use instar_tests::{
    INSTALLER, ImageUnderTest, Instarctl, Node, OciImage, Outcome, Registry, Said, Scratch, Test,
    chapters, tests,
};
use serde_json::Value;

use crate::PATIENCE;
use crate::installed::install_with;

/// `instarctl`'s exit code.
const REFUSED: Option<i32> = Some(5);
/// The ways to ask for an upgrade.
const WAYS: [&[&str]; 4] = [&[], &["--stage"], &["--no-reboot"], &["--dry-run"]];
/// A date that an image's config has.
const DATE: &str = "2026-11-25T22:00:00Z";
/// The beginning of the message about the floor that the tests set.
const BELOW: &str = "version v0.1.0 is below this machine's floor v0.2.0, which v0.2.0 set";

pub(crate) fn tests() -> Vec<Test> {
    tests![
        an_installed_machine_keeps_the_rules_between_releases,
        a_machine_without_a_disk_keeps_its_floor_over_upgrades_without_a_reboot,
    ]
}

/// The node of a test, its client and its registry.
struct Subject {
    node: Node,
    client: Instarctl,
    registry: Registry,
}

impl Subject {
    fn new(node: Node, scratch: &Scratch, registry: Registry) -> anyhow::Result<Self> {
        let client = Instarctl::of(&node, scratch)?;
        Ok(Self {
            node,
            client,
            registry,
        })
    }

    async fn upgrade(&self, tag: &str, more: &[&str]) -> anyhow::Result<Said> {
        let image = self.registry.installer_for_guest(tag);
        let arguments = [&["upgrade", "--image", &image], more].concat();
        self.client.run(&arguments).await
    }

    async fn succeeds(&self, tag: &str, more: &[&str]) -> Outcome {
        let said = self.upgrade(tag, more).await?;
        ensure!(said.code == Some(0), "{tag} {more:?}: {said:?}");
        self.node.wait_until_ready(PATIENCE).await
    }

    /// Checks that the upgrade is refused in every way to ask for it, with these words, and that nothing has changed.
    async fn is_refused_in_every_way(&self, tag: &str, words: &str) -> Outcome {
        let before = (self.node.boot_id().await?, self.about().await?);
        for way in WAYS {
            let said = self.upgrade(tag, way).await?;
            ensure!(
                said.code == REFUSED && said.complaint.contains(words),
                "{tag} {way:?}: {said:?}"
            );
        }
        let after = (self.node.boot_id().await?, self.about().await?);
        ensure!(before == after, "{before:?} became {after:?}");
        Ok(())
    }

    /// Returns what `version` tells.
    async fn about(&self) -> anyhow::Result<Value> {
        let said = self.client.run(&["version", "-o", "json"]).await?;
        ensure!(said.code == Some(0), "{said:?}");
        Ok(serde_json::from_str(&said.output)?)
    }

    /// Checks what `version` tells.
    async fn tells(&self, expected: &[(&str, &str)]) -> Outcome {
        let about = self.about().await?;
        for (field, value) in expected {
            ensure!(about[*field] == *value, "{field} is not {value}: {about}");
        }
        Ok(())
    }

    async fn power_cycle(self) -> anyhow::Result<Self> {
        let node = self.node.power_cycle().await?;
        node.wait_until_ready(PATIENCE).await?;
        Ok(Self { node, ..self })
    }
}

/// The digests of the images with a floor, in the order in which they are taken.
struct Pushed {
    installed: String,
    first: String,
    again: String,
}

/// Pushes the images of this test.
fn push_all(registry: &Registry) -> anyhow::Result<Pushed> {
    for (tag, label, value) in REFUSED_IMAGES {
        let image = second_version()?.label(label, value);
        image.push(registry, INSTALLER, tag)?;
    }
    Ok(Pushed {
        installed: registry.push_installer(&ImageUnderTest::first()?)?,
        first: push_with_floor(registry, "first")?,
        again: push_with_floor(registry, "again")?,
    })
}

fn second_version() -> anyhow::Result<OciImage> {
    OciImage::read(&ImageUnderTest::second()?.installer())
}

/// Tags of the second version that are refused, each with a label and its value.
const REFUSED_IMAGES: [(&str, &str, &str); 4] = [
    (
        "elsewhere",
        "dev.instar.upgrades-from",
        ">=v0.5.0 || v0.4.1",
    ),
    ("nonsense", "dev.instar.upgrades-from", "yesterday"),
    ("too-high", "dev.instar.floor", "v0.9.0"),
    ("v0.3.0", "dev.instar.upgrades-from", "v0.1.0"),
];

/// Pushes the second version with a floor; returns its digest.
fn push_with_floor(registry: &Registry, tag: &str) -> anyhow::Result<String> {
    let image = second_version()?.label("dev.instar.floor", "v0.2.0");
    let image = image.label("dev.instar.test", tag).created(DATE);
    Ok(image.push(registry, INSTALLER, tag)?.digest)
}

async fn an_installed_machine_keeps_the_rules_between_releases(scratch: Scratch) -> Outcome {
    let registry = Registry::start(&scratch)?;
    let pushed = push_all(&registry)?;
    let node = install_with(&scratch, &registry, |config| config).await?;
    let subject = Subject::new(node, &scratch, registry)?;
    releases_are_judged(&subject, &pushed).await?;
    let subject = both_outlast_a_power_cut(subject, &pushed).await?;
    chapters![
        force_leads_below_the_floor_and_is_logged(&subject, &pushed),
        after_a_rollback_the_image_of_before_is_told(&subject, &pushed),
        a_rollback_below_the_floor_needs_force(&subject, &pushed),
    ]
    .await
}

async fn releases_are_judged(subject: &Subject, pushed: &Pushed) -> Outcome {
    chapters![
        the_image_of_the_installation_is_told(subject, pushed),
        an_image_that_may_not_follow_is_refused(subject),
        a_label_without_sense_is_refused(subject),
        a_tag_that_contradicts_its_label_holds_the_image(subject),
        a_committed_release_sets_the_floor_and_is_known_by_its_digest(subject, pushed),
        nothing_leads_below_the_floor(subject),
        a_soft_upgrade_hands_both_over(subject, pushed),
    ]
    .await
}

async fn the_image_of_the_installation_is_told(subject: &Subject, pushed: &Pushed) -> Outcome {
    let image = subject.registry.installer_for_guest("v0.1.0");
    let told = [
        ("image", image.as_str()),
        ("digest", &pushed.installed),
        ("floor", ""),
    ];
    subject.tells(&told).await
}

async fn an_image_that_may_not_follow_is_refused(subject: &Subject) -> Outcome {
    let words = "may follow only >=v0.5.0 || v0.4.1, and v0.1.0 runs here";
    subject.is_refused_in_every_way("elsewhere", words).await
}

/// Force does not help: nobody knows what the label means.
async fn a_label_without_sense_is_refused(subject: &Subject) -> Outcome {
    for (tag, words) in [
        ("nonsense", "\"yesterday\", which is not ranges of versions"),
        (
            "too-high",
            "\"v0.9.0\", which is not the image's own version",
        ),
    ] {
        let said = subject.upgrade(tag, &["--force"]).await?;
        ensure!(
            said.code == REFUSED && said.complaint.contains(words),
            "{tag}: {said:?}"
        );
    }
    Ok(())
}

async fn a_tag_that_contradicts_its_label_holds_the_image(subject: &Subject) -> Outcome {
    let words = "the tag v0.3.0 says version 0.3.0, and the image's label says v0.2.0";
    subject.is_refused_in_every_way("v0.3.0", words).await?;
    let said = subject.upgrade("v0.3.0", &["--dry-run", "--force"]).await?;
    ensure!(
        said.code == Some(0) && said.output.contains(&format!("forced, although {words}")),
        "{said:?}"
    );
    Ok(())
}

async fn a_committed_release_sets_the_floor_and_is_known_by_its_digest(
    subject: &Subject,
    pushed: &Pushed,
) -> Outcome {
    subject
        .succeeds("first", &["--reboot-mode", "powercycle"])
        .await?;
    let told = [
        ("version", "v0.2.0"),
        ("digest", &pushed.first),
        ("created", DATE),
        ("floor", "v0.2.0"),
    ];
    subject.tells(&told).await?;
    is_in_the_history(subject, &pushed.first).await
}

async fn is_in_the_history(subject: &Subject, digest: &str) -> Outcome {
    let is_told = async || {
        let said = subject.client.run(&["get", "upgrades"]).await?;
        ensure!(said.output.contains(digest), "{said:?}");
        Ok(())
    };
    let what = "the history names the image";
    subject.node.wait_until(what, PATIENCE, is_told).await
}

async fn nothing_leads_below_the_floor(subject: &Subject) -> Outcome {
    subject.is_refused_in_every_way("v0.1.0", BELOW).await?;
    a_rollback_is_refused(subject).await
}

async fn a_rollback_is_refused(subject: &Subject) -> Outcome {
    let said = subject.client.run(&["rollback"]).await?;
    ensure!(
        said.code == REFUSED && said.complaint.contains(BELOW),
        "{said:?}"
    );
    Ok(())
}

async fn a_soft_upgrade_hands_both_over(subject: &Subject, pushed: &Pushed) -> Outcome {
    let kernel = subject.node.kernel_boot_id().await?;
    subject.succeeds("again", &[]).await?;
    ensure!(
        subject.node.kernel_boot_id().await? == kernel,
        "it rebooted"
    );
    let told = [("digest", pushed.again.as_str()), ("floor", "v0.2.0")];
    subject.tells(&told).await
}

async fn both_outlast_a_power_cut(subject: Subject, pushed: &Pushed) -> anyhow::Result<Subject> {
    let subject = subject.power_cycle().await?;
    let told = [
        ("version", "v0.2.0"),
        ("digest", &pushed.again),
        ("created", DATE),
        ("floor", "v0.2.0"),
    ];
    subject.tells(&told).await?;
    let said = subject.upgrade("v0.1.0", &[]).await?;
    ensure!(said.complaint.contains(BELOW), "{said:?}");
    Ok(subject)
}

/// The floor does not fall with the version.
async fn force_leads_below_the_floor_and_is_logged(subject: &Subject, pushed: &Pushed) -> Outcome {
    subject
        .succeeds("v0.1.0", &["--force", "--reboot-mode", "powercycle"])
        .await?;
    let told = [
        ("version", "v0.1.0"),
        ("digest", &pushed.installed),
        ("floor", "v0.2.0"),
    ];
    subject.tells(&told).await?;
    let words = format!("forced, although {BELOW}");
    ensure!(
        subject.node.vm().console().contains(&words),
        "the console does not say: {words}"
    );
    Ok(())
}

/// The other version is not below the floor.
async fn after_a_rollback_the_image_of_before_is_told(
    subject: &Subject,
    pushed: &Pushed,
) -> Outcome {
    let said = subject.client.run(&["rollback"]).await?;
    ensure!(said.code == Some(0), "{said:?}");
    subject.node.wait_until_ready(PATIENCE).await?;
    let told = [("version", "v0.2.0"), ("digest", &pushed.again)];
    subject.tells(&told).await
}

async fn a_rollback_below_the_floor_needs_force(subject: &Subject, pushed: &Pushed) -> Outcome {
    a_rollback_is_refused(subject).await?;
    let said = subject.client.run(&["rollback", "--force"]).await?;
    ensure!(said.code == Some(0), "{said:?}");
    subject.node.wait_until_ready(PATIENCE).await?;
    let told = [("version", "v0.1.0"), ("digest", &pushed.installed)];
    subject.tells(&told).await
}

async fn a_machine_without_a_disk_keeps_its_floor_over_upgrades_without_a_reboot(
    scratch: Scratch,
) -> Outcome {
    let registry = Registry::start(&scratch)?;
    let pushed = push_all(&registry)?;
    let host = registry.host_for_guest();
    let plan = Node::plan(&scratch, &ImageUnderTest::first()?);
    let plan = plan.configure(move |config| config.registry(&host));
    let node = plan.boot_until_ready(PATIENCE).await?;
    let subject = Subject::new(node, &scratch, registry)?;
    chapters![
        a_version_from_a_medium_has_no_image(&subject),
        a_committed_release_sets_the_floor_without_a_disk(&subject, &pushed),
        a_soft_upgrade_hands_both_over(&subject, &pushed),
        below_the_floor_nothing_is_taken(&subject),
    ]
    .await
}

async fn a_version_from_a_medium_has_no_image(subject: &Subject) -> Outcome {
    let said = subject.client.run(&["version"]).await?;
    let words = "none is known: the version came from a medium";
    ensure!(said.output.contains(words), "{said:?}");
    Ok(())
}

async fn a_committed_release_sets_the_floor_without_a_disk(
    subject: &Subject,
    pushed: &Pushed,
) -> Outcome {
    subject.succeeds("first", &[]).await?;
    let told = [
        ("version", "v0.2.0"),
        ("digest", pushed.first.as_str()),
        ("floor", "v0.2.0"),
    ];
    subject.tells(&told).await
}

async fn below_the_floor_nothing_is_taken(subject: &Subject) -> Outcome {
    let said = subject.upgrade("v0.1.0", &[]).await?;
    ensure!(
        said.code == REFUSED && said.complaint.contains(BELOW),
        "{said:?}"
    );
    subject.succeeds("v0.1.0", &["--force"]).await?;
    let told = [("version", "v0.1.0"), ("floor", "v0.2.0")];
    subject.tells(&told).await
}
