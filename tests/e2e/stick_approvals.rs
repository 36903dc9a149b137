//! Who approves a stick: a digest in the config, a signature; and a version from a stick that fails.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use instar_qemu::VmSpec;
use instar_tests::{
    Cosign, GREETER, INSTALLER, ImageUnderTest, Instarctl, MachineConfig, Node, OciImage, Outcome,
    Registry, Scratch, Test, bundle, bundle_directory, chapters, fat_stick_with, greeter_image,
    place_for_sticks, plug_in, pull_out, stick, tests,
};

use crate::PATIENCE;
use crate::console::{screen, with_screen};

/// The version on the signed stick, which gives itself up.
const BAD: &str = "v0.3.4";
/// Why it does.
const REASON: &str = "the moon is full";
/// The document of the config with the rights of a stick.
const ALLOWED: &str = "apiVersion: instar.dev/v1alpha1\nkind: BundleConfig\nupgrade: true\n";

pub(crate) fn tests() -> Vec<Test> {
    tests![a_stick_is_approved_in_two_ways_and_its_bad_version_is_gone_back_from]
}

/// The sticks, made while there was a registry.
struct Sticks {
    /// A greeter, whose bundle has a digest that the config is to name.
    named: PathBuf,
    named_digest: String,
    /// The same bundle as a directory of a stick without the label.
    folder: PathBuf,
    /// The bad version, signed.
    signed: PathBuf,
}

/// A machine with a screen.
struct Story {
    node: Node,
    client: Instarctl,
    sticks: Sticks,
}

async fn a_stick_is_approved_in_two_ways_and_its_bad_version_is_gone_back_from(
    scratch: Scratch,
) -> Outcome {
    let story = Story::begin(&scratch).await?;
    chapters![
        a_digest_in_the_config_approves(&story),
        a_signed_version_begins_and_gives_itself_up(&story),
        the_stick_is_not_tried_again_and_the_screen_says_so(&story),
        a_medium_without_the_label_is_taken_by_its_directory(&story),
    ]
    .await
}

impl Story {
    async fn begin(scratch: &Scratch) -> Result<Self> {
        let (registry, owner) = (Registry::start(scratch)?, Cosign::new(scratch, "owner")?);
        let sticks = Sticks::make(scratch, &registry, &owner).await?;
        let rules = rules(&registry.host_for_guest(), &owner)?;
        drop(registry);
        let node = boot(scratch, rules).await?;
        Ok(Self {
            client: Instarctl::of(&node, scratch)?,
            node,
            sticks,
        })
    }

    /// Waits until the resource of a bundle has all these words.
    async fn bundle_is(&self, words: &[&str]) -> Outcome {
        let shown = async || {
            let said = self.client.run(&["get", "bundles", "-o", "yaml"]).await?;
            let said = said.output;
            ensure!(words.iter().all(|word| said.contains(word)), "{said}");
            Ok(())
        };
        let what = format!("the bundle is {words:?}");
        self.node.wait_until(&what, PATIENCE, shown).await
    }
}

async fn boot(scratch: &Scratch, rules: String) -> Result<Node> {
    let plan = Node::plan(scratch, &ImageUnderTest::first()?).blank_disk()?;
    let plan = with_screen(with_places(plan), "console=ttyS0");
    let plan = plan.configure(move |config| {
        let config = config.install_disk("/dev/vda");
        config.document(ALLOWED).document(&rules)
    });
    let node = plan.boot().await?;
    node.wait_until_ready(PATIENCE).await?;
    Ok(node)
}

fn with_places(plan: instar_tests::NodePlan) -> instar_tests::NodePlan {
    plan.spec(|spec| {
        let words = place_for_sticks().into_iter();
        words.fold(spec, VmSpec::extra_argument)
    })
}

/// A rule that wants the owner's signature for installers alone.
fn rules(host: &str, owner: &Cosign) -> Result<String> {
    let key = owner.public_key()?.replace('\n', "\n        ");
    Ok(format!(
        "apiVersion: v1alpha1\nkind: ImageVerificationConfig\nrules:\n  - image: \"{host}/{INSTALLER}\"\n    publicKey:\n      certificate: |\n        {}\n",
        key.trim_end()
    ))
}

impl Sticks {
    async fn make(scratch: &Scratch, registry: &Registry, owner: &Cosign) -> Result<Self> {
        greeter_image("two")?.push(registry, GREETER, "v2")?;
        let named = bundle(registry, scratch, "named.bundle", &["greeter:v2"]).await?;
        let images = ["greeter:v2"];
        let folder = bundle_directory(registry, scratch, "instar-bundle", &images).await?;
        Ok(Self {
            named_digest: digest(scratch, &named).await?,
            named: stick(scratch, "named.img", "INSTAR-BUNDLE", &named)?,
            folder: fat_stick_with(scratch, "folder.img", "HOLIDAY", &folder)?,
            signed: stick_with_bad_version(scratch, registry, owner).await?,
        })
    }
}

async fn digest(scratch: &Scratch, file: &Path) -> Result<String> {
    let file = file.to_string_lossy();
    let client = Instarctl::alone(scratch)?;
    let said = client.run(&["bundle", "show", &file, "-o", "json"]).await?;
    let shown: serde_json::Value = serde_json::from_str(&said.output)?;
    let digest = shown["summary"]["digest"].as_str();
    Ok(digest.context("no digest")?.to_owned())
}

async fn stick_with_bad_version(
    scratch: &Scratch,
    registry: &Registry,
    owner: &Cosign,
) -> Result<PathBuf> {
    let installer = OciImage::read(&ImageUnderTest::second()?.installer())?.first_layer_alone();
    let installer = installer.giving_up(scratch, BAD, REASON)?;
    installer.push(registry, INSTALLER, BAD)?;
    let name = format!("{INSTALLER}:{BAD}");
    owner.sign(registry, &name)?;
    let file = bundle(registry, scratch, "signed.bundle", &[&name]).await?;
    stick(scratch, "signed.img", "INSTAR-BUNDLE", &file)
}

async fn a_digest_in_the_config_approves(story: &Story) -> Outcome {
    let approved = format!("{ALLOWED}approved: [\"{}\"]\n", story.sticks.named_digest);
    let config = story.node.config().replace(ALLOWED, &approved);
    let config = MachineConfig::from_yaml(&config).to_yaml();
    story.node.apply_as(story.node.identity(), config).await?;
    plug_in(story.node.vm(), "named", &story.sticks.named)?;
    let words = ["taken", "approved by this machine's config", "greeter:v2"];
    story.bundle_is(&words).await?;
    pull_out(story.node.vm(), "named")?;
    Ok(())
}

async fn a_signed_version_begins_and_gives_itself_up(story: &Story) -> Outcome {
    plug_in(story.node.vm(), "signed", &story.sticks.signed)?;
    let vm = story.node.vm();
    for line in [
        "signed by the key of the rule for",
        "The upgrade to v0.3.4 has begun",
        REASON,
    ] {
        vm.wait_for_line(line, PATIENCE)?;
    }
    story.node.wait_until_ready(PATIENCE).await?;
    ensure!(story.node.version().await?.tag == "v0.1.0");
    Ok(())
}

/// It is still plugged in.
async fn the_stick_is_not_tried_again_and_the_screen_says_so(story: &Story) -> Outcome {
    let told = format!("No upgrade to {BAD}: it was tried here before, and failed: ");
    let shown = async || {
        let screen = screen(&story.node)?;
        let words: Vec<&str> = screen.split_whitespace().collect();
        let words = words.join(" ");
        ensure!(words.contains(&told) && words.contains(REASON), "{screen}");
        ensure!(words.contains("The stick can be pulled out."), "{screen}");
        Ok(())
    };
    let what = "the screen says that the version was tried";
    story.node.wait_until(what, PATIENCE, shown).await?;
    println!("{}", screen(&story.node)?);
    ensure!(story.node.version().await?.tag == "v0.1.0");
    Ok(())
}

/// The config approves its digest as before.
async fn a_medium_without_the_label_is_taken_by_its_directory(story: &Story) -> Outcome {
    pull_out(story.node.vm(), "signed")?;
    plug_in(story.node.vm(), "folder", &story.sticks.folder)?;
    let line = "A stick with the directory instar-bundle is plugged in";
    story.node.wait_for_line(line, PATIENCE)?;
    let words = ["taken", "approved by this machine's config", "directory"];
    story.bundle_is(&words).await
}
