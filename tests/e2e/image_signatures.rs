//! A node runs and installs only images that its owner's rules allow; the signatures are made by the real cosign.

use anyhow::{Context as _, Result, ensure};
use instar_tests::{
    Cosign, GREETER, GREETER_PORT, Greeter, INSTALLER, ImageUnderTest, Instarctl, Node, OciImage,
    Outcome, Registry, Said, Scratch, Test, chapters, push_greeter_edition, tests,
};

use crate::PATIENCE;

/// The image of the greeter at its registry.
const IMAGE: &str = "greeter:v1";
/// The beginning of the document with the rules, which is the last one of each config here.
const RULES: &str = "---\napiVersion: v1alpha1\nkind: ImageVerificationConfig\n";

pub(crate) fn tests() -> Vec<Test> {
    tests![only_images_that_the_rules_allow_run]
}

/// A node, its registry, the owner's key, and somebody else's.
struct Story {
    node: Node,
    registry: Registry,
    owner: Cosign,
    other: Cosign,
    client: Instarctl,
    scratch: Scratch,
}

async fn only_images_that_the_rules_allow_run(scratch: Scratch) -> Outcome {
    let story = Story::begin(&scratch).await?;
    chapters![
        an_image_runs_once_the_owner_has_signed_it(&story),
        upgrades_are_held_to_the_same_rules(&story),
        a_change_of_the_rules_counts_at_once(&story),
        a_bundle_is_a_signature_too(&story),
        no_registry_is_needed_for_what_was_verified(story),
    ]
    .await
}

impl Story {
    /// Boots a node whose one container is not signed by anybody.
    async fn begin(scratch: &Scratch) -> Result<Self> {
        let registry = Registry::with_both_installers_without_kernel(scratch)?;
        push_greeter_edition(&registry, "one")?;
        let owner = Cosign::new(scratch, "owner")?;
        let other = Cosign::new(scratch, "other")?;
        let node = boot(scratch, &registry, &owner).await?;
        let client = Instarctl::of(&node, scratch)?;
        Ok(Self {
            node,
            registry,
            owner,
            other,
            client,
            scratch: scratch.clone(),
        })
    }

    /// The name of the greeter's image in the node.
    fn image(&self) -> String {
        self.registry.image_for_guest(IMAGE)
    }

    /// A rule for all images of the registry.
    fn rule(&self, effect: &str) -> String {
        rule(&self.registry, effect)
    }

    /// Applies the node's config with other rules.
    async fn apply(&self, rules: &str) -> Result<Said> {
        let (base, _) = self.node.config().split_once(RULES).context("no rules")?;
        let yaml = format!("{base}{RULES}rules:\n{rules}");
        let file = self.scratch.write("rules.yaml", yaml)?;
        let file = file.to_string_lossy().into_owned();
        let said = self.client.run(&["apply-config", "--file", &file]).await?;
        ensure!(said.code == Some(0), "{said:?}");
        Ok(said)
    }

    /// Waits until the greeter fails for a reason with all these words.
    async fn fails(&self, words: &[&str]) -> Outcome {
        let failed = async || {
            let events = self.node.service(GREETER).await?.events.unwrap_or_default();
            let last = events.events.last().context("no event")?.msg.clone();
            let is_it = words.iter().all(|words| last.contains(words));
            ensure!(is_it, "{last:?} lacks one of {words:?}");
            Ok(())
        };
        let what = "the greeter fails for the reason";
        self.node.wait_until(what, PATIENCE, failed).await
    }

    /// Restarts the greeter, which looks its image up anew, and waits until it runs this edition.
    async fn restarts_as(&self, edition: &str) -> Outcome {
        let said = self.client.run(&["restart", GREETER]).await?;
        ensure!(said.code == Some(0), "{said:?}");
        runs(&self.node, edition).await
    }

    /// Has the client verify the greeter's image; returns all that it says.
    async fn verify(&self) -> Result<(Option<i32>, String)> {
        let said = self.client.run(&["image", "verify", &self.image()]).await?;
        Ok((said.code, said.output + &said.complaint))
    }

    async fn pid(&self) -> Result<u32> {
        self.node.service_pid(GREETER).await
    }
}

async fn boot(scratch: &Scratch, registry: &Registry, owner: &Cosign) -> Result<Node> {
    let host = registry.host_for_guest();
    let rules = format!("rules:\n{}", rule(registry, &by(owner)?));
    let rules = format!("{}{rules}", RULES.trim_start_matches("---\n"));
    let node = Node::plan(scratch, &ImageUnderTest::first()?)
        .blank_disk()?
        .forward(GREETER_PORT)
        .configure(move |config| {
            let config = config.install_disk("/dev/vda").registry(&host);
            config.greeter(&host).document(&rules)
        });
    let node = node.boot().await?;
    node.wait_for_api(PATIENCE).await?;
    Ok(node)
}

fn rule(registry: &Registry, effect: &str) -> String {
    let host = registry.host_for_guest();
    format!("  - image: \"{host}/*\"\n    {effect}\n")
}

/// The effect of a rule that wants a signature by this key.
fn by(signer: &Cosign) -> Result<String> {
    let key = signer.public_key()?.replace('\n', "\n        ");
    Ok(format!(
        "publicKey:\n      certificate: |\n        {}",
        key.trim_end()
    ))
}

async fn runs(node: &Node, edition: &str) -> Outcome {
    let greeter = Greeter::of(node)?;
    let read = async || {
        let runs = greeter.get("/read/edition")?;
        ensure!(runs == edition, "it runs {runs}, not {edition}");
        Ok(())
    };
    node.wait_until("the greeter runs this edition", PATIENCE, read)
        .await
}

async fn an_image_runs_once_the_owner_has_signed_it(story: &Story) -> Outcome {
    chapters![
        an_unsigned_image_does_not_run(story),
        nor_is_it_pulled_or_verified(story),
        another_signature_is_not_enough(story),
        the_owners_signature_is(story),
        the_client_is_told_whose_signature_it_is(story),
    ]
    .await
}

async fn an_unsigned_image_does_not_run(story: &Story) -> Outcome {
    let image = story.image();
    let words = [
        image.as_str(),
        "rule 0000",
        "by the key sha256:",
        "no signature was found",
    ];
    story.fails(&words).await
}

async fn nor_is_it_pulled_or_verified(story: &Story) -> Outcome {
    let said = story.client.run(&["image", "pull", &story.image()]).await?;
    ensure!(said.code != Some(0), "{said:?}");
    ensure!(
        said.complaint.contains("no signature was found"),
        "{said:?}"
    );
    let (code, said) = story.verify().await?;
    ensure!(
        code != Some(0) && said.contains("verification failed: "),
        "{said}"
    );
    Ok(())
}

async fn another_signature_is_not_enough(story: &Story) -> Outcome {
    story.other.sign(&story.registry, IMAGE)?;
    story.fails(&["1 signature, not by this key"]).await?;
    let kind = "https://spdx.dev/Document";
    story.owner.attest(&story.registry, IMAGE, kind)?;
    story
        .fails(&["a statement by this key that is no signature"])
        .await
}

/// The service tries again by itself.
async fn the_owners_signature_is(story: &Story) -> Outcome {
    story.owner.sign(&story.registry, IMAGE)?;
    runs(&story.node, "one").await?;
    story.node.wait_until_ready(PATIENCE).await
}

async fn the_client_is_told_whose_signature_it_is(story: &Story) -> Outcome {
    let (code, said) = story.verify().await?;
    let told = "verified by matched rule (0000): signed by the key sha256:";
    ensure!(code == Some(0) && said.contains(told), "{said}");
    let (_, key) = said.trim().rsplit_once(' ').context("no key")?;
    let images = story.client.run(&["get", "images", "-o", "yaml"]).await?;
    ensure!(images.output.contains(key), "{images:?} lacks {key}");
    let rules = story.client.run(&["get", "imageverificationrules"]).await?;
    ensure!(
        rules.output.contains(&story.registry.host_for_guest()),
        "{rules:?}"
    );
    Ok(())
}

async fn upgrades_are_held_to_the_same_rules(story: &Story) -> Outcome {
    let greeter = story.pid().await?;
    chapters![
        an_unsigned_version_is_refused(story),
        a_version_whose_index_is_signed_is_prepared(story),
        a_signed_version_is_taken(story),
    ]
    .await?;
    ensure!(story.pid().await? == greeter, "the greeter was not kept");
    Ok(())
}

async fn upgrade(story: &Story, more: &[&str]) -> Result<Said> {
    let image = story.registry.installer_for_guest("v0.2.0");
    let words = ["upgrade", "--image", &image];
    story.client.run(&[&words[..], more].concat()).await
}

async fn an_unsigned_version_is_refused(story: &Story) -> Outcome {
    let (generation, greeter) = (story.node.boot_id().await?, story.pid().await?);
    for more in [&["--wait"][..], &["--dry-run"], &["--no-reboot"]] {
        let said = upgrade(story, more).await?;
        ensure!(said.code != Some(0), "{more:?}: {said:?}");
        ensure!(
            said.complaint.contains("no signature was found"),
            "{more:?}: {said:?}"
        );
    }
    ensure!(story.node.boot_id().await? == generation);
    ensure!(story.pid().await? == greeter);
    Ok(())
}

/// As publishers of several platforms sign: the index, and no image in it. A prepared version is fetched by its digest.
async fn a_version_whose_index_is_signed_is_prepared(story: &Story) -> Outcome {
    let image = push_behind_a_signed_index(story)?;
    let prepare = ["upgrade", "--prepare", "--image", &image];
    let said = story.client.run(&prepare).await?;
    ensure!(said.code == Some(0), "{said:?}");
    let prepared = async || {
        let said = story.client.run(&["get", "upgrades"]).await?;
        let mut lines = said.output.lines();
        let next = lines.find(|line| line.contains("next")).unwrap_or_default();
        ensure!(next.contains("prepared"), "{}", said.output);
        Ok(())
    };
    let what = "it is prepared";
    story.node.wait_until(what, PATIENCE, prepared).await
}

/// Pushes another image of v0.2.0, and an index of it, which alone is signed; returns the image's name in the node.
fn push_behind_a_signed_index(story: &Story) -> Result<String> {
    let (registry, repository) = (&story.registry, "instar/for-all-platforms");
    let image = OciImage::read(&ImageUnderTest::second()?.installer())?;
    let image = image
        .first_layer_alone()
        .label("org.example.edition", "all");
    let pushed = image.push(registry, repository, "v0.2.0")?;
    registry.put_index_of(repository, "v0.2.0", &pushed.digest)?;
    let name = format!("{repository}:v0.2.0");
    story.owner.sign(registry, &name)?;
    Ok(registry.image_for_guest(&name))
}

async fn a_signed_version_is_taken(story: &Story) -> Outcome {
    story
        .owner
        .sign(&story.registry, &format!("{INSTALLER}:v0.2.0"))?;
    let said = upgrade(story, &["--wait"]).await?;
    ensure!(said.code == Some(0), "{said:?}");
    ensure!(story.node.version().await?.tag == "v0.2.0");
    Ok(())
}

async fn a_change_of_the_rules_counts_at_once(story: &Story) -> Outcome {
    chapters![
        rules_that_allow_it_disturb_no_container(story),
        a_rule_that_denies_it_ends_it(story),
        a_rule_that_skips_it_needs_no_signature(story),
        a_key_that_has_not_signed_ends_it(story),
    ]
    .await
}

/// The other key's signature was not looked for until now.
async fn rules_that_allow_it_disturb_no_container(story: &Story) -> Outcome {
    let before = story.pid().await?;
    for rules in [
        story.rule(&by(&story.other)?),
        story.rule("skip: true"),
        story.rule(&by(&story.owner)?),
    ] {
        let said = story.apply(&rules).await?;
        ensure!(!said.output.contains("the container"), "{said:?}");
        ensure!(story.pid().await? == before, "{rules}");
    }
    Ok(())
}

async fn a_rule_that_denies_it_ends_it(story: &Story) -> Outcome {
    let said = story.apply(&story.rule("deny: true")).await?;
    let warning = format!("the container {GREETER} ends: {}", story.image());
    ensure!(said.output.contains(&warning), "{said:?}");
    ensure!(Greeter::of(&story.node)?.greets().is_err(), "it runs on");
    story.fails(&["rule 0000", "denies it"]).await?;
    let (code, said) = story.verify().await?;
    let told = "verification denied by matched rule (0000)";
    ensure!(code != Some(0) && said.contains(told), "{said}");
    Ok(())
}

async fn a_rule_that_skips_it_needs_no_signature(story: &Story) -> Outcome {
    push_greeter_edition(&story.registry, "two")?;
    story.apply(&story.rule("skip: true")).await?;
    runs(&story.node, "one").await?;
    story.restarts_as("two").await?;
    let (code, said) = story.verify().await?;
    let told = "verification skipped by matched rule (0000)";
    ensure!(code == Some(0) && said.contains(told), "{said}");
    Ok(())
}

async fn a_key_that_has_not_signed_ends_it(story: &Story) -> Outcome {
    let said = story.apply(&story.rule(&by(&story.owner)?)).await?;
    ensure!(said.output.contains("no signature was found"), "{said:?}");
    story.fails(&["no signature was found"]).await
}

async fn a_bundle_is_a_signature_too(story: &Story) -> Outcome {
    story.owner.sign_by_bundle(&story.registry, IMAGE)?;
    runs(&story.node, "two").await
}

async fn no_registry_is_needed_for_what_was_verified(story: Story) -> Outcome {
    let before = story.pid().await?;
    let Story { node, registry, .. } = story;
    drop(registry);
    Greeter::of(&node)?.exit(1);
    let again = async || {
        ensure!(node.service_pid(GREETER).await? != before);
        Ok(())
    };
    node.wait_until("it has started again", PATIENCE, again)
        .await?;
    runs(&node, "two").await?;
    let node = node.power_cycle().await?;
    runs(&node, "two").await
}
