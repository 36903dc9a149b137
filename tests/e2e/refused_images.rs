//! Images that are wrong, damaged or hostile: the call itself refuses them with a reason, and nothing changes.

use std::io::Write as _;

use anyhow::{Context, ensure};
use instar_tests::{
    GREETER, GREETER_PORT, Greeter, HOST_FOR_GUEST, HttpServer, INSTALLER, ImageUnderTest,
    MachineConfig, Node, NodePlan, OciImage, Outcome, Registry, Reply, Scratch, ScriptedRegistry,
    Test, chapters, push_greeter, sha256_digest, tests,
};
use tonic::Code;

pub(crate) fn tests() -> Vec<Test> {
    tests![a_refused_image_changes_nothing]
}

/// An image that must be refused.
struct Case {
    /// The image's name at its registry.
    name: String,
    /// The status.
    code: Code,
    /// Words of the message.
    reason: &'static str,
}

fn case(name: &str, code: Code, reason: &'static str) -> Case {
    Case {
        name: name.to_owned(),
        code,
        reason,
    }
}

/// The status for an image that is well formed and not acceptable.
const REFUSED: Code = Code::FailedPrecondition;

/// A case for an installer of the registry, by its tag, or tag and digest.
fn refused_case((tag, reason): (&str, &'static str)) -> Case {
    case(&format!("{INSTALLER}:{tag}"), REFUSED, reason)
}

async fn a_refused_image_changes_nothing(scratch: Scratch) -> Outcome {
    let peers = Peers::start(&scratch)?;
    let gone = Registry::start(&scratch.below("gone")?)?;
    let plan = peers.plan(&scratch, gone.host_for_guest())?;
    let node = plan.boot_until_ready(crate::PATIENCE).await?;
    let before = Running::of(&node).await?;
    chapters![
        images_of_a_registry_are_refused(&node, &peers.registry),
        images_of_a_liar_are_refused(&node, &peers.liar),
        a_registry_that_is_gone_has_no_image(&node, gone),
        what_is_no_manifest_is_refused(&node, &peers),
        a_name_that_is_none_is_refused(&node),
        all_runs_on_and_nothing_is_left(&node, &before),
        a_good_image_is_taken_after_all_the_bad_ones(&node, &peers.registry),
    ]
    .await
}

/// The greeter's process, the generation and the version: a change of the machine would alter them.
#[derive(Debug, PartialEq, Eq)]
struct Running {
    greeter: u32,
    generation: String,
    version: String,
}

impl Running {
    async fn of(node: &Node) -> anyhow::Result<Self> {
        Greeter::of(node)?.greets()?;
        Ok(Self {
            greeter: node.service_pid(GREETER).await?,
            generation: node.boot_id().await?,
            version: node.version().await?.tag,
        })
    }
}

/// The registries of the node.
struct Peers {
    registry: Registry,
    babbler: HttpServer,
    liar: ScriptedRegistry,
}

impl Peers {
    fn start(scratch: &Scratch) -> anyhow::Result<Self> {
        let registry = Registry::start(scratch)?;
        let babbler = HttpServer::start()?;
        let manifest = format!("/v2/{INSTALLER}/manifests/v0.2.0");
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

    /// A node that knows these registries, and one that is gone.
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

async fn images_of_a_registry_are_refused(node: &Node, registry: &Registry) -> Outcome {
    let mut cases = wrong(registry)?;
    cases.extend(damaged(registry)?);
    cases.extend(hostile(registry)?);
    are_refused(node, &registry.host_for_guest(), &cases).await
}

/// Tries all images, even after one that was taken.
async fn are_refused(node: &Node, host: &str, cases: &[Case]) -> Outcome {
    let mut wrongly = Vec::new();
    for case in cases {
        let image = format!("{host}/{}", case.name);
        wrongly.extend(complaint(case, node.upgrade(&image).await?));
    }
    ensure!(wrongly.is_empty(), "{wrongly:#?}");
    Ok(())
}

async fn images_of_a_liar_are_refused(node: &Node, liar: &ScriptedRegistry) -> Outcome {
    let cases = lies(liar);
    are_refused(node, &liar.host_for_guest(), &cases).await
}

async fn a_registry_that_is_gone_has_no_image(node: &Node, gone: Registry) -> Outcome {
    let host = gone.host_for_guest();
    drop(gone);
    let case = refused_case(("v0.2.0", "cannot be resolved"));
    are_refused(node, &host, &[case]).await
}

async fn what_is_no_manifest_is_refused(node: &Node, peers: &Peers) -> Outcome {
    let case = refused_case(("v0.2.0", "manifest"));
    are_refused(node, &peers.babbling(), &[case]).await
}

async fn a_name_that_is_none_is_refused(node: &Node) -> Outcome {
    let nonsense = case("no reference", Code::InvalidArgument, "the image's name");
    let wrongly = complaint(&nonsense, node.upgrade("UPPER CASE").await?);
    ensure!(wrongly.is_none(), "{wrongly:#?}");
    Ok(())
}

/// Partly unpacked images are gone, and no file has escaped.
async fn all_runs_on_and_nothing_is_left(node: &Node, before: &Running) -> Outcome {
    let after = Running::of(node).await?;
    ensure!(*before == after, "{before:?} became {after:?}");
    ensure!(after.version == "v0.1.0", "{after:?}");
    let greeter = Greeter::of(node)?;
    let images = greeter.get("/list/data/lib/instar/images")?;
    let ours = images.lines().count() == 1;
    ensure!(ours, "not the greeter's image alone: {images}");
    for escaped in ESCAPED {
        ensure!(greeter.get(escaped).is_err(), "{escaped}");
    }
    Ok(())
}

/// Places that the file of a hostile image may have escaped to.
const ESCAPED: [&str; 3] = [
    "/read/data/escaped",
    "/read/data/lib/escaped",
    "/read/data/lib/instar/escaped",
];

/// The node still takes a good image.
async fn a_good_image_is_taken_after_all_the_bad_ones(node: &Node, registry: &Registry) -> Outcome {
    registry.push_installer(&ImageUnderTest::second()?)?;
    let image = registry.installer_for_guest("v0.2.0");
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

/// Whole images for another kind of machine.
fn wrong(registry: &Registry) -> anyhow::Result<Vec<Case>> {
    for (tag, name, value, _) in WRONG_LABELS {
        let image = installer()?.label(name, value);
        image.push(registry, INSTALLER, tag)?;
    }
    let no_digest = installer()?.without_label("dev.instar.rootfs.blake3");
    no_digest.push(registry, INSTALLER, "no-digest")?;
    let something_else = OciImage::starting(&["/bin/true"]).files(&[("bin/true", b"")])?;
    something_else.push(registry, INSTALLER, "something-else")?;
    let labels = WRONG_LABELS.map(|(tag, _, _, reason)| (tag, reason));
    let cases = labels.into_iter().chain(WRONG_OTHERWISE);
    Ok(cases.map(refused_case).collect())
}

/// A tag, a label with its value, and the reason for the refusal.
type WrongLabel = (&'static str, &'static str, &'static str, &'static str);

const WRONG_LABELS: [WrongLabel; 4] = [
    (
        "other-architecture",
        "dev.instar.architecture",
        "arm64",
        "the image is for arm64",
    ),
    (
        "newer-protocol",
        "dev.instar.protocol",
        "2",
        "version 2 of init's protocol",
    ),
    (
        "no-version",
        "dev.instar.version",
        "latest",
        "which is not a version",
    ),
    ("enormous", "dev.instar.rootfs.bytes", "9999999999", "MiB"),
];

const WRONG_OTHERWISE: [(&str, &str); 3] = [
    ("no-digest", "no label \"dev.instar.rootfs.blake3\""),
    ("something-else", "it is no Instar installer image"),
    ("never-pushed", "MANIFEST_UNKNOWN"),
];

/// Images damaged by a disk or a network.
fn damaged(registry: &Registry) -> anyhow::Result<Vec<Case>> {
    push_damaged(registry, "altered", |content| {
        if let Some(byte) = content.get_mut(600) {
            *byte ^= 1;
        }
    })?;
    push_damaged(registry, "truncated", |content| {
        content.truncate(content.len() / 2);
    })?;
    Ok(vec![
        refused_case(("altered", "has the digest")),
        refused_case(("truncated", "the blob")),
        refused_case((&good_by_another_digest(registry)?, "MANIFEST_UNKNOWN")),
    ])
}

/// Pushes a damaged image with a blob of its own, so that no other image is damaged with it.
fn push_damaged(
    registry: &Registry,
    tag: &str,
    damage: impl FnOnce(&mut Vec<u8>),
) -> anyhow::Result<()> {
    let image = installer()?.files(&[("own", tag.as_bytes())])?;
    let pushed = image.push(registry, INSTALLER, tag)?;
    alter(registry, &pushed.layers, damage)
}

fn good_by_another_digest(registry: &Registry) -> anyhow::Result<String> {
    let good = installer()?.push(registry, INSTALLER, "good")?;
    let other = good.digest.replace(':', ":0");
    Ok(format!("good@{}", other.get(..71).context("short")?))
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
    index_with_a_wrong_size(registry);
    let cases = LIES.map(|(name, reason)| case(name, REFUSED, reason));
    cases.into()
}

const LIES: [(&str, &str); 4] = [
    ("config-size:v1", "where 5000 are announced"),
    ("index:v1", "where 4 are announced"),
    ("chart:v1", "which is no image's"),
    ("content-type:v1", "refused as ambiguous"),
];

fn index_with_a_wrong_size(registry: &ScriptedRegistry) {
    let kind = "application/vnd.oci.image.manifest.v1+json";
    let part = br#"{"schemaVersion":2,"config":{},"layers":[]}"#;
    let digest = sha256_digest(part);
    let place = format!("index/manifests/{digest}");
    registry.reply(&place, Reply::Content(kind, part.to_vec()));
    let index = format!(
        r#"{{"schemaVersion":2,"manifests":[{{"mediaType":"{kind}","digest":"{digest}","size":4}}]}}"#
    );
    let kind = "application/vnd.oci.image.index.v1+json";
    registry.reply("index/manifests/v1", Reply::Content(kind, index.into()));
}

/// Images that do harm while they are unpacked.
fn hostile(registry: &Registry) -> anyhow::Result<Vec<Case>> {
    let climbs_out: &[_] = &[("../../../escaped", Entry::File(b"out"))];
    let around: &[_] = &[
        ("out", Entry::Link("out")),
        ("out/escaped", Entry::File(b"out")),
    ];
    for (tag, entries) in [("climbs-out", climbs_out), ("around", around)] {
        let image = installer()?.archive(archive(entries)?);
        image.push(registry, INSTALLER, tag)?;
    }
    // The download is a thousandth of its unpacked size.
    let bomb = installer()?.gzipped(&vec![0; 128 << 20])?;
    bomb.push(registry, INSTALLER, "bomb")?;
    Ok(HOSTILE.map(refused_case).into())
}

const HOSTILE: [(&str, &str); 3] = [
    ("climbs-out", "is refused"),
    ("around", "cannot be unpacked"),
    ("bomb", "unpacks to more than"),
];

/// The entry of a name in an archive.
enum Entry<'a> {
    File(&'a [u8]),
    Link(&'a str),
}

/// Returns an archive with any names, also ones that the library for archives would not write.
fn archive(entries: &[(&str, Entry<'_>)]) -> anyhow::Result<Vec<u8>> {
    let mut archive = Vec::new();
    for (name, entry) in entries {
        let content = match entry {
            Entry::File(content) => content,
            Entry::Link(_) => &[][..],
        };
        archive.write_all(&header(name, entry, content.len()))?;
        archive.write_all(content)?;
        archive.resize(archive.len().next_multiple_of(512), 0);
    }
    archive.resize(archive.len() + 1024, 0);
    Ok(archive)
}

fn header(name: &str, entry: &Entry<'_>, bytes: usize) -> [u8; 512] {
    let (kind, target) = match entry {
        Entry::File(_) => (b"0", ""),
        Entry::Link(target) => (b"2", *target),
    };
    let mut header = [0; 512];
    let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, name.as_bytes());
    put(100, b"0000755\x000000000\x000000000\0");
    put(124, format!("{bytes:011o}\x0000000000000\0").as_bytes());
    put(156, kind);
    put(157, target.as_bytes());
    put(257, b"ustar\x0000");
    with_checksum(header)
}

/// Fills in the checksum; its own field counts as spaces.
fn with_checksum(mut header: [u8; 512]) -> [u8; 512] {
    let place = 148..156;
    header[place.clone()].fill(b' ');
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[place].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}
