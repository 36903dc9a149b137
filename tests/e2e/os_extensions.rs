//! Extensions of the machine itself: their files are there for containers, over an upgrade, and for as long as the config names them.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use instar_tests::{
    Ending, Greeter, ImageUnderTest, Instarctl, MachineConfig, Node, OciImage, Outcome, Registry,
    Said, Scratch, Test, bundle_of_extension, chapters, extension_file_of, push_greeter, tests,
    upgrade_and_follow,
};
use serde_json::Value;

use crate::PATIENCE;

/// The container that mounts the files of the sysext.
const SERVER: &str = "server";
const SERVER_PORT: u16 = 8085;
/// Files of the extensions, and their content in each edition.
const SHARED: &str = "usr/share/site/greeting";
const SETTING: &str = "etc/site/setting";

pub(crate) fn tests() -> Vec<Test> {
    tests![
        extensions_of_the_machine_itself,
        a_file_of_an_extension_comes_in_a_bundle,
    ]
}

async fn extensions_of_the_machine_itself(scratch: Scratch) -> Outcome {
    let extended = Extended::boot(&scratch).await?;
    chapters![
        a_container_serves_a_file_of_an_extension(&extended),
        a_confext_has_its_files_below_etc(&extended),
        a_file_with_another_digest_leaves_the_machine_as_before(&extended),
        an_extension_that_replaces_a_file_is_refused(&extended),
        the_files_are_there_after_an_upgrade(&extended),
        the_files_go_with_the_document(&extended),
    ]
    .await
}

/// A node with a sysext and a confext from a registry.
struct Extended {
    node: Node,
    registry: Registry,
    client: Instarctl,
    server: Greeter,
}

impl Extended {
    async fn boot(scratch: &Scratch) -> anyhow::Result<Self> {
        let registry = registry(scratch)?;
        let host = registry.host_for_guest();
        let plan = Node::plan(scratch, &ImageUnderTest::first()?).blank_disk()?;
        let plan = plan.forward(SERVER_PORT);
        let plan = plan.configure(move |config| extended(plain(config, &host), &host));
        let node = plan.boot_until_ready(PATIENCE).await?;
        Ok(Self {
            client: Instarctl::of(&node, scratch)?,
            server: Greeter::at(&node, SERVER_PORT)?,
            node,
            registry,
        })
    }

    /// Applies the config that the node was booted with, with further documents.
    async fn apply_with(&self, documents: &str) -> anyhow::Result<()> {
        let yaml = format!("{}---\n{documents}", self.node.config());
        self.node.apply_as(self.node.identity(), yaml).await
    }

    async fn greeting(&self) -> Outcome {
        let is_there = async || {
            ensure!(self.server.get("/read/site/greeting")? == "first");
            ensure!(self.node.read(&format!("/{SHARED}")).await? == "first");
            Ok(())
        };
        let node = &self.node;
        node.wait_until("the greeting is there", PATIENCE, is_there)
            .await
    }

    async fn refuses(&self, why: &str) -> Outcome {
        refuses(&self.node, &self.client, why).await
    }
}

async fn resource(client: &Instarctl, kind: &str, id: &str) -> anyhow::Result<Value> {
    let get = ["get", kind, id, "-o", "json"];
    let said = client.run(&get).await?;
    let told: Value = serde_json::from_str(&said.output).with_context(|| format!("{said:?}"))?;
    Ok(told["spec"].clone())
}

/// Waits until a node says why it does not use an extension.
async fn refuses(node: &Node, client: &Instarctl, why: &str) -> Outcome {
    let look = async || {
        let condition = resource(client, "conditions", "Degraded").await?;
        ensure!(condition["reason"] == "ExtensionNotInForce", "{condition}");
        let message = condition["message"].as_str().unwrap_or_default();
        ensure!(message.contains(why), "{condition}");
        Ok(())
    };
    node.wait_until("the extension is refused", PATIENCE, look)
        .await
}

/// A registry with another version and the extensions.
fn registry(scratch: &Scratch) -> anyhow::Result<Registry> {
    let registry = Registry::start(scratch)?;
    push_greeter(&registry)?;
    registry.push_installer(&ImageUnderTest::second()?)?;
    push(&registry, "site", &[(SHARED, b"first")])?;
    push(&registry, "settings", &[(SETTING, b"loud")])?;
    push(&registry, "greedy", &[("usr/bin/crun", b"another one")])?;
    Ok(registry)
}

/// The release file of a test's extension: the systems that it fits.
const RELEASE: &[u8] = b"ID=instar\nSYSEXT_LEVEL=1.0\nCONFEXT_LEVEL=1.0\n";

/// Pushes an extension with these files and its release file.
fn push(registry: &Registry, name: &str, files: &[(&str, &[u8])]) -> anyhow::Result<()> {
    let hierarchy = match files.iter().any(|(path, _)| path.starts_with("etc/")) {
        true => "etc",
        false => "usr/lib",
    };
    let release = format!("{hierarchy}/extension-release.d/extension-release.{name}");
    let mut files = files.to_vec();
    files.push((&release, RELEASE));
    let image = OciImage::starting(&[]).files(&files)?;
    image
        .push(registry, &format!("extensions/{name}"), "v1")
        .map(drop)
}

fn document(name: &str, source: &str) -> String {
    format!(
        "apiVersion: instar.dev/v1alpha1\nkind: ExtensionConfig\nname: {name}\ntarget: os\n{source}"
    )
}

fn of_image(host: &str, name: &str) -> String {
    document(name, &format!("image: {host}/extensions/{name}:v1\n"))
}

fn plain(config: MachineConfig, host: &str) -> MachineConfig {
    config.install_disk("/dev/vda").registry(host)
}

fn extended(config: MachineConfig, host: &str) -> MachineConfig {
    let mounts =
        "mounts:\n  - hostPath: {source: /usr/share/site, destination: /site, options: [ro]}\n";
    config
        .document(&of_image(host, "site"))
        .document(&of_image(host, "settings"))
        .greeter_at(SERVER, &format!("{host}/greeter:v1"), SERVER_PORT, mounts)
}

async fn a_container_serves_a_file_of_an_extension(extended: &Extended) -> Outcome {
    extended.greeting().await?;
    let shown = resource(&extended.client, "extensions", "site").await?;
    ensure!(shown["state"] == "in force", "{shown}");
    ensure!(shown["target"] == "os", "{shown}");
    // The machine's own files are there as well.
    extended.node.read("/usr/lib/os-release").await.map(drop)
}

async fn a_confext_has_its_files_below_etc(extended: &Extended) -> Outcome {
    let setting = extended.node.read(&format!("/{SETTING}")).await?;
    ensure!(setting == "loud", "{setting}");
    Ok(())
}

async fn a_file_with_another_digest_leaves_the_machine_as_before(extended: &Extended) -> Outcome {
    let (registry, host) = (&extended.registry, extended.registry.host_for_guest());
    let digest = registry.put_blob("files", b"another file")?;
    let source = format!(
        "url: http://{host}/v2/files/blobs/{digest}\nsha256: {}\n",
        "a".repeat(64)
    );
    extended.apply_with(&document("other", &source)).await?;
    extended.refuses("is another file than the config").await?;
    extended.greeting().await
}

async fn an_extension_that_replaces_a_file_is_refused(extended: &Extended) -> Outcome {
    let host = extended.registry.host_for_guest();
    let greedy = of_image(&host, "greedy");
    extended.apply_with(&greedy).await?;
    extended.refuses("greedy has /usr/bin/crun").await?;
    extended.greeting().await
}

async fn the_files_are_there_after_an_upgrade(extended: &Extended) -> Outcome {
    let node = &extended.node;
    node.apply_as(node.identity(), node.config().to_owned())
        .await?;
    let image = extended.registry.installer_for_guest("v0.2.0");
    let followed = upgrade_and_follow(node, &image, PATIENCE).await?;
    ensure!(followed.ending == Ending::Done, "{followed:#?}");
    extended.greeting().await?;
    let setting = node.read(&format!("/{SETTING}")).await?;
    ensure!(setting == "loud", "{setting}");
    Ok(())
}

async fn the_files_go_with_the_document(extended: &Extended) -> Outcome {
    let (node, host) = (&extended.node, extended.registry.host_for_guest());
    let config = plain(MachineConfig::new(node.identity()), &host);
    node.apply_as(node.identity(), config.to_yaml()).await?;
    let are_gone = async || {
        ensure!(node.read(&format!("/{SHARED}")).await.is_err());
        ensure!(node.read(&format!("/{SETTING}")).await.is_err());
        node.read("/usr/lib/os-release").await.map(drop)
    };
    node.wait_until("the files are gone", PATIENCE, are_gone)
        .await
}

/// A node that reaches no server, and bundles with a file of an extension each.
struct CutOff {
    node: Node,
    client: Instarctl,
    site: Carried,
    late: Carried,
    scratch: Scratch,
}

/// A bundle with the file of an extension.
struct Carried {
    name: &'static str,
    bundle: PathBuf,
}

async fn a_file_of_an_extension_comes_in_a_bundle(scratch: Scratch) -> Outcome {
    let cut_off = CutOff::boot(&scratch).await?;
    chapters![
        a_bundle_with_an_altered_byte_is_refused(&cut_off),
        a_file_is_kept_before_the_config_names_it(&cut_off),
    ]
    .await?;
    let cut_off = cut_off.after_a_power_cut().await?;
    chapters![
        it_is_in_force_once_the_config_names_it(&cut_off),
        no_server_answers_for_another_file(&cut_off),
        until_a_bundle_brings_it(&cut_off),
    ]
    .await
}

impl Carried {
    async fn make(scratch: &Scratch, name: &'static str) -> anyhow::Result<Self> {
        let greeting = format!("usr/share/{name}/greeting");
        let release = format!("usr/lib/extension-release.d/extension-release.{name}");
        let files = [
            (greeting.as_str(), name.as_bytes()),
            (release.as_str(), RELEASE),
        ];
        let file = extension_file_of(scratch, &format!("{name}-v1-x86-64.raw"), &files)?;
        let bundle = format!("{name}.bundle");
        Ok(Self {
            name,
            bundle: bundle_of_extension(scratch, &bundle, &file).await?,
        })
    }

    /// The document that names the file, at a server that does not answer.
    async fn document(&self, client: &Instarctl) -> anyhow::Result<String> {
        let bundle = self.bundle.to_string_lossy();
        let words = ["bundle", "show", &bundle, "-o", "json"];
        let said = client.run(&words).await?;
        let shown: Value = serde_json::from_str(&said.output)?;
        let digest = shown["files"][0]["digest"].as_str().unwrap_or_default();
        let digits = digest.strip_prefix("sha256:");
        let digits = digits.with_context(|| format!("{shown:#}"))?;
        let name = self.name;
        let source = format!("url: http://127.0.0.1:9/{name}-v1-x86-64.raw\nsha256: {digits}\n");
        Ok(document(name, &source))
    }
}

impl CutOff {
    async fn boot(scratch: &Scratch) -> anyhow::Result<Self> {
        let plan = Node::plan(scratch, &ImageUnderTest::first()?).blank_disk()?;
        let plan = plan.configure(|config| config.install_disk("/dev/vda"));
        let node = plan.boot_until_ready(PATIENCE).await?;
        Ok(Self {
            client: Instarctl::of(&node, scratch)?,
            node,
            site: Carried::make(scratch, "site").await?,
            late: Carried::make(scratch, "late").await?,
            scratch: scratch.clone(),
        })
    }

    async fn after_a_power_cut(self) -> anyhow::Result<Self> {
        let node = self.node.power_cycle().await?;
        node.wait_until_ready(PATIENCE).await?;
        Ok(Self {
            client: Instarctl::of(&node, &self.scratch)?,
            node,
            ..self
        })
    }

    async fn upload(&self, bundle: &Path) -> anyhow::Result<Said> {
        let bundle = bundle.to_string_lossy();
        let words = ["bundle", "upload", "--unchecked", &bundle];
        self.client.run(&words).await
    }

    /// Uploads a bundle whose file is kept.
    async fn take(&self, carried: &Carried) -> Outcome {
        let said = self.upload(&carried.bundle).await?;
        ensure!(said.code == Some(0), "{said:?}");
        let kept = "is on this machine now";
        ensure!(said.output.contains(kept), "{said:?}");
        Ok(())
    }

    /// Has the config name these files.
    async fn name(&self, all: &[&Carried]) -> Outcome {
        let mut yaml = self.node.config().to_owned();
        for carried in all {
            let document = carried.document(&self.client).await?;
            yaml = format!("{yaml}---\n{document}");
        }
        self.node.apply_as(self.node.identity(), yaml).await
    }

    async fn is_in_force(&self, carried: &Carried) -> Outcome {
        let name = carried.name;
        let look = async || {
            let greeting = format!("/usr/share/{name}/greeting");
            ensure!(self.node.read(&greeting).await? == name);
            let shown = resource(&self.client, "extensions", name).await?;
            ensure!(shown["state"] == "in force", "{shown}");
            Ok(())
        };
        let node = &self.node;
        node.wait_until("the extension is in force", PATIENCE, look)
            .await
    }
}

async fn a_bundle_with_an_altered_byte_is_refused(cut_off: &CutOff) -> Outcome {
    let altered = cut_off.scratch.join("altered.bundle");
    std::fs::copy(&cut_off.site.bundle, &altered)?;
    let file = File::options().read(true).write(true).open(&altered)?;
    // The file lies before the end of the archive.
    let (place, mut byte) = (file.metadata()?.len() - 2048, [0]);
    file.read_exact_at(&mut byte, place)?;
    file.write_all_at(&[byte[0] ^ 1], place)?;
    let said = cut_off.upload(&altered).await?;
    ensure!(said.code != Some(0), "{said:?}");
    ensure!(said.complaint.contains("it is altered"), "{said:?}");
    Ok(())
}

async fn a_file_is_kept_before_the_config_names_it(cut_off: &CutOff) -> Outcome {
    cut_off.take(&cut_off.site).await?;
    let images = cut_off.client.run(&["get", "images"]).await?;
    let name = "bundle.invalid/site-v1-x86-64-raw";
    ensure!(images.output.contains(name), "{images:?}");
    Ok(())
}

async fn it_is_in_force_once_the_config_names_it(cut_off: &CutOff) -> Outcome {
    cut_off.name(&[&cut_off.site]).await?;
    cut_off.is_in_force(&cut_off.site).await
}

async fn no_server_answers_for_another_file(cut_off: &CutOff) -> Outcome {
    cut_off.name(&[&cut_off.site, &cut_off.late]).await?;
    let why = "fetch http://127.0.0.1:9/late-v1-x86-64.raw";
    refuses(&cut_off.node, &cut_off.client, why).await
}

async fn until_a_bundle_brings_it(cut_off: &CutOff) -> Outcome {
    cut_off.take(&cut_off.late).await?;
    cut_off.is_in_force(&cut_off.late).await?;
    cut_off.is_in_force(&cut_off.site).await
}
