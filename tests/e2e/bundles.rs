//! Bundles: made from a real registry with real signatures, read by another tool, and taken by a node without any registry.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use instar_api::instar::bundle_service_client::BundleServiceClient;
use instar_api::instar::{BundleBeginRequest, BundleImportRequest, BundleWriteRequest};
use instar_pki::Role;
use instar_qemu::{PortLease, VmSpec};
use instar_tests::{
    Cosign, GREETER, GREETER_PORT, Greeter, INSTALLER, ImageUnderTest, Instarctl, MachineConfig,
    Node, Outcome, Registry, Said, Scratch, Test, bundle, bundle_directory, chapters,
    greeter_image, place_for_sticks, plug_in, pull_out, push_greeter_edition, stick, tests,
};
use serde_json::Value;
use tonic::transport::Channel;

use crate::PATIENCE;

/// The installer of the next version.
const NEXT_VERSION: &str = "instar/installer:v0.2.0";
/// The label of sticks.
const LABEL: &str = "INSTAR-BUNDLE";

pub(crate) fn tests() -> Vec<Test> {
    tests![
        bundles_are_read_by_other_tools,
        images_come_without_a_registry,
    ]
}

async fn bundles_are_read_by_other_tools(scratch: Scratch) -> Outcome {
    let (registry, owner) = (Registry::start(&scratch)?, Cosign::new(&scratch, "owner")?);
    push_greeter_edition(&registry, "one")?;
    owner.sign(&registry, "greeter:v1")?;
    owner.sign_by_bundle(&registry, "greeter:v1")?;
    let file = bundle(&registry, &scratch, "site.bundle", &["greeter:v1"]).await?;
    let again = bundle(&registry, &scratch, "again.bundle", &["greeter:v1"]).await?;
    ensure!(
        std::fs::read(&file)? == std::fs::read(again)?,
        "two bundles of the same image differ"
    );
    let image = registry.image_for_guest("greeter:v1");
    drop(registry);
    skopeo_reads(&file, &image)?;
    its_signatures_are_found(&scratch, &file, &owner).await
}

fn skopeo_reads(file: &Path, image: &str) -> Outcome {
    let archive = format!("oci-archive:{}:{image}", file.display());
    let read = Command::new("skopeo").args(["inspect", &archive]).output();
    let read = read.context("run skopeo (apt-get install skopeo)")?;
    ensure!(
        read.status.success(),
        "{}",
        String::from_utf8_lossy(&read.stderr)
    );
    let said = String::from_utf8_lossy(&read.stdout);
    ensure!(said.contains("\"Architecture\": \"amd64\""), "{said}");
    Ok(())
}

async fn its_signatures_are_found(scratch: &Scratch, file: &Path, owner: &Cosign) -> Outcome {
    let other = Cosign::new(scratch, "other")?;
    verifies(scratch, file, owner, Some(0)).await?;
    verifies(scratch, file, &other, Some(1)).await?;
    let (client, file) = (Instarctl::alone(scratch)?, file.to_string_lossy());
    let shown = client.run(&["bundle", "show", &file]).await?;
    ensure!(shown.output.contains("every byte is as it was written"));
    Ok(())
}

async fn verifies(
    scratch: &Scratch,
    file: &Path,
    signer: &Cosign,
    expected: Option<i32>,
) -> Outcome {
    let key = scratch.write("key.pem", signer.public_key()?)?;
    let (key, file) = (key.to_string_lossy(), file.to_string_lossy());
    let client = Instarctl::alone(scratch)?;
    let words = ["bundle", "verify", &file, "--key", &key];
    let said = client.run(&words).await?;
    ensure!(said.code == expected, "{said:?}");
    Ok(())
}

/// Bundles that were made while there was a registry.
struct Bundles {
    /// The greeter and the next version, signed.
    site: PathBuf,
    /// The same as a directory.
    site_directory: PathBuf,
    /// Another greeter, signed.
    next: PathBuf,
    /// A greeter that nobody has signed.
    unsigned: PathBuf,
    /// The registry's host in names of images.
    host: String,
    /// The registry's port, where nobody answers any more.
    _port: PortLease,
}

/// A node, and bundles for it.
struct Story {
    node: Node,
    client: Instarctl,
    bundles: Bundles,
    /// The rule that wants the owner's signature.
    rules: String,
    /// The same for the next owner's.
    later_rules: String,
    scratch: Scratch,
}

async fn images_come_without_a_registry(scratch: Scratch) -> Outcome {
    let story = Story::begin(&scratch).await?;
    chapters![
        an_altered_bundle_is_refused(&story),
        an_unsigned_one_too(&story),
        an_upload_goes_on_where_it_was_cut_off(&story),
        a_container_starts_from_it(&story),
        pulls_and_verifications_are_answered_from_it(&story),
        the_next_version_comes_from_it(&story),
        another_node_fetches_images_from_it(&story),
        a_caller_who_hangs_up_ends_no_import(&story),
        a_stick_is_taken_when_it_is_signed(&story),
        and_refused_when_it_is_not(&story),
        the_key_of_a_later_rule_is_found_among_its_signatures(&story),
    ]
    .await
}

/// Starts a registry with images, of which the owner has signed all but `greeter:v3`, and the next owner the first one.
fn registry_with_images(
    scratch: &Scratch,
    owner: &Cosign,
    next_owner: &Cosign,
) -> Result<Registry> {
    let registry = Registry::with_both_installers_without_kernel(scratch)?;
    push_greeter_edition(&registry, "one")?;
    greeter_image("two")?.push(&registry, GREETER, "v2")?;
    greeter_image("three")?.push(&registry, GREETER, "v3")?;
    for image in ["greeter:v1", "greeter:v2", NEXT_VERSION] {
        owner.sign(&registry, image)?;
    }
    next_owner.sign(&registry, "greeter:v1")?;
    Ok(registry)
}

impl Bundles {
    /// Makes all bundles; then the registry is gone.
    async fn make(scratch: &Scratch, owner: &Cosign, next_owner: &Cosign) -> Result<Self> {
        let registry = registry_with_images(scratch, owner, next_owner)?;
        let images = ["greeter:v1", NEXT_VERSION];
        Ok(Self {
            site: bundle(&registry, scratch, "site.bundle", &images).await?,
            site_directory: bundle_directory(&registry, scratch, "site", &images).await?,
            next: bundle(&registry, scratch, "next.bundle", &["greeter:v2"]).await?,
            unsigned: bundle(&registry, scratch, "unsigned.bundle", &["greeter:v3"]).await?,
            host: registry.host_for_guest(),
            _port: registry.end(),
        })
    }
}

impl Story {
    async fn begin(scratch: &Scratch) -> Result<Self> {
        let owner = Cosign::new(scratch, "owner")?;
        let next_owner = Cosign::new(scratch, "next-owner")?;
        let bundles = Bundles::make(scratch, &owner, &next_owner).await?;
        let node = boot(scratch, &bundles.host, &owner).await?;
        Ok(Self {
            client: Instarctl::of(&node, scratch)?,
            node,
            rules: rules(&bundles.host, &owner)?,
            later_rules: rules(&bundles.host, &next_owner)?,
            bundles,
            scratch: scratch.clone(),
        })
    }

    async fn upload(&self, file: &Path) -> Result<Said> {
        let file = file.to_string_lossy();
        self.client
            .run(&["bundle", "upload", "--unchecked", &file])
            .await
    }

    /// Checks that a bundle is refused for a reason with these words, and that nothing of it is in the store.
    async fn refuses(&self, file: &Path, words: &str) -> Outcome {
        let said = self.upload(file).await?;
        ensure!(said.code != Some(0), "{said:?}");
        ensure!(said.complaint.contains(words), "{said:?}");
        let bundles = self.client.run(&["get", "bundles"]).await?;
        ensure!(bundles.output.contains("refused"), "{bundles:?}");
        Ok(())
    }

    /// Waits until the resource of a bundle has all these words.
    async fn bundle_is(&self, words: &[&str]) -> Outcome {
        let shown = async || {
            let said = self.client.run(&["get", "bundles"]).await?;
            let is_it = |line: &str| words.iter().all(|word| line.contains(word));
            ensure!(said.output.lines().any(is_it), "{said:?} lacks {words:?}");
            Ok(())
        };
        self.node
            .wait_until("the bundle is so far", PATIENCE, shown)
            .await
    }

    async fn digest(&self, file: &Path) -> Result<String> {
        let file = file.to_string_lossy();
        let said = self
            .client
            .run(&["bundle", "show", &file, "-o", "json"])
            .await?;
        let shown: Value = serde_json::from_str(&said.output)?;
        let digest = shown["summary"]["digest"].as_str();
        Ok(digest.context("no digest")?.to_owned())
    }
}

async fn boot(scratch: &Scratch, host: &str, owner: &Cosign) -> Result<Node> {
    let (host, rules) = (host.to_owned(), rules(host, owner)?);
    let with_place = |spec: VmSpec| {
        let words = place_for_sticks().into_iter();
        words.fold(spec, |spec, word| spec.extra_argument(word))
    };
    let plan = Node::plan(scratch, &ImageUnderTest::first()?).blank_disk()?;
    let plan = plan.forward(GREETER_PORT).spec(with_place);
    let plan = plan.configure(move |config| {
        let config = config.install_disk("/dev/vda").registry(&host);
        config.greeter(&host).document(&rules)
    });
    plan.boot().await
}

/// A rule that wants the owner's signature for all images of the registry.
fn rules(host: &str, owner: &Cosign) -> Result<String> {
    let key = owner.public_key()?.replace('\n', "\n        ");
    Ok(format!(
        "apiVersion: v1alpha1\nkind: ImageVerificationConfig\nrules:\n  - image: \"{host}/*\"\n    publicKey:\n      certificate: |\n        {}\n",
        key.trim_end()
    ))
}

/// One byte in the middle: in a layer of the installer.
async fn an_altered_bundle_is_refused(story: &Story) -> Outcome {
    let altered = story.scratch.join("altered.bundle");
    std::fs::copy(&story.bundles.site, &altered)?;
    let file = File::options().read(true).write(true).open(&altered)?;
    let (middle, mut byte) = (file.metadata()?.len() / 2, [0]);
    file.read_exact_at(&mut byte, middle)?;
    file.write_all_at(&[byte[0] ^ 1], middle)?;
    let var_is_there = async || story.refuses(&altered, "it is altered").await;
    story
        .node
        .wait_until("an altered bundle is refused", PATIENCE, var_is_there)
        .await
}

async fn an_unsigned_one_too(story: &Story) -> Outcome {
    story
        .refuses(&story.bundles.unsigned, "no signature was found")
        .await
}

/// A caller who uploads a bundle by hand.
struct Caller {
    client: BundleServiceClient<Channel>,
    digest: String,
    content: Vec<u8>,
}

impl Caller {
    async fn of(story: &Story, file: &Path) -> Result<Self> {
        Ok(Self {
            client: BundleServiceClient::new(story.node.channel().await?),
            digest: story.digest(file).await?,
            content: std::fs::read(file)?,
        })
    }

    /// Begins, and returns the offset.
    async fn begin(&mut self) -> Result<u64> {
        let (digest, size) = (self.digest.clone(), self.content.len() as u64);
        let begun = self
            .client
            .begin(BundleBeginRequest { digest, size })
            .await?;
        Ok(begun.into_inner().offset)
    }

    /// Writes the first bytes.
    async fn write(&mut self, count: usize) -> Outcome {
        let content = self.content.get(..count).context("a small bundle")?;
        let write = BundleWriteRequest {
            digest: self.digest.clone(),
            offset: 0,
            content: content.to_vec(),
        };
        self.client.write(write).await?;
        Ok(())
    }
}

/// It was begun with the file, and goes on with the directory, whose archive has the same bytes.
async fn an_upload_goes_on_where_it_was_cut_off(story: &Story) -> Outcome {
    let mut caller = Caller::of(story, &story.bundles.site).await?;
    ensure!(caller.begin().await? == 0);
    caller.write(1 << 20).await?;
    ensure!(caller.begin().await? == 1 << 20);
    story
        .bundle_is(&["upload", "receiving", &caller.digest])
        .await?;
    let said = story.upload(&story.bundles.site_directory).await?;
    ensure!(said.code == Some(0), "{said:?}");
    ensure!(said.output.contains("greeter:v1"), "{said:?}");
    let words = ["upload", "taken", "greeter:v1", INSTALLER];
    story.bundle_is(&words).await
}

async fn a_container_starts_from_it(story: &Story) -> Outcome {
    let greeter = Greeter::of(&story.node)?;
    let read = async || {
        let runs = greeter.get("/read/edition")?;
        ensure!(runs == "one", "it runs {runs}");
        Ok(())
    };
    story
        .node
        .wait_until("the greeter runs", PATIENCE, read)
        .await?;
    story.node.wait_until_ready(PATIENCE).await
}

/// talosctl pulls an installer before it asks for the upgrade.
async fn pulls_and_verifications_are_answered_from_it(story: &Story) -> Outcome {
    for image in ["greeter:v1", NEXT_VERSION] {
        let image = format!("{}/{image}", story.bundles.host);
        let pulled = story.client.run(&["image", "pull", &image]).await?;
        ensure!(pulled.code == Some(0), "{pulled:?}");
        let said = story.client.run(&["image", "verify", &image]).await?;
        ensure!(said.code == Some(0), "{said:?}");
        let told = [&said.output, &said.complaint].map(String::as_str).concat();
        ensure!(
            told.contains("the image in the machine's store"),
            "{said:?}"
        );
    }
    Ok(())
}

async fn the_next_version_comes_from_it(story: &Story) -> Outcome {
    let image = format!("{}/{NEXT_VERSION}", story.bundles.host);
    let words = ["upgrade", "--image", &image, "--wait"];
    let said = story.client.run(&words).await?;
    ensure!(said.code == Some(0), "{said:?}");
    ensure!(story.node.version().await?.tag == "v0.2.0");
    let images = story.client.run(&["get", "images"]).await?;
    ensure!(
        images.output.contains(INSTALLER),
        "the installer is gone: {images:?}"
    );
    Ok(())
}

/// With the same rules as the first node, and the same authority.
async fn second_node(story: &Story, scratch: &Scratch) -> Result<Node> {
    let identity = story.node.identity().with_role(Role::Admin)?;
    let config = MachineConfig::new(&identity).hostname("second");
    let config = config.install_disk("/dev/vda").document(&story.rules);
    let plan = Node::plan(scratch, &ImageUnderTest::first()?).blank_disk()?;
    let node = plan.config(config.to_yaml(), identity).boot().await?;
    node.wait_until_ready(PATIENCE).await?;
    Ok(node)
}

async fn another_node_fetches_images_from_it(story: &Story) -> Outcome {
    let scratch = story.scratch.below("second")?;
    let node = second_node(story, &scratch).await?;
    let client = Instarctl::of(&node, &scratch)?;
    let image = format!("{}/greeter:v1", story.bundles.host);
    let said = fetch(story, &client, &image).await?;
    ensure!(said.code == Some(0), "{said:?}");
    let images = client.run(&["get", "images"]).await?;
    ensure!(images.output.contains("greeter:v1"), "{images:?}");
    let absent = fetch(story, &client, "r.io/x:v1").await?;
    ensure!(
        absent.complaint.contains("is not in the store"),
        "{absent:?}"
    );
    Ok(())
}

/// Fetches an image from the story's node.
async fn fetch(story: &Story, client: &Instarctl, image: &str) -> Result<Said> {
    let from = story.client.endpoint();
    client
        .run(&["bundle", "fetch", "--from", from, image])
        .await
}

async fn a_caller_who_hangs_up_ends_no_import(story: &Story) -> Outcome {
    let mut caller = Caller::of(story, &story.bundles.next).await?;
    caller.begin().await?;
    caller.write(caller.content.len()).await?;
    let digest = caller.digest.clone();
    drop(caller.client.import(BundleImportRequest { digest }).await?);
    drop(caller);
    story.bundle_is(&["upload", "taken", "greeter:v2"]).await
}

async fn a_stick_is_taken_when_it_is_signed(story: &Story) -> Outcome {
    let file = stick(&story.scratch, "signed.img", LABEL, &story.bundles.next)?;
    plug_in(story.node.vm(), "signed", &file)?;
    story.bundle_is(&["sda", "taken", "greeter:v2"]).await?;
    let line = "The stick can be pulled out";
    story.node.wait_for_line(line, PATIENCE)?;
    pull_out(story.node.vm(), "signed")?;
    is_forgotten(story).await
}

async fn is_forgotten(story: &Story) -> Outcome {
    let gone = async || {
        let said = story.client.run(&["get", "bundles"]).await?;
        ensure!(!said.output.contains("sda"), "{said:?}");
        Ok(())
    };
    let what = "the stick is forgotten";
    story.node.wait_until(what, PATIENCE, gone).await
}

async fn and_refused_when_it_is_not(story: &Story) -> Outcome {
    let file = &story.bundles.unsigned;
    let file = stick(&story.scratch, "unsigned.img", LABEL, file)?;
    plug_in(story.node.vm(), "unsigned", &file)?;
    let words = ["refused", "no signature was found"];
    story.bundle_is(&words).await?;
    let line = "Nothing of the bundle is used";
    story.node.wait_for_line(line, PATIENCE)?;
    let images = story.client.run(&["get", "images"]).await?;
    ensure!(!images.output.contains("greeter:v3"), "{images:?}");
    Ok(())
}

/// At the import no rule wanted it, and there is no registry that could be asked now.
async fn the_key_of_a_later_rule_is_found_among_its_signatures(story: &Story) -> Outcome {
    let pid = story.node.service_pid(GREETER).await?;
    let patch = story.scratch.write("later.yaml", &story.later_rules)?;
    let patch = format!("@{}", patch.display());
    let words = ["patch", "machineconfig", "--patch", &patch];
    let said = story.client.run(&words).await?;
    ensure!(said.code == Some(0), "{said:?}");
    ensure!(!said.complaint.contains("ends"), "{said:?}");
    story.node.wait_until_ready(PATIENCE).await?;
    ensure!(
        story.node.service_pid(GREETER).await? == pid,
        "it has ended"
    );
    Ok(())
}
