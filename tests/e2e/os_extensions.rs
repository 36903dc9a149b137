//! Extensions of the machine itself: their files are there for containers, over an upgrade, and for as long as the config names them.

use anyhow::{Context as _, ensure};
use instar_tests::{
    Ending, Greeter, ImageUnderTest, Instarctl, MachineConfig, Node, OciImage, Outcome, Registry,
    Scratch, Test, chapters, push_greeter, tests, upgrade_and_follow,
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
    tests![extensions_of_the_machine_itself]
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

    async fn resource(&self, kind: &str, id: &str) -> anyhow::Result<Value> {
        let get = ["get", kind, id, "-o", "json"];
        let said = self.client.run(&get).await?;
        let told: Value =
            serde_json::from_str(&said.output).with_context(|| format!("{said:?}"))?;
        Ok(told["spec"].clone())
    }

    /// Waits until the node says why it does not use an extension.
    async fn refuses(&self, why: &str) -> Outcome {
        let look = async || {
            let condition = self.resource("conditions", "Degraded").await?;
            ensure!(condition["reason"] == "ExtensionNotInForce", "{condition}");
            let message = condition["message"].as_str().unwrap_or_default();
            ensure!(message.contains(why), "{condition}");
            Ok(())
        };
        let node = &self.node;
        node.wait_until("the extension is refused", PATIENCE, look)
            .await
    }
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

/// Pushes an extension with these files and its release file.
fn push(registry: &Registry, name: &str, files: &[(&str, &[u8])]) -> anyhow::Result<()> {
    let hierarchy = match files.iter().any(|(path, _)| path.starts_with("etc/")) {
        true => "etc",
        false => "usr/lib",
    };
    let release = format!("{hierarchy}/extension-release.d/extension-release.{name}");
    let mut files = files.to_vec();
    files.push((
        &release,
        b"ID=instar\nSYSEXT_LEVEL=1.0\nCONFEXT_LEVEL=1.0\n",
    ));
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
    let shown = extended.resource("extensions", "site").await?;
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
