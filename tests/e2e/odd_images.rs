//! Images that are well formed in rare ways, and registries that redirect a node.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use instar_tests::{
    Greeter, ImageUnderTest, MachineConfig, Node, OciImage, Outcome, Registry, Reply, Scratch,
    ScriptedRegistry, Test, chapters, guest_program, tests,
};
use tar::EntryType;

use crate::PATIENCE;

const ODD: &str = "odd";
const ODD_PORT: u16 = 8081;
/// The image's registry redirects to a server that asks for its password.
const TRAPPED: &str = "trapped";
/// The image's registry redirects to the node itself.
const HOMEWARD: &str = "homeward";
/// The image's registry sends a byte now and then.
const DRIPPING: &str = "dripping";
const PASSWORD: &str = "hunter2";

const GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const ZSTD: &str = "application/vnd.oci.image.layer.v1.tar+zstd";
/// A file of zeros: more than two hundred times its packed size.
const PREALLOCATED: usize = 40 << 20;
/// Offset of the data at the end of a sparse file.
const AT_THE_END: u64 = 3_000_000;

pub(crate) fn tests() -> Vec<Test> {
    tests![odd_images_run_and_odd_registries_get_nothing]
}

async fn odd_images_run_and_odd_registries_get_nothing(scratch: Scratch) -> Outcome {
    let registries = Registries::start(&scratch)?;
    let hosts = registries.hosts();
    let node = Node::plan(&scratch, &ImageUnderTest::first()?)
        .blank_disk()?
        .forward(ODD_PORT)
        .configure(move |config| hosts.with_containers(config))
        .boot()
        .await?;
    chapters![
        odd_images_run(&node, &Greeter::at(&node, ODD_PORT)?),
        odd_registries_get_nothing(&node, &registries.thief),
    ]
    .await
}

async fn odd_images_run(node: &Node, odd: &Greeter) -> Outcome {
    chapters![
        the_odd_images_program_answers(node, odd),
        files_are_there_through_links_and_where_they_lead(odd),
        a_pipe_and_a_file_of_zeros_are_there(odd),
        sparse_files_have_their_holes(odd),
        device_nodes_are_left_out_and_named_once(node, odd),
    ]
    .await
}

async fn odd_registries_get_nothing(node: &Node, thief: &ScriptedRegistry) -> Outcome {
    chapters![
        fails_with(node, TRAPPED, "which refuses access"),
        fails_with(node, HOMEWARD, "may not send this machine there"),
        fails_with(node, DRIPPING, "sends less than 1024 bytes a second"),
        nobody_was_told_the_password(thief),
    ]
    .await
}

/// A registry with the odd image, one that redirects, and the server that it redirects to.
struct Registries {
    good: Registry,
    front: ScriptedRegistry,
    thief: ScriptedRegistry,
}

impl Registries {
    fn start(scratch: &Scratch) -> anyhow::Result<Self> {
        let good = Registry::start(scratch)?;
        odd_image(scratch)?.push(&good, ODD, "v1")?;
        let (front, thief) = (ScriptedRegistry::start()?, ScriptedRegistry::start()?);
        set_traps(&front, &thief);
        Ok(Self { good, front, thief })
    }

    fn hosts(&self) -> Hosts {
        Hosts {
            good: self.good.host_for_guest(),
            front: self.front.host_for_guest(),
            thief: self.thief.host_for_guest(),
        }
    }
}

/// One blob is on a server that asks for a password, one is on the node itself, and one manifest never ends.
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

/// The registries' addresses in the guest.
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

async fn the_odd_images_program_answers(node: &Node, odd: &Greeter) -> Outcome {
    node.wait_until("the odd image's program answers", PATIENCE, async || {
        odd.greets()
    })
    .await
}

async fn device_nodes_are_left_out_and_named_once(node: &Node, odd: &Greeter) -> Outcome {
    ensure!(odd.get("/stat/dev/sda").is_err() && odd.get("/stat/device").is_err());
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

/// Checks that the container's start fails for this reason.
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

const FILES: [(&str, &str); 7] = [
    ("/usr/lib/two", "through an absolute link"),
    ("/a/two", "through an absolute link"),
    ("/etc/up", "past the root"),
    ("/later/made/three", "before what it leads to"),
    ("/sized", "as the pax header says"),
    ("/behind", "behind them"),
    // Its working directory: /link is /real, and sub/../sub is sub.
    ("/proc/self/cwd/where", "here"),
];

async fn files_are_there_through_links_and_where_they_lead(odd: &Greeter) -> Outcome {
    for (path, content) in FILES {
        let read = odd.get(&format!("/read{path}"))?;
        ensure!(read == content, "{path}: {read:?}");
    }
    Ok(())
}

async fn a_pipe_and_a_file_of_zeros_are_there(odd: &Greeter) -> Outcome {
    for (path, expected) in [("/pipe", "10622 0 "), ("/zeros", "100755 41943040 ")] {
        let facts = odd.get(&format!("/stat{path}"))?;
        ensure!(facts.starts_with(expected), "{path}: {facts}");
    }
    Ok(())
}

async fn sparse_files_have_their_holes(odd: &Greeter) -> Outcome {
    for (path, _) in SPARSE_FORMATS {
        let content = odd.get(&format!("/read/{path}/sparse"))?;
        let length = content.len();
        let is_whole = length == AT_THE_END as usize + 3
            && content.starts_with("beginning\0")
            && content.ends_with("\0end");
        ensure!(is_whole, "{path}: {length} bytes");
        let facts = odd.get(&format!("/stat/{path}/sparse"))?;
        let on_disk: u64 = facts.rsplit(' ').next().context("no size")?.parse()?;
        ensure!(on_disk < AT_THE_END / 2, "{path} has no holes: {facts}");
    }
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
    for (name, format) in SPARSE_FORMATS {
        let archive = sparse(scratch, name, format)?;
        // Compressed anew, under the former media type.
        image = image.packed(&archive, GZIP, zstd(&archive)?);
    }
    Ok(image)
}

/// How `tar` packs files with holes: the archive's name, and its arguments.
const SPARSE_FORMATS: [(&str, &[&str]); 3] = [
    ("gnu", &["--format=gnu"]),
    ("pax-0.1", &["--format=pax", "--sparse-version=0.1"]),
    ("pax-1.0", &["--format=pax", "--sparse-version=1.0"]),
];

/// Links, devices, a pipe and contradictory sizes.
fn links() -> anyhow::Result<Vec<u8>> {
    let mut archive = Archive(tar::Builder::new(Vec::new()));
    for (name, target) in LINKS {
        archive.link(name, target)?;
    }
    for (name, content) in FILES_AT_LINKS {
        archive.file(name, content)?;
    }
    archive.pipe("pipe")?;
    archive.device("dev/sda", EntryType::Block)?;
    archive.device("device", EntryType::Char)?;
    archive.file_without_a_size("sized", "as the pax header says")?;
    archive.file("behind", "behind them")?;
    Ok(archive.0.into_inner()?)
}

const LINKS: [(&str, &str); 4] = [
    ("a", "/usr/lib"),
    ("up", "../../etc"),
    ("later-link", "/later/made"),
    ("link", "/real"),
];

const FILES_AT_LINKS: [(&str, &str); 5] = [
    ("usr/lib/one", "is there"),
    ("a/two", "through an absolute link"),
    ("up/up", "past the root"),
    ("later-link/three", "before what it leads to"),
    ("real/sub/where", "here"),
];

/// An archive under construction.
struct Archive(tar::Builder<Vec<u8>>);

impl Archive {
    fn link(&mut self, name: &str, target: &str) -> std::io::Result<()> {
        let mut header = header(EntryType::Symlink, 0o777, 0);
        self.0.append_link(&mut header, name, target)
    }

    fn file(&mut self, name: &str, content: &str) -> std::io::Result<()> {
        let mut header = header(EntryType::Regular, 0o644, content.len());
        self.0.append_data(&mut header, name, content.as_bytes())
    }

    fn pipe(&mut self, name: &str) -> std::io::Result<()> {
        let mut header = header(EntryType::Fifo, 0o622, 0);
        self.0.append_data(&mut header, name, std::io::empty())
    }

    fn device(&mut self, name: &str, kind: EntryType) -> std::io::Result<()> {
        let mut header = header(kind, 0o600, 0);
        header.set_device_major(8)?;
        header.set_device_minor(0)?;
        self.0.append_data(&mut header, name, std::io::empty())
    }

    /// Adds a file whose size only the pax header before its own has.
    fn file_without_a_size(&mut self, name: &str, content: &str) -> std::io::Result<()> {
        let size = content.len().to_string();
        (self.0).append_pax_extensions([("size", size.as_bytes())])?;
        let mut contradicted = header(EntryType::Regular, 0o644, 0);
        contradicted.set_path(name)?;
        contradicted.set_cksum();
        self.0.append(&contradicted, content.as_bytes())
    }
}

fn header(kind: EntryType, mode: u32, size: usize) -> tar::Header {
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size as u64);
    header.set_mtime(0);
    header
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

/// Returns an archive by tar itself with a sparse file.
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

/// Returns frames as parallel packers write them: a skippable one before each, and, as in chunked layers, one at the
/// end.
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

/// Returns a program's output for this input.
fn piped(program: &str, arguments: &[&str], input: &[u8]) -> anyhow::Result<Vec<u8>> {
    let mut command = Command::new(program);
    command.args(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let process = command.spawn();
    let mut process = process.with_context(|| format!("cannot run {program}"))?;
    let mut stdin = process.stdin.take().context("no input")?;
    let input = input.to_vec();
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let output = process.wait_with_output()?;
    let status = output.status;
    ensure!(status.success(), "{program} {arguments:?}: {status}");
    writer.join().ok().context("the writer panicked")??;
    Ok(output.stdout)
}
