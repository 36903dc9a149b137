//! Images that are fetched ahead and kept: by the config, by a call, and for an upgrade that is prepared ahead; then the registry is silent.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, ensure};
use instar_tests::{
    GREETER, GREETER_PORT, Greeter, INSTALLER, ImageUnderTest, Instarctl, MachineConfig, Node,
    OciImage, Outcome, Registry, Said, Scratch, Test, chapters, greeter_image, http,
    push_greeter_edition, sha256_digest, tests,
};
use serde_json::Value;

use crate::PATIENCE;
use crate::installed::install_with;

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
/// The port of the node's own registry.
const SERVED_PORT: u16 = 5055;
/// The clock of the test's machine is right from the start, and nobody is asked for the time.
const CLOCK: &str = "apiVersion: v1alpha1\nkind: TimeSyncConfig\nenabled: false\n";

pub(crate) fn tests() -> Vec<Test> {
    tests![
        pinned_images_need_no_registry,
        an_upgrade_that_was_prepared_needs_no_registry,
        a_machine_without_a_disk_has_its_pinned_images_in_memory,
    ]
}

/// A node, its client, and its registry.
struct Story {
    node: Node,
    client: Instarctl,
    registry: Registry,
    /// Another registry, which answers to the end.
    other: Registry,
    scratch: Scratch,
}

async fn pinned_images_need_no_registry(scratch: Scratch) -> Outcome {
    let story = Story::begin(&scratch).await?;
    with_its_registry(&story).await?;
    let layer = a_layer_is_half_here(&story).await?;
    let story = story.after_a_power_cut().await?;
    chapters![
        the_pins_are_as_they_were(&story),
        the_layer_goes_on_where_the_power_was_cut(&story, &layer),
        an_upgrade_without_its_registry_releases_its_image(&story),
    ]
    .await
}

async fn with_its_registry(story: &Story) -> Outcome {
    chapters![
        a_closed_window_is_waited_for(story),
        a_lack_of_room_is_told_with_the_numbers(story),
        an_image_of_the_config_is_fetched_and_kept(story),
        a_caller_pins_an_installer(story),
        wrong_calls_pin_nothing(story),
        a_container_changes_without_its_registry(story),
        another_tool_reads_what_the_node_serves(story),
        another_tool_lists_what_the_node_serves(story),
        what_is_not_served_cannot_be_had(story),
        it_is_gone_when_it_is_stopped(story),
    ]
    .await
}

impl Story {
    async fn begin(scratch: &Scratch) -> Result<Self> {
        let registry = registry_with_images(scratch)?;
        let other = Registry::start(&scratch.below("other")?)?;
        let (host, pins) = (registry.host_for_guest(), closed(&registry)?);
        let second = other.host_for_guest();
        let node = Node::plan(scratch, &ImageUnderTest::first()?)
            .blank_disk()?
            .forward(GREETER_PORT)
            .forward(SERVED_PORT)
            .configure(move |config| {
                let config = config.install_disk("/dev/vda").registry(&host);
                let config = config.registry(&second).greeter(&host);
                config.document(CLOCK).document(&pins)
            });
        Self::of(node.boot().await?, registry, other, scratch).await
    }

    async fn of(
        node: Node,
        registry: Registry,
        other: Registry,
        scratch: &Scratch,
    ) -> Result<Self> {
        node.wait_until_ready(PATIENCE).await?;
        Ok(Self {
            client: Instarctl::of(&node, scratch)?,
            node,
            registry,
            other,
            scratch: scratch.clone(),
        })
    }

    async fn after_a_power_cut(self) -> Result<Self> {
        let node = self.node.power_cycle().await?;
        Self::of(node, self.registry, self.other, &self.scratch).await
    }

    async fn run(&self, words: &[&str]) -> Result<Said> {
        let said = self.client.run(words).await?;
        ensure!(said.code == Some(0), "{words:?}: {said:?}");
        Ok(said)
    }

    /// The resource of a pinned image.
    async fn pin(&self, image: &str) -> Result<Value> {
        let said = self.run(&["get", "pins", image, "-o", "json"]).await?;
        let shown: Value = serde_json::from_str(&said.output)?;
        Ok(shown["spec"].clone())
    }

    /// Waits until a pinned image is in this state, for a reason with these words.
    async fn becomes(&self, image: &str, state: &str, words: &str) -> Outcome {
        let what = format!("{image} is {state}");
        let shown = async || {
            let pin = self.pin(image).await?;
            let reason = pin["reason"].as_str().unwrap_or_default();
            ensure!(pin["state"] == state && reason.contains(words), "{pin:#}");
            Ok(())
        };
        self.node.wait_until(&what, PATIENCE, shown).await
    }

    fn image(&self, name: &str) -> String {
        self.registry.image_for_guest(name)
    }

    async fn runs(&self, edition: &str) -> Outcome {
        let greeter = Greeter::of(&self.node)?;
        let read = async || {
            let runs = greeter.get("/read/edition")?;
            ensure!(runs == edition, "it runs {runs}");
            Ok(())
        };
        let what = format!("the greeter is edition {edition}");
        self.node.wait_until(&what, PATIENCE, read).await
    }

    /// Applies the config with a text replaced.
    async fn apply(&self, from: &str, to: &str) -> Outcome {
        let config = self.node.config();
        ensure!(config.contains(from), "the config lacks {from}");
        let config = MachineConfig::from_yaml(&config.replace(from, to));
        let apply = self.node.apply_as(self.node.identity(), config.to_yaml());
        apply.await
    }
}

/// A registry with both installers, and two editions of the greeter.
fn registry_with_images(scratch: &Scratch) -> Result<Registry> {
    let registry = Registry::with_both_installers_without_kernel(scratch)?;
    push_greeter_edition(&registry, "one")?;
    greeter_image("two")?.push(&registry, GREETER, "v2")?;
    Ok(registry)
}

/// Both editions of the greeter, in a window that opens in two hours. The first one is here by then: it runs.
fn closed(registry: &Registry) -> Result<String> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    let later = (now + Duration::from_secs(2 * 3600)).as_secs() % 86_400;
    let (hours, minutes) = (later / 3600, later / 60 % 60);
    Ok(format!(
        "apiVersion: instar.dev/v1alpha1\nkind: ImagePinConfig\nimages: [\"{}\", \"{}\"]\nbandwidth: 4MiB/s\n{CLOSED}start: \"{hours:02}:{minutes:02}\", length: 1h}}\n",
        registry.image_for_guest("greeter:v2"),
        registry.image_for_guest("greeter:v1"),
    ))
}

const CLOSED: &str = "window: {";

async fn a_closed_window_is_waited_for(story: &Story) -> Outcome {
    let image = story.image("greeter:v2");
    let words = "its window is closed";
    story.becomes(&image, "waiting", words).await?;
    let pin = story.pin(&image).await?;
    ensure!(
        pin["until"].as_str().is_some_and(|it| it.contains('T')),
        "{pin:#}"
    );
    ensure!(pin["namedBy"][0] == "config", "{pin:#}");
    Ok(())
}

/// A manifest whose layer is said to have 300 GiB.
fn push_an_image_without_room(story: &Story) -> Outcome {
    let path = format!("/v2/{GREETER}/manifests/v1");
    let accept = [("Accept", MANIFEST)];
    let answer = http(&story.registry.address(), "GET", &path, &accept, &[])?;
    let mut manifest: Value = serde_json::from_slice(&answer.body)?;
    manifest["layers"][0]["size"] = (300_u64 << 30).into();
    let manifest = serde_json::to_vec(&manifest)?;
    story.registry.put_manifest(GREETER, "huge", &manifest)?;
    Ok(())
}

async fn a_lack_of_room_is_told_with_the_numbers(story: &Story) -> Outcome {
    push_an_image_without_room(story)?;
    let image = story.image("greeter:huge");
    story.run(&["image", "pin", &image]).await?;
    let words = "none of them is: it needs 614400 MiB at least";
    story.becomes(&image, "failed", words).await?;
    let pin = story.pin(&image).await?;
    let reason = pin["reason"].as_str().unwrap_or_default();
    ensure!(reason.contains("MiB are free, of which"), "{pin:#}");
    story.run(&["image", "unpin", &image]).await?;
    let pins = story.run(&["get", "pins"]).await?;
    ensure!(!pins.output.contains("huge"), "{pins:?}");
    Ok(())
}

/// The same document without the window.
async fn an_image_of_the_config_is_fetched_and_kept(story: &Story) -> Outcome {
    let config = story.node.config();
    let window = config.lines().find(|line| line.starts_with(CLOSED));
    let window = window.context("no window")?.to_owned();
    story.apply(&window, "").await?;
    let image = story.image("greeter:v2");
    story.becomes(&image, "pinned", "").await?;
    story.refuses(&["image", "rm", &image], "is pinned").await
}

impl Story {
    async fn refuses(&self, words: &[&str], complaint: &str) -> Outcome {
        let said = self.client.run(words).await?;
        ensure!(said.code != Some(0), "{words:?}: {said:?}");
        ensure!(said.complaint.contains(complaint), "{words:?}: {said:?}");
        Ok(())
    }
}

async fn a_caller_pins_an_installer(story: &Story) -> Outcome {
    let image = story.image(&format!("{INSTALLER}:v0.2.0"));
    let words = ["image", "pin", &image, "--bandwidth", "8MiB/s"];
    story.run(&words).await?;
    story.becomes(&image, "pinned", "").await?;
    let pin = story.pin(&image).await?;
    ensure!(pin["namedBy"][0] == "caller", "{pin:#}");
    Ok(())
}

async fn wrong_calls_pin_nothing(story: &Story) -> Outcome {
    let before = story.run(&["get", "pins"]).await?.output;
    let good = story.image("greeter:v1");
    for (words, complaint) in [
        (["pin", &good, "R.io/Web"].as_slice(), "no name of an image"),
        (&["pin", &good, "--window", "2-5"], "is not a window"),
        (&["pin", &good, "--bandwidth", "fast"], "is not a bandwidth"),
        (&["unpin", &good], "by ImagePinConfig alone"),
        (&["unpin", "r.io/other"], "is not pinned"),
    ] {
        let words = [&["image"], words].concat();
        story.refuses(&words, complaint).await?;
    }
    let after = story.run(&["get", "pins"]).await?.output;
    ensure!(before == after, "{before} became {after}");
    Ok(())
}

/// From here on the registry takes connections and says nothing.
async fn a_container_changes_without_its_registry(story: &Story) -> Outcome {
    story.registry.freeze()?;
    story.runs("one").await?;
    let run = |tag: &str| format!("image: {}\n", story.image(&format!("{GREETER}:{tag}")));
    story.apply(&run("v1"), &run("v2")).await?;
    story.runs("two").await
}

impl Story {
    async fn serve(&self, more: &[&str]) -> Result<Said> {
        let listen = format!("0.0.0.0:{SERVED_PORT}");
        let words = [&["image", "serve", "--listen", &listen], more].concat();
        self.client.run(&words).await
    }
}

/// The registry is silent; skopeo fetches every blob of the image, and compares its digest.
async fn another_tool_reads_what_the_node_serves(story: &Story) -> Outcome {
    let said = story.serve(&["--for", "10m"]).await?;
    ensure!(said.output.contains("greeter:v2"), "{said:?}");
    let served = story.node.guest_port(SERVED_PORT)?;
    let (from, to) = (
        format!("docker://{served}/greeter:v2"),
        format!("dir:{}", story.scratch.join("copied").display()),
    );
    skopeo(&["copy", "--src-tls-verify=false", &from, &to])?;
    let manifest = std::fs::read(story.scratch.join("copied/manifest.json"))?;
    let digest = story.pin(&story.image("greeter:v2")).await?["digest"].clone();
    ensure!(digest == sha256_digest(&manifest), "not {digest}");
    Ok(())
}

/// skopeo's inspection of an image asks for the list of tags too.
async fn another_tool_lists_what_the_node_serves(story: &Story) -> Outcome {
    let served = story.node.guest_port(SERVED_PORT)?;
    let image = format!("docker://{served}/greeter:v2");
    let shown = skopeo(&["inspect", "--tls-verify=false", &image])?;
    ensure!(shown["Architecture"] == "amd64", "{shown:#}");
    let repository = format!("docker://{served}/greeter");
    let listed = skopeo(&["list-tags", "--tls-verify=false", &repository])?;
    ensure!(listed["Tags"] == shown["RepoTags"], "{listed:#}");
    let tags = listed["Tags"].as_array().context("no list")?;
    ensure!(tags.iter().any(|tag| tag == "v2"), "{listed:#}");
    Ok(())
}

/// Runs skopeo; returns what it says, if that is JSON.
fn skopeo(words: &[&str]) -> Result<Value> {
    let said = Command::new("skopeo").args(words).output();
    let said = said.context("run skopeo (apt-get install skopeo)")?;
    let complaint = String::from_utf8_lossy(&said.stderr);
    ensure!(said.status.success(), "{words:?}: {complaint}");
    Ok(serde_json::from_slice(&said.stdout).unwrap_or_default())
}

async fn what_is_not_served_cannot_be_had(story: &Story) -> Outcome {
    let served = story.node.guest_port(SERVED_PORT)?;
    for path in ["/v2/greeter/manifests/huge", "/v2/_catalog", "/var/lib"] {
        let answer = http(&served, "GET", path, &[], &[])?;
        ensure!(answer.status == 404, "{path}: {}", answer.status);
    }
    let answer = http(&served, "POST", "/v2/greeter/blobs/uploads/", &[], &[])?;
    ensure!(answer.status == 405, "{}", answer.status);
    let again = story.serve(&[]).await?;
    ensure!(again.complaint.contains("already"), "{again:?}");
    Ok(())
}

async fn it_is_gone_when_it_is_stopped(story: &Story) -> Outcome {
    let shown = story.run(&["get", "registries"]).await?;
    ensure!(shown.output.contains("0.0.0.0:5055"), "{shown:?}");
    story.run(&["image", "serve", "--stop"]).await?;
    let served = story.node.guest_port(SERVED_PORT)?;
    ensure!(
        http(&served, "GET", "/v2/", &[], &[]).is_err(),
        "it answers"
    );
    let shown = story.run(&["get", "registries"]).await?;
    ensure!(!shown.output.contains("5055"), "{shown:?}");
    let short = story.serve(&["--for", "1s"]).await?;
    ensure!(short.complaint.contains("a minute to a day"), "{short:?}");
    let other = story.serve(&["--images", "r.io/other"]).await?;
    ensure!(other.complaint.contains("there is no image"), "{other:?}");
    Ok(())
}

/// The machine restarts with the previous config: the window is closed, and the greeter is the first edition again.
async fn the_pins_are_as_they_were(story: &Story) -> Outcome {
    for name in ["greeter:v2".to_owned(), format!("{INSTALLER}:v0.2.0")] {
        story.becomes(&story.image(&name), "pinned", "").await?;
    }
    story.runs("one").await
}

/// Bytes of the layer of the image that the power cut meets.
const LAYER: usize = 12 << 20;
/// Bytes that have come by then, which takes longer than the time after which the node syncs them.
const CUT_AT: u64 = 8 << 20;

/// Pins an image of one layer at a MiB a second, and returns the layer's file once two thirds are there.
async fn a_layer_is_half_here(story: &Story) -> Result<PathBuf> {
    let layer = push_a_large_layer(&story.other)?;
    let name = story.other.image_for_guest("big:v1");
    let words = ["image", "pin", &name, "--bandwidth", "1MiB/s"];
    story.run(&words).await?;
    let fetched = async || {
        let pin = story.pin(&name).await?;
        ensure!(pin["bytes"].as_u64() >= Some(CUT_AT), "{pin:#}");
        Ok(())
    };
    let what = "two thirds of the layer are here";
    story.node.wait_until(what, PATIENCE, fetched).await?;
    Ok(layer)
}

/// Pushes an image that cannot be packed; returns the file of its layer.
fn push_a_large_layer(registry: &Registry) -> Result<PathBuf> {
    let mut content = vec![0; LAYER];
    File::open("/dev/urandom")?.read_exact(&mut content)?;
    let image = OciImage::starting(&["/big"]).files(&[("big", &content)])?;
    let pushed = image.push(registry, "big", "v1")?;
    registry.blob_file(pushed.layers.first().context("no layer")?)
}

/// The registry's first bytes are others now: whoever asked for them would have another layer.
async fn the_layer_goes_on_where_the_power_was_cut(story: &Story, layer: &Path) -> Outcome {
    let file = File::options().write(true).open(layer)?;
    file.write_all_at(&[0; 4096], 1000)?;
    let name = story.other.image_for_guest("big:v1");
    story.becomes(&name, "pinned", "").await
}

async fn an_upgrade_without_its_registry_releases_its_image(story: &Story) -> Outcome {
    let image = story.image(&format!("{INSTALLER}:v0.2.0"));
    story.run(&["upgrade", "--image", &image, "--wait"]).await?;
    ensure!(story.node.version().await?.tag == "v0.2.0");
    let released = async || {
        let pins = story.run(&["get", "pins"]).await?;
        ensure!(!pins.output.contains(INSTALLER), "{pins:?}");
        ensure!(pins.output.contains("greeter:v2"), "{pins:?}");
        Ok(())
    };
    let what = "the commit releases what a caller pinned, and not what the config pins";
    story.node.wait_until(what, PATIENCE, released).await
}

async fn an_upgrade_that_was_prepared_needs_no_registry(scratch: Scratch) -> Outcome {
    let registry = Registry::start(&scratch)?;
    let node = install_with(&scratch, &registry, |config| config.document(CLOCK)).await?;
    let other = Registry::start(&scratch.below("other")?)?;
    let story = Story::of(node, registry, other, &scratch).await?;
    chapters![
        a_dry_run_tells_the_images_and_the_room(&story),
        what_cannot_be_is_refused_at_once(&story),
        an_upgrade_waits_for_its_window(&story),
        it_is_prepared_and_nothing_is_disturbed(&story),
        a_reboot_starts_it_without_a_registry(&story),
    ]
    .await
}

impl Story {
    async fn prepare(&self, more: &[&str]) -> Result<Said> {
        let image = self.registry.installer_for_guest("v0.2.0");
        let words = [&["upgrade", "--image", &image, "--prepare"], more].concat();
        self.run(&words).await
    }

    /// The last line of the history.
    async fn next_upgrade(&self) -> Result<String> {
        let said = self.run(&["get", "upgrades"]).await?;
        let mut lines = said.output.lines().filter(|line| line.contains("next"));
        Ok(lines.next().unwrap_or_default().to_owned())
    }
}

async fn a_dry_run_tells_the_images_and_the_room(story: &Story) -> Outcome {
    let said = story.prepare(&["--dry-run"]).await?;
    for words in [
        "would prepare v0.2.0",
        "there is room",
        "to fetch",
        INSTALLER,
    ] {
        ensure!(said.output.contains(words), "{said:?} lacks {words}");
    }
    ensure!(story.next_upgrade().await?.is_empty());
    Ok(())
}

async fn what_cannot_be_is_refused_at_once(story: &Story) -> Outcome {
    let nothing = story.registry.installer_for_guest("v9.9.9");
    let words = ["upgrade", "--image", &nothing, "--prepare"];
    story.refuses(&words, "could not be pulled").await?;
    let image = story.registry.installer_for_guest("v0.2.0");
    let window = ["upgrade", "--image", &image, "--window", "02:00-05:00"];
    story.refuses(&window, "are for --prepare").await?;
    ensure!(story.next_upgrade().await?.is_empty());
    Ok(())
}

/// An upgrade that is prepared after this one takes its place.
async fn an_upgrade_waits_for_its_window(story: &Story) -> Outcome {
    let window = in_two_hours()?;
    story.prepare(&["--window", &window]).await?;
    let waits = async || {
        let next = story.next_upgrade().await?;
        ensure!(next.contains("preparing"), "{next}");
        let pins = story.run(&["get", "pins"]).await?;
        ensure!(pins.output.contains("its window is closed"), "{pins:?}");
        Ok(())
    };
    let what = "the upgrade waits for its window";
    story.node.wait_until(what, PATIENCE, waits).await
}

/// A window of an hour that opens in two.
fn in_two_hours() -> Result<String> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    let at = |hours: u64| {
        let minutes = (now.as_secs() / 60 + hours * 60) % 1440;
        format!("{:02}:{:02}", minutes / 60, minutes % 60)
    };
    Ok(format!("{}-{}", at(2), at(3)))
}

async fn it_is_prepared_and_nothing_is_disturbed(story: &Story) -> Outcome {
    let before = story.node.boot_id().await?;
    story.prepare(&["--bandwidth", "16MiB/s"]).await?;
    let prepared = async || {
        let next = story.next_upgrade().await?;
        ensure!(next.contains("prepared"), "{next}");
        Ok(())
    };
    let what = "the version is prepared";
    story.node.wait_until(what, PATIENCE, prepared).await?;
    ensure!(story.node.boot_id().await? == before);
    ensure!(story.node.version().await?.tag == "v0.1.0");
    Ok(())
}

async fn a_reboot_starts_it_without_a_registry(story: &Story) -> Outcome {
    story.registry.freeze()?;
    story.run(&["reboot"]).await?;
    ensure!(story.node.version().await?.tag == "v0.2.0");
    let released = async || {
        let pins = story.run(&["get", "pins"]).await?;
        ensure!(!pins.output.contains(INSTALLER), "{pins:?}");
        ensure!(story.next_upgrade().await?.is_empty());
        Ok(())
    };
    let what = "the commit releases its images";
    story.node.wait_until(what, PATIENCE, released).await
}

async fn a_machine_without_a_disk_has_its_pinned_images_in_memory(scratch: Scratch) -> Outcome {
    let story = Story::without_disk(&scratch).await?;
    chapters![
        a_pinned_image_is_in_memory(&story),
        it_is_prepared_and_nothing_is_disturbed(&story),
        a_container_changes_without_its_registry(&story),
        without_blobs_nothing_can_be_served(&story),
    ]
    .await
}

impl Story {
    async fn without_disk(scratch: &Scratch) -> Result<Self> {
        let registry = registry_with_images(scratch)?;
        let host = registry.host_for_guest();
        let node = Node::plan(scratch, &ImageUnderTest::first()?)
            .forward(GREETER_PORT)
            .configure(move |config| config.registry(&host).greeter(&host).document(CLOCK));
        let other = Registry::start(&scratch.below("other")?)?;
        Self::of(node.boot().await?, registry, other, scratch).await
    }
}

async fn a_pinned_image_is_in_memory(story: &Story) -> Outcome {
    let image = story.image("greeter:v2");
    story.run(&["image", "pin", &image]).await?;
    story.becomes(&image, "pinned", "").await?;
    story.refuses(&["image", "rm", &image], "is pinned").await
}

async fn without_blobs_nothing_can_be_served(story: &Story) -> Outcome {
    let said = story.serve(&[]).await?;
    ensure!(
        said.complaint.contains("keeps its images in memory"),
        "{said:?}"
    );
    Ok(())
}
