//! A machine that reaches no server of its channel and no registry: the list, approvals and the image come in bundles.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use instar_qemu::VmSpec;
use instar_tests::{
    Channels, ImageUnderTest, Instarctl, MachineConfig, Node, Outcome, Registry, Said, Scratch,
    Test, bundle_with, chapters, place_for_sticks, plug_in, stick, tests, yaml_block,
};
use serde_json::Value;

use crate::PATIENCE;
use crate::channel::{CLOCK, shut};

const NEXT_VERSION: &str = "instar/installer:v0.2.0";
const LABEL: &str = "INSTAR-BUNDLE";

pub(crate) fn tests() -> Vec<Test> {
    tests![a_channel_comes_in_bundles]
}

/// A machine, and the bundles that are made for it. The registry that they were made from is gone.
struct Story {
    node: Node,
    client: Instarctl,
    site: Site,
    /// The document by which the machine follows at its boot.
    follows: String,
    scratch: Scratch,
}

/// The channel of the machine's owner, and bundles of the same installer with other files of the channel.
struct Site {
    channels: Channels,
    /// The public key that approves releases.
    approver: String,
    /// With a list that another key has signed.
    foreign: PathBuf,
    /// With a list of which nobody has approved the release.
    open: PathBuf,
    /// With a newer list, and the approval of the release.
    approved: PathBuf,
}

async fn a_channel_comes_in_bundles(scratch: Scratch) -> Outcome {
    let story = Story::begin(&scratch).await?;
    chapters![
        it_waits_for_a_list(&story),
        a_list_by_another_key_is_not_used(&story),
        a_list_is_taken_and_its_release_waits_for_an_approval(&story),
        an_approval_comes_on_a_stick(&story),
        an_old_list_is_not_used(&story),
    ]
    .await?;
    let story = story.cut_off_from_power().await?;
    chapters![
        the_list_is_still_known(&story),
        it_switches_in_its_window(&story),
    ]
    .await
}

/// A machine with a disk and a place for sticks that follows by this document.
async fn boot(scratch: &Scratch, registry: String, follows: String) -> Result<Node> {
    Node::plan(scratch, &ImageUnderTest::first()?)
        .blank_disk()?
        .spec(|spec| {
            place_for_sticks()
                .into_iter()
                .fold(spec, VmSpec::extra_argument)
        })
        .configure(move |config| {
            let config = config.install_disk("/dev/vda").registry(&registry);
            config.document(CLOCK).document(&follows)
        })
        .boot_until_ready(PATIENCE)
        .await
}

impl Story {
    async fn begin(scratch: &Scratch) -> Result<Self> {
        let registry = Registry::with_both_installers_without_kernel(scratch)?;
        let site = Site::make(scratch, &registry).await?;
        let host = registry.host_for_guest();
        drop(registry);
        let follows = site.document(&shut()?)?;
        let node = boot(scratch, host, follows.clone()).await?;
        Ok(Self {
            client: Instarctl::of(&node, scratch)?,
            node,
            site,
            follows,
            scratch: scratch.clone(),
        })
    }

    async fn cut_off_from_power(self) -> Result<Self> {
        let node = self.node.power_cycle().await?;
        node.wait_until_ready(PATIENCE).await?;
        Ok(Self {
            client: Instarctl::of(&node, &self.scratch)?,
            node,
            ..self
        })
    }

    async fn run(&self, words: &[&str]) -> Result<Said> {
        let said = self.client.run(words).await?;
        ensure!(said.code == Some(0), "{words:?}: {said:?}");
        Ok(said)
    }

    /// Uploads a bundle; returns what is said of its list.
    async fn upload(&self, bundle: &Path) -> Result<String> {
        let file = bundle.display().to_string();
        let said = self.run(&["bundle", "upload", &file, "-o", "json"]).await?;
        let said: Value = serde_json::from_str(&said.output)?;
        ensure!(said["images"].as_array().is_some_and(|it| it.len() == 1));
        Ok(said["channels"][0].as_str().unwrap_or_default().to_owned())
    }

    /// Waits until a field of the status has these words.
    async fn says(&self, field: &str, words: &str) -> Outcome {
        let what = format!("{field} says {words:?}");
        let shown = async || {
            let said = self.run(&["follow", "status", "-o", "json"]).await?;
            let status: Value = serde_json::from_str(&said.output)?;
            let said = status[field].as_str().unwrap_or_default();
            ensure!(said.contains(words), "{status:#}");
            Ok(())
        };
        self.node.wait_until(&what, PATIENCE, shown).await
    }
}

impl Site {
    async fn make(scratch: &Scratch, registry: &Registry) -> Result<Self> {
        let channels = Channels::serve(scratch, registry)?;
        channels.publish(&["create", "stable"])?;
        let image = registry.image_for_guest(NEXT_VERSION);
        channels.add("stable", &image, &[])?;
        let open = bundled(scratch, registry, &channels, "open").await?;
        let approver = approve(scratch, &channels)?;
        let approved = bundled(scratch, registry, &channels, "approved").await?;
        sign_by_another_key(scratch, &channels)?;
        Ok(Self {
            foreign: bundled(scratch, registry, &channels, "foreign").await?,
            channels,
            approver,
            open,
            approved,
        })
    }

    /// The document of a machine that names no server.
    fn document(&self, switch: &str) -> Result<String> {
        let key = yaml_block("approvalKey", &self.approver);
        let policy = format!("approval: key\n{key}healthyFor: 2s\n{switch}");
        self.channels.document_without_urls("stable", &policy)
    }
}

/// Makes a bundle with the channel as it is now.
async fn bundled(
    scratch: &Scratch,
    registry: &Registry,
    channels: &Channels,
    name: &str,
) -> Result<PathBuf> {
    let folder = channels.channel_folder("stable").display().to_string();
    let (file, more) = (format!("{name}.bundle"), ["--channel", &folder]);
    bundle_with(registry, scratch, &file, &[NEXT_VERSION], &more).await
}

/// Publishes a newer list, and approves its release; returns the public key.
fn approve(scratch: &Scratch, channels: &Channels) -> Result<String> {
    channels.publish(&["renew", "stable"])?;
    let key = scratch.join("approver.key");
    channels.make_key(&key)?;
    channels.publish_by(&key, &["approve", "stable", "v0.2.0"])?;
    Ok(std::fs::read_to_string(key.with_extension("key.pub"))?)
}

fn sign_by_another_key(scratch: &Scratch, channels: &Channels) -> Outcome {
    let other = scratch.join("other.key");
    channels.make_key(&other)?;
    channels.publish_by(&other, &["renew", "stable"])
}

async fn it_waits_for_a_list(story: &Story) -> Outcome {
    story.says("look_error", "nobody has brought a list").await
}

async fn a_list_by_another_key_is_not_used(story: &Story) -> Outcome {
    let said = story.upload(&story.site.foreign).await?;
    ensure!(
        said.contains("is not used: the list is not signed by the key"),
        "{said}"
    );
    story.says("look_error", "nobody has brought a list").await
}

async fn a_list_is_taken_and_its_release_waits_for_an_approval(story: &Story) -> Outcome {
    let said = story.upload(&story.site.open).await?;
    ensure!(
        said == "This machine goes by list 2 of the channel stable now.",
        "{said}"
    );
    story.says("state", "approval").await?;
    story.says("release", "v0.2.0").await
}

/// The digest of the bundle is not approved: its image is here already, and the bundle is refused, so its list is not used either. Then
/// the config approves it.
async fn an_approval_comes_on_a_stick(story: &Story) -> Outcome {
    let stick = stick(&story.scratch, "stick.ext4", LABEL, &story.site.approved)?;
    plug_in(story.node.vm(), "stick", &stick)?;
    story
        .shows_of_stick("Nothing of the bundle is used")
        .await?;
    story.says("state", "approval").await?;
    let document = format!(
        "apiVersion: instar.dev/v1alpha1\nkind: BundleConfig\napproved: [\"{}\"]\n",
        story.digest_of(&story.site.approved).await?
    );
    let config = MachineConfig::from_yaml(story.node.config()).document(&document);
    story.apply(config).await?;
    let taken = "This machine goes by list 3 of the channel stable now.";
    story.shows_of_stick(taken).await?;
    story.says("state", "window").await
}

async fn an_old_list_is_not_used(story: &Story) -> Outcome {
    let said = story.upload(&story.site.open).await?;
    ensure!(
        said.contains("this is an old list, with the serial 2"),
        "{said}"
    );
    story.says("state", "window").await
}

async fn the_list_is_still_known(story: &Story) -> Outcome {
    story.says("state", "window").await?;
    story.says("release", "v0.2.0").await
}

async fn it_switches_in_its_window(story: &Story) -> Outcome {
    let open = story.site.document("")?;
    let (config, follows) = (story.node.config(), story.follows.trim_end());
    ensure!(config.contains(follows), "the config lacks the document");
    let config = MachineConfig::from_yaml(&config.replace(follows, open.trim_end()));
    story.apply(config).await?;
    let runs = async || {
        let runs = story.node.version().await?.tag;
        ensure!(runs == "v0.2.0", "{runs} runs");
        Ok(())
    };
    story
        .node
        .wait_until("v0.2.0 runs", PATIENCE * 2, runs)
        .await?;
    story.says("state", "current").await
}

impl Story {
    async fn apply(&self, config: MachineConfig) -> Outcome {
        let identity = self.node.identity();
        self.node.apply_as(identity, config.to_yaml()).await
    }

    async fn digest_of(&self, bundle: &Path) -> Result<String> {
        let file = bundle.display().to_string();
        let said = self.run(&["bundle", "show", &file, "-o", "json"]).await?;
        let shown: Value = serde_json::from_str(&said.output)?;
        ensure!(
            shown["channels"][0] == "3 of the channel stable",
            "{shown:#}"
        );
        Ok(shown["summary"]["digest"]
            .as_str()
            .unwrap_or_default()
            .to_owned())
    }

    /// Waits until these words are said of the stick.
    async fn shows_of_stick(&self, words: &str) -> Outcome {
        let shown = async || {
            let said = self.run(&["get", "bundles", "-o", "yaml"]).await?.output;
            ensure!(said.contains(words), "{said}");
            Ok(())
        };
        self.node.wait_until(words, PATIENCE, shown).await
    }
}
