//! Images that are wrong, damaged or hostile: refused with a reason by the call itself, and nothing has changed.

use std::io::Write as _;

use anyhow::{Context, ensure};
use instar_tests::{
    GREETER, GREETER_PORT, Greeter, HOST_FOR_GUEST, HttpServer, ImageUnderTest, MachineConfig,
    Node, NodePlan, OciImage, Outcome, Registry, Reply, Scratch, ScriptedRegistry, Test,
    push_greeter, sha256_digest, tests,
};
use tonic::Code;

const REPOSITORY: &str = "instar/installer";

pub(crate) fn tests() -> Vec<Test> {
    tests![a_refused_image_changes_nothing]
}

/// An image that must be refused.
struct Case {
    /// Its tag, or tag and digest.
    name: String,
    /// The status.
    code: Code,
    /// What the message must hold.
    reason: &'static str,
}

fn case(name: &str, code: Code, reason: &'static str) -> Case {
    Case {
        name: name.to_owned(),
        code,
        reason,
    }
}

async fn a_refused_image_changes_nothing(scratch: Scratch) -> Outcome {
    let peers = Peers::start(&scratch)?;
    let gone = Registry::start(&scratch.below("gone")?)?;
    let mut cases = wrong(&peers.registry)?;
    cases.extend(damaged(&peers.registry)?);
    cases.extend(hostile(&peers.registry)?);
    let lies = lies(&peers.liar);
    let node = peers.plan(&scratch, gone.host_for_guest())?.boot().await?;
    let greeter = Greeter::of(&node)?;
    node.wait_until_ready(crate::PATIENCE).await?;
    greeter.greets()?;
    let before = (node.service_pid(GREETER).await?, node.boot_id().await?);

    let mut wrongly = images_of_a_registry_are_refused(&node, &peers, &cases).await?;
    wrongly.extend(images_of_a_liar_are_refused(&node, &peers, &lies).await?);
    wrongly.extend(a_registry_that_is_gone_has_no_image(&node, gone).await?);
    wrongly.extend(what_is_no_manifest_is_refused(&node, &peers).await?);
    wrongly.extend(a_name_that_is_none_is_refused(&node).await?);
    ensure!(wrongly.is_empty(), "{wrongly:#?}");

    let after = (node.service_pid(GREETER).await?, node.boot_id().await?);
    ensure!(before == after, "{before:?} became {after:?}");
    greeter.greets()?;
    ensure!(node.version().await?.tag == "v0.1.0");
    nothing_is_left_of_refused_images(&greeter)?;
    a_good_image_is_taken_after_all_the_bad_ones(&node, &peers.registry).await
}

/// Whom the node asks for images.
struct Peers {
    registry: Registry,
    babbler: HttpServer,
    liar: ScriptedRegistry,
}

impl Peers {
    fn start(scratch: &Scratch) -> anyhow::Result<Self> {
        let registry = Registry::start(scratch)?;
        let babbler = HttpServer::start()?;
        let manifest = format!("/v2/{REPOSITORY}/manifests/v0.2.0");
        babbler.serve(&manifest, "{\"schemaVersion\": 2, \"layers\": \"many\"}");
        push_greeter(&registry)?;
        Ok(Self {
            registry,
            babbler,
            liar: ScriptedRegistry::start()?,
        })
    }

    fn babbling(&self) -> String {
        format!("{HOST_FOR_GUEST}:{}", self.babbler.port())
    }

    /// A node that knows all of them, and one more.
    fn plan(&self, scratch: &Scratch, gone: String) -> anyhow::Result<NodePlan> {
        let host = self.registry.host_for_guest();
        let liar = self.liar.host_for_guest();
        let mirrors = [host.clone(), gone, self.babbling(), liar];
        Ok(Node::plan(scratch, &ImageUnderTest::first()?)
            .blank_disk()?
            .forward(GREETER_PORT)
            .configure(move |config| {
                let config = config.install_disk("/dev/vda");
                let mirrored = |config: MachineConfig, mirror: &String| config.registry(mirror);
                mirrors.iter().fold(config, mirrored).greeter(&host)
            }))
    }
}

async fn images_of_a_registry_are_refused(
    node: &Node,
    peers: &Peers,
    cases: &[Case],
) -> anyhow::Result<Vec<String>> {
    let mut wrongly = Vec::new();
    for case in cases {
        let image = format!("{REPOSITORY}:{}", case.name);
        let image = peers.registry.image_for_guest(&image);
        wrongly.extend(complaint(case, node.upgrade(&image).await?));
    }
    Ok(wrongly)
}

async fn images_of_a_liar_are_refused(
    node: &Node,
    peers: &Peers,
    cases: &[Case],
) -> anyhow::Result<Vec<String>> {
    let mut wrongly = Vec::new();
    for case in cases {
        let image = format!("{}/{}", peers.liar.host_for_guest(), case.name);
        wrongly.extend(complaint(case, node.upgrade(&image).await?));
    }
    Ok(wrongly)
}

async fn a_registry_that_is_gone_has_no_image(
    node: &Node,
    gone: Registry,
) -> anyhow::Result<Option<String>> {
    let image = gone.image_for_guest(&format!("{REPOSITORY}:v0.2.0"));
    drop(gone);
    let down = case(
        "registry down",
        Code::FailedPrecondition,
        "cannot be resolved",
    );
    Ok(complaint(&down, node.upgrade(&image).await?))
}

async fn what_is_no_manifest_is_refused(
    node: &Node,
    peers: &Peers,
) -> anyhow::Result<Option<String>> {
    let garbage = case("garbage", Code::FailedPrecondition, "manifest");
    let image = format!("{}/{REPOSITORY}:v0.2.0", peers.babbling());
    Ok(complaint(&garbage, node.upgrade(&image).await?))
}

async fn a_name_that_is_none_is_refused(node: &Node) -> anyhow::Result<Option<String>> {
    let nonsense = case("no reference", Code::InvalidArgument, "the image's name");
    Ok(complaint(&nonsense, node.upgrade("UPPER CASE").await?))
}

/// What was begun to be unpacked has gone, and nothing has got out.
fn nothing_is_left_of_refused_images(greeter: &Greeter) -> Outcome {
    let images = greeter.get("/list/data/lib/instar/images")?;
    ensure!(
        images.lines().count() == 1,
        "not the greeter's image alone: {images}"
    );
    for escaped in [
        "/data/escaped",
        "/data/lib/escaped",
        "/data/lib/instar/escaped",
    ] {
        ensure!(
            greeter.get(&format!("/read{escaped}")).is_err(),
            "{escaped}"
        );
    }
    Ok(())
}

/// The node is not stuck.
async fn a_good_image_is_taken_after_all_the_bad_ones(node: &Node, registry: &Registry) -> Outcome {
    let good = ImageUnderTest::second()?;
    registry.push_layout(&good.installer(), REPOSITORY, "v0.2.0")?;
    let image = registry.image_for_guest(&format!("{REPOSITORY}:v0.2.0"));
    node.upgrade(&image).await??;
    node.wait_until("v0.2.0 answers", crate::PATIENCE, async || {
        let version = node.version().await?;
        ensure!(version.tag == "v0.2.0", "{version:?}");
        Ok(())
    })
    .await
}

fn complaint(case: &Case, answer: Result<String, tonic::Status>) -> Option<String> {
    match answer {
        Ok(actor) => Some(format!("{} was taken: {actor}", case.name)),
        Err(status) if status.code() == case.code && status.message().contains(case.reason) => {
            println!("{}: {}", case.name, status.message());
            None
        }
        Err(status) => Some(format!("{}: {status}; expected {}", case.name, case.reason)),
    }
}

fn installer() -> anyhow::Result<OciImage> {
    OciImage::read(&ImageUnderTest::second()?.installer())
}

/// Whole images that are not for this machine.
fn wrong(registry: &Registry) -> anyhow::Result<Vec<Case>> {
    let label = |tag: &str, name: &str, value: &str| -> anyhow::Result<()> {
        installer()?
            .label(name, value)
            .push(registry, REPOSITORY, tag)
            .map(drop)
    };
    label("other-architecture", "dev.instar.architecture", "arm64")?;
    label("newer-protocol", "dev.instar.protocol", "2")?;
    label("no-version", "dev.instar.version", "latest")?;
    label("enormous", "dev.instar.rootfs.bytes", "9999999999")?;
    installer()?
        .without_label("dev.instar.rootfs.blake3")
        .push(registry, REPOSITORY, "no-digest")?;
    OciImage::starting(&["/bin/true"])
        .files(&[("bin/true", b"")])?
        .push(registry, REPOSITORY, "something-else")?;
    let refused = Code::FailedPrecondition;
    Ok(vec![
        case("other-architecture", refused, "the image is for arm64"),
        case("newer-protocol", refused, "version 2 of init's protocol"),
        case("no-version", refused, "which is not a version"),
        case("enormous", refused, "MiB"),
        case(
            "no-digest",
            refused,
            "no label \"dev.instar.rootfs.blake3\"",
        ),
        case("something-else", refused, "it is no Instar installer image"),
        case("never-pushed", refused, "MANIFEST_UNKNOWN"),
    ])
}

/// Images that a disk or a network has damaged.
fn damaged(registry: &Registry) -> anyhow::Result<Vec<Case>> {
    // Blobs of their own, so that no other image is damaged with them.
    let own = |name: &str| installer()?.files(&[("own", name.as_bytes())]);
    let altered = own("altered")?.push(registry, REPOSITORY, "altered")?;
    alter(registry, &altered.layers, |content| {
        if let Some(byte) = content.get_mut(600) {
            *byte ^= 1;
        }
    })?;
    let truncated = own("truncated")?.push(registry, REPOSITORY, "truncated")?;
    alter(registry, &truncated.layers, |content| {
        content.truncate(content.len() / 2);
    })?;
    let good = installer()?.push(registry, REPOSITORY, "good")?;
    let elsewhere = format!(
        "good@{}",
        good.digest.replace(':', ":0").get(..71).context("short")?
    );
    let refused = Code::FailedPrecondition;
    Ok(vec![
        case("altered", refused, "has the digest"),
        case("truncated", refused, "the blob"),
        case(&elsewhere, refused, "MANIFEST_UNKNOWN"),
    ])
}

/// Changes the last layer's blob in the registry's storage.
fn alter(
    registry: &Registry,
    layers: &[String],
    change: impl FnOnce(&mut Vec<u8>),
) -> anyhow::Result<()> {
    let file = registry.blob_file(layers.last().context("no layers")?)?;
    let mut content = std::fs::read(&file)?;
    change(&mut content);
    Ok(std::fs::write(&file, content)?)
}

/// Documents that contradict themselves or each other, so that another client may see another image.
fn lies(registry: &ScriptedRegistry) -> Vec<Case> {
    registry.image("config-size", |manifest| {
        manifest["config"]["size"] = 5000.into();
    });
    registry.image("chart", |manifest| {
        manifest["config"]["mediaType"] = "application/vnd.cncf.helm.config.v1+json".into();
    });
    registry.image("content-type", |manifest| {
        manifest["mediaType"] = "application/vnd.docker.distribution.manifest.v2+json".into();
    });
    let kind = "application/vnd.oci.image.manifest.v1+json";
    let part = br#"{"schemaVersion":2,"config":{},"layers":[]}"#;
    let digest = sha256_digest(part);
    registry.reply(
        &format!("index/manifests/{digest}"),
        Reply::Content(kind, part.to_vec()),
    );
    let index = format!(
        r#"{{"schemaVersion":2,"manifests":[{{"mediaType":"{kind}","digest":"{digest}","size":4}}]}}"#
    );
    let kind = "application/vnd.oci.image.index.v1+json";
    registry.reply("index/manifests/v1", Reply::Content(kind, index.into()));
    let refused = Code::FailedPrecondition;
    vec![
        case("config-size:v1", refused, "where 5000 are announced"),
        case("index:v1", refused, "where 4 are announced"),
        case("chart:v1", refused, "which is no image's"),
        case("content-type:v1", refused, "refused as ambiguous"),
    ]
}

/// Images that are made to do harm while they are unpacked.
fn hostile(registry: &Registry) -> anyhow::Result<Vec<Case>> {
    let push = |tag: &str, archive: Vec<u8>| {
        installer()?
            .archive(archive)
            .push(registry, REPOSITORY, tag)
    };
    push(
        "climbs-out",
        archive(&[("../../../escaped", Entry::File(b"out"))])?,
    )?;
    push(
        "around",
        archive(&[
            ("out", Entry::Link("out")),
            ("out/escaped", Entry::File(b"out")),
        ])?,
    )?;
    // A thousandth of it to download.
    installer()?
        .gzipped(&vec![0; 128 << 20])?
        .push(registry, REPOSITORY, "bomb")?;
    let refused = Code::FailedPrecondition;
    Ok(vec![
        case("climbs-out", refused, "is refused"),
        case("around", refused, "cannot be unpacked"),
        case("bomb", refused, "unpacks to more than"),
    ])
}

/// What is under a name in an archive.
enum Entry<'a> {
    File(&'a [u8]),
    Link(&'a str),
}

/// An archive of any names, also those that the library for archives would not write.
fn archive(entries: &[(&str, Entry<'_>)]) -> anyhow::Result<Vec<u8>> {
    let mut archive = Vec::new();
    for (name, entry) in entries {
        let (kind, content, target) = match entry {
            Entry::File(content) => (b"0", *content, ""),
            Entry::Link(target) => (b"2", &[][..], *target),
        };
        let mut header = [0; 512];
        let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, name.as_bytes());
        put(100, b"0000755\x000000000\x000000000\0");
        let size = format!("{:011o}\x0000000000000\0", content.len());
        put(124, size.as_bytes());
        put(148, b"        ");
        put(156, kind);
        put(157, target.as_bytes());
        put(257, b"ustar\x0000");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        archive.write_all(&header)?;
        archive.write_all(content)?;
        archive.resize(archive.len().next_multiple_of(512), 0);
    }
    archive.resize(archive.len() + 1024, 0);
    Ok(archive)
}
