//! Images that are well formed in ways that few are, and registries that send a node elsewhere.

use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use instar_tests::{
    Greeter, ImageUnderTest, MachineConfig, Node, OciImage, Outcome, Registry, Reply, Scratch,
    ScriptedRegistry, Test, chapters, guest_program, tests,
};

use crate::PATIENCE;

const ODD: &str = "odd";
const ODD_PORT: u16 = 8081;
/// From a registry that redirects to somebody who asks for its password.
const TRAPPED: &str = "trapped";
/// From one that redirects to the node itself.
const HOMEWARD: &str = "homeward";
/// From one that sends a byte now and then.
const DRIPPING: &str = "dripping";
const PASSWORD: &str = "hunter2";

const GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const ZSTD: &str = "application/vnd.oci.image.layer.v1.tar+zstd";
/// A file of zeros: more than two hundred times its packed size.
const PREALLOCATED: usize = 40 << 20;
/// What is at the end of a sparse file.
const AT_THE_END: u64 = 3_000_000;

pub(crate) fn tests() -> Vec<Test> {
    tests![odd_images_run_and_odd_registries_get_nothing]
}

async fn odd_images_run_and_odd_registries_get_nothing(scratch: Scratch) -> Outcome {
    let registry = Registry::start(&scratch)?;
    odd_image(&scratch)?.push(&registry, ODD, "v1")?;
    let (front, thief) = (ScriptedRegistry::start()?, ScriptedRegistry::start()?);
    set_traps(&front, &thief);
    let hosts = Hosts {
        good: registry.host_for_guest(),
        front: front.host_for_guest(),
        thief: thief.host_for_guest(),
    };
    let node = Node::plan(&scratch, &ImageUnderTest::first()?)
        .blank_disk()?
        .forward(ODD_PORT)
        .configure(move |config| hosts.with_containers(config))
        .boot()
        .await?;
    let odd = Greeter::at(&node, ODD_PORT)?;
    chapters![
        the_odd_image_runs_with_its_files(&node, &odd),
        device_nodes_are_left_out_and_named_once(&node),
        fails_with(&node, TRAPPED, "which refuses access"),
        fails_with(&node, HOMEWARD, "may not send this machine there"),
        fails_with(&node, DRIPPING, "sends less than 1024 bytes a second"),
        nobody_was_told_the_password(&thief),
    ]
    .await
}

/// One blob is elsewhere, where a password is asked for; one is at the node itself; one manifest never ends.
fn set_traps(front: &ScriptedRegistry, thief: &ScriptedRegistry) {
    let to_thief = format!("http://{}/v2", thief.host_for_guest());
    let blob = front.image(TRAPPED, |_| {});
    front.reply(&blob, Reply::Redirect(format!("{to_thief}/blob")));
    thief.reply("blob", Reply::Challenge(format!("{to_thief}/token")));
    let blob = front.image(HOMEWARD, |_| {});
    let home = "http://127.0.0.1:50000/".to_owned();
    front.reply(&blob, Reply::Redirect(home));
    front.reply(&format!("{DRIPPING}/manifests/v1"), Reply::Drip);
}

/// Registries as the node names them.
struct Hosts {
    good: String,
    front: String,
    thief: String,
}

impl Hosts {
    fn with_containers(&self, config: MachineConfig) -> MachineConfig {
        let Self { good, front, thief } = self;
        let more = format!("args: [\"{ODD_PORT}\"]\nnetwork: {{mode: host}}\n");
        let config = config
            .install_disk("/dev/vda")
            .registry(good)
            .container(ODD, &format!("{good}/{ODD}:v1"), &more)
            .registry(front)
            .document(&password(front))
            .document(&password(thief));
        [TRAPPED, HOMEWARD, DRIPPING]
            .iter()
            .fold(config, |config, name| {
                config.container(name, &format!("{front}/{name}:v1"), "")
            })
    }
}

fn password(host: &str) -> String {
    format!(
        "apiVersion: v1alpha1\nkind: RegistryAuthConfig\nname: {host}\nusername: bob\npassword: {PASSWORD}\n"
    )
}

async fn the_odd_image_runs_with_its_files(node: &Node, odd: &Greeter) -> Outcome {
    node.wait_until("the odd image's program answers", PATIENCE, async || {
        odd.greets()
    })
    .await?;
    has_its_files(odd)
}

async fn device_nodes_are_left_out_and_named_once(node: &Node) -> Outcome {
    let log = node.log("machined").await?;
    let left_out = "device nodes are left out, the first is /dev/sda";
    let count = log.lines().filter(|line| line.contains(left_out)).count();
    ensure!(count == 1, "{count} lines say {left_out:?}: {log}");
    Ok(())
}

async fn nobody_was_told_the_password(thief: &ScriptedRegistry) -> Outcome {
    let asked = thief.requests();
    ensure!(!asked.is_empty());
    for request in asked {
        ensure!(
            request.starts_with("GET /v2/blob ")
                && !request.to_lowercase().contains("authorization"),
            "it was asked: {request}"
        );
    }
    Ok(())
}

/// The container's start fails for that reason.
async fn fails_with(node: &Node, name: &str, reason: &str) -> Outcome {
    let patience = PATIENCE + Duration::from_secs(60);
    node.wait_until("the pull has failed", patience, async || {
        let events = node.service(name).await?.events.unwrap_or_default().events;
        ensure!(
            events
                .iter()
                .any(|event| event.state == "Failed" && event.msg.contains(reason)),
            "{name}: {events:#?}"
        );
        Ok(())
    })
    .await
}

fn has_its_files(odd: &Greeter) -> Outcome {
    // Through links, and where they lead.
    for (path, content) in [
        ("/usr/lib/two", "through an absolute link"),
        ("/a/two", "through an absolute link"),
        ("/etc/up", "past the root"),
        ("/later/made/three", "before what it leads to"),
        ("/sized", "as the pax header says"),
        ("/behind", "behind them"),
        // Its working directory: /link is /real, and sub/../sub is sub.
        ("/proc/self/cwd/where", "here"),
    ] {
        let read = odd.get(&format!("/read{path}"))?;
        ensure!(read == content, "{path}: {read:?}");
    }
    for (path, expected) in [("/pipe", "10622 0 "), ("/zeros", "100755 41943040 ")] {
        let facts = odd.get(&format!("/stat{path}"))?;
        ensure!(facts.starts_with(expected), "{path}: {facts}");
    }
    for path in ["gnu", "pax-0.1", "pax-1.0"] {
        let content = odd.get(&format!("/read/{path}/sparse"))?;
        let length = AT_THE_END as usize + 3;
        ensure!(
            content.len() == length
                && content.starts_with("beginning\0")
                && content.ends_with("\0end"),
            "{path}: {} bytes",
            content.len()
        );
        let facts = odd.get(&format!("/stat/{path}/sparse"))?;
        let on_disk: u64 = facts.rsplit(' ').next().context("no size")?.parse()?;
        ensure!(on_disk < AT_THE_END / 2, "{path} has no holes: {facts}");
    }
    ensure!(odd.get("/stat/dev/sda").is_err() && odd.get("/stat/device").is_err());
    Ok(())
}

fn odd_image(scratch: &Scratch) -> anyhow::Result<OciImage> {
    let program = guest_program("greeter")?;
    let links = links()?;
    let (first, rest) = links.split_at(1000);
    let mut image = OciImage::starting(&["/greeter"])
        .working_dir("/link/./sub/../sub/")
        .files(&[("greeter", &program)])?
        .packed(&links, ZSTD, frames(&[first, rest])?)
        .gzipped(&zeros()?)?;
    for (name, format) in [
        ("gnu", &["--format=gnu"][..]),
        ("pax-0.1", &["--format=pax", "--sparse-version=0.1"]),
        ("pax-1.0", &["--format=pax", "--sparse-version=1.0"]),
    ] {
        let archive = sparse(scratch, name, format)?;
        // Packed again on its way, under the media type of before.
        image = image.packed(&archive, GZIP, zstd(&archive)?);
    }
    Ok(image)
}

/// Links, devices, a pipe and contradictory sizes.
fn links() -> anyhow::Result<Vec<u8>> {
    use tar::{EntryType, Header};
    let header = |kind, mode, size| {
        let mut header = Header::new_ustar();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_size(size);
        header.set_mtime(0);
        header
    };
    let mut archive = tar::Builder::new(Vec::new());
    let mut link = |name: &str, target: &str| {
        archive.append_link(&mut header(EntryType::Symlink, 0o777, 0), name, target)
    };
    link("a", "/usr/lib")?;
    link("up", "../../etc")?;
    link("later-link", "/later/made")?;
    link("link", "/real")?;
    let mut file = |name: &str, content: &str| {
        let mut header = header(EntryType::Regular, 0o644, content.len() as u64);
        archive.append_data(&mut header, name, content.as_bytes())
    };
    file("usr/lib/one", "is there")?;
    file("a/two", "through an absolute link")?;
    file("up/up", "past the root")?;
    file("later-link/three", "before what it leads to")?;
    file("real/sub/where", "here")?;
    let empty: &[u8] = &[];
    archive.append_data(&mut header(EntryType::Fifo, 0o622, 0), "pipe", empty)?;
    for (name, kind) in [("dev/sda", EntryType::Block), ("device", EntryType::Char)] {
        let mut header = header(kind, 0o600, 0);
        header.set_device_major(8)?;
        header.set_device_minor(0)?;
        archive.append_data(&mut header, name, empty)?;
    }
    let sized = "as the pax header says";
    let size = sized.len().to_string();
    archive.append_pax_extensions([("size", size.as_bytes())])?;
    let mut contradicted = header(EntryType::Regular, 0o644, 0);
    contradicted.set_path("sized")?;
    contradicted.set_cksum();
    archive.append(&contradicted, sized.as_bytes())?;
    let mut header = header(EntryType::Regular, 0o644, 11);
    archive.append_data(&mut header, "behind", &b"behind them"[..])?;
    Ok(archive.into_inner()?)
}

fn zeros() -> anyhow::Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_ustar();
    header.set_mode(0o755);
    header.set_size(PREALLOCATED as u64);
    archive.append_data(
        &mut header,
        "zeros",
        std::io::repeat(0).take(PREALLOCATED as u64),
    )?;
    Ok(archive.into_inner()?)
}

/// A file with a hole, as tar itself packs it.
fn sparse(scratch: &Scratch, name: &str, format: &[&str]) -> anyhow::Result<Vec<u8>> {
    let directory = scratch.below(&format!("sparse-{name}"))?;
    std::fs::create_dir_all(directory.join(name))?;
    let file = std::fs::File::create(directory.join(&format!("{name}/sparse")))?;
    file.write_all_at(b"beginning", 0)?;
    file.write_all_at(b"end", AT_THE_END)?;
    let place = directory.join("").display().to_string();
    piped(
        "tar",
        &[format, &["--sparse", "-cC", &place, name]].concat(),
        &[],
    )
}

/// Frames as parallel packers write them: a skippable one in front of each, and, as chunked layers have it, one at the end.
fn frames(pieces: &[&[u8]]) -> anyhow::Result<Vec<u8>> {
    let skippable = b"\x50\x2a\x4d\x18\x04\x00\x00\x00size";
    let mut frames = Vec::new();
    for piece in pieces {
        frames.extend_from_slice(skippable);
        frames.extend(zstd(piece)?);
    }
    frames.extend_from_slice(b"\x5e\x2a\x4d\x18\x05\x00\x00\x00table");
    Ok(frames)
}

fn zstd(bytes: &[u8]) -> anyhow::Result<Vec<u8>> {
    piped("zstd", &["-q"], bytes)
}

/// What a program makes of its input.
fn piped(program: &str, arguments: &[&str], input: &[u8]) -> anyhow::Result<Vec<u8>> {
    use std::io::Write as _;
    let mut process = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {program}"))?;
    let mut stdin = process.stdin.take().context("no input")?;
    let input = input.to_vec();
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let output = process.wait_with_output()?;
    ensure!(
        output.status.success(),
        "{program} {arguments:?}: {}",
        output.status
    );
    writer.join().ok().context("the writer panicked")??;
    Ok(output.stdout)
}
