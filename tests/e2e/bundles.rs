//! Bundles: made from a real registry with real signatures, read by another tool, and taken by a node without any registry.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use instar_api::instar::bundle_service_client::BundleServiceClient;
use instar_api::instar::{BundleBeginRequest, BundleImportRequest, BundleWriteRequest};
use instar_tests::{
    Cosign, GREETER, GREETER_PORT, Greeter, INSTALLER, ImageUnderTest, Instarctl, Node, Outcome,
    Registry, Said, Scratch, Test, bundle, chapters, greeter_image, place_for_sticks, plug_in,
    pull_out, push_greeter_edition, stick, tests,
};
use serde_json::Value;

use crate::PATIENCE;

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
    let (client, file) = (Instarctl::alone(scratch)?, file.to_string_lossy());
    let key = scratch.write("owner.pem", owner.public_key()?)?;
    let other = Cosign::new(scratch, "other")?.public_key()?;
    let other = scratch.write("other.pem", other)?;
    for (key, expected) in [(key, Some(0)), (other, Some(1))] {
        let key = key.to_string_lossy();
        let said = client
            .run(&["bundle", "verify", &file, "--key", &key])
            .await?;
        ensure!(said.code == expected, "{said:?}");
    }
    let shown = client.run(&["bundle", "show", &file]).await?;
    ensure!(
        shown.output.contains("every byte is as it was written"),
        "{shown:?}"
    );
    Ok(())
}

/// A node, and bundles that were made while there was a registry.
struct Story {
    node: Node,
    client: Instarctl,
    /// The registry's host in names of images.
    host: String,
    /// The greeter and the next version, signed.
    site: PathBuf,
    /// A greeter that nobody has signed.
    unsigned: PathBuf,
    /// Another greeter, signed.
    next: PathBuf,
    scratch: Scratch,
}

async fn images_come_without_a_registry(scratch: Scratch) -> Outcome {
    let story = Story::begin(&scratch).await?;
    chapters![
        an_altered_bundle_is_refused(&story),
        an_unsigned_one_too(&story),
        an_upload_goes_on_where_it_was_cut_off(&story),
        a_container_starts_from_it(&story),
        the_next_version_comes_from_it(&story),
        a_caller_who_hangs_up_ends_no_import(&story),
        a_stick_is_taken_when_it_is_signed(&story),
        and_refused_when_it_is_not(&story),
    ]
    .await
}

impl Story {
    async fn begin(scratch: &Scratch) -> Result<Self> {
        let registry = Registry::with_both_installers_without_kernel(scratch)?;
        let owner = Cosign::new(scratch, "owner")?;
        push_greeter_edition(&registry, "one")?;
        greeter_image("two")?.push(&registry, GREETER, "v2")?;
        greeter_image("three")?.push(&registry, GREETER, "v3")?;
        let installer = format!("{INSTALLER}:v0.2.0");
        for image in ["greeter:v1", "greeter:v2", &installer] {
            owner.sign(&registry, image)?;
        }
        let site = bundle(
            &registry,
            scratch,
            "site.bundle",
            &["greeter:v1", &installer],
        )
        .await?;
        let next = bundle(&registry, scratch, "next.bundle", &["greeter:v2"]).await?;
        let unsigned = bundle(&registry, scratch, "unsigned.bundle", &["greeter:v3"]).await?;
        let host = registry.host_for_guest();
        drop(registry);
        let node = boot(scratch, &host, &owner).await?;
        let client = Instarctl::of(&node, scratch)?;
        let scratch = scratch.clone();
        Ok(Self {
            node,
            client,
            host,
            site,
            unsigned,
            next,
            scratch,
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
    let key = owner.public_key()?.replace('\n', "\n        ");
    let rules = format!(
        "apiVersion: v1alpha1\nkind: ImageVerificationConfig\nrules:\n  - image: \"{host}/*\"\n    publicKey:\n      certificate: |\n        {}\n",
        key.trim_end()
    );
    let host = host.to_owned();
    let plan = Node::plan(scratch, &ImageUnderTest::first()?)
        .blank_disk()?
        .forward(GREETER_PORT)
        .spec(|spec| {
            place_for_sticks()
                .into_iter()
                .fold(spec, |spec, word| spec.extra_argument(word))
        })
        .configure(move |config| {
            let config = config.install_disk("/dev/vda").registry(&host);
            config.greeter(&host).document(&rules)
        });
    plan.boot().await
}

/// One byte in the middle: in a layer of the installer.
async fn an_altered_bundle_is_refused(story: &Story) -> Outcome {
    let altered = story.scratch.join("altered.bundle");
    std::fs::copy(&story.site, &altered)?;
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
        .refuses(&story.unsigned, "no signature was found")
        .await
}

async fn an_upload_goes_on_where_it_was_cut_off(story: &Story) -> Outcome {
    let mut client = BundleServiceClient::new(story.node.channel().await?);
    let (digest, content) = (
        story.digest(&story.site).await?,
        std::fs::read(&story.site)?,
    );
    let size = content.len() as u64;
    let begin = || BundleBeginRequest {
        digest: digest.clone(),
        size,
    };
    ensure!(client.begin(begin()).await?.into_inner().offset == 0);
    let piece = content.get(..1 << 20).context("a small bundle")?.to_vec();
    let write = BundleWriteRequest {
        digest: digest.clone(),
        offset: 0,
        content: piece,
    };
    client.write(write).await?;
    ensure!(client.begin(begin()).await?.into_inner().offset == 1 << 20);
    story.bundle_is(&["upload", "receiving", &digest]).await?;
    let said = story.upload(&story.site).await?;
    ensure!(
        said.code == Some(0) && said.output.contains(GREETER),
        "{said:?}"
    );
    story
        .bundle_is(&["upload", "taken", "greeter:v1", INSTALLER])
        .await
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

async fn the_next_version_comes_from_it(story: &Story) -> Outcome {
    let image = format!("{}/{INSTALLER}:v0.2.0", story.host);
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

async fn a_caller_who_hangs_up_ends_no_import(story: &Story) -> Outcome {
    let mut client = BundleServiceClient::new(story.node.channel().await?);
    let (digest, content) = (
        story.digest(&story.next).await?,
        std::fs::read(&story.next)?,
    );
    let size = content.len() as u64;
    let begin = BundleBeginRequest {
        digest: digest.clone(),
        size,
    };
    client.begin(begin).await?;
    let write = BundleWriteRequest {
        digest: digest.clone(),
        offset: 0,
        content,
    };
    client.write(write).await?;
    drop(
        client
            .import(BundleImportRequest {
                digest: digest.clone(),
            })
            .await?,
    );
    drop(client);
    story.bundle_is(&["upload", "taken", "greeter:v2"]).await
}

async fn a_stick_is_taken_when_it_is_signed(story: &Story) -> Outcome {
    let file = stick(&story.scratch, "signed.img", "INSTAR-BUNDLE", &story.next)?;
    plug_in(story.node.vm(), "signed", &file)?;
    story.bundle_is(&["sda", "taken", "greeter:v2"]).await?;
    story
        .node
        .wait_for_line("the stick can be pulled out", PATIENCE)?;
    pull_out(story.node.vm(), "signed")?;
    let gone = async || {
        let said = story.client.run(&["get", "bundles"]).await?;
        ensure!(!said.output.contains("sda"), "{said:?}");
        Ok(())
    };
    story
        .node
        .wait_until("the stick is forgotten", PATIENCE, gone)
        .await
}

async fn and_refused_when_it_is_not(story: &Story) -> Outcome {
    let file = stick(
        &story.scratch,
        "unsigned.img",
        "INSTAR-BUNDLE",
        &story.unsigned,
    )?;
    plug_in(story.node.vm(), "unsigned", &file)?;
    story
        .bundle_is(&["refused", "no signature was found"])
        .await?;
    story
        .node
        .wait_for_line("nothing of the bundle is used", PATIENCE)?;
    let images = story.client.run(&["get", "images"]).await?;
    ensure!(!images.output.contains("greeter:v3"), "{images:?}");
    Ok(())
}
