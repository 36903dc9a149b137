//! Extensions of the machine itself that are in force stay so: while another image of one has no place, when machined dies, and after both
//! the disk can be unmounted.

use anyhow::ensure;
use instar_tests::{
    GREETER, GREETER_PORT, Greeter, ImageUnderTest, Instarctl, MachineConfig, Node, OciImage,
    Outcome, Registry, Scratch, Test, WITH_CGROUPS, chapters, push_greeter, tests,
};

use crate::PATIENCE;

/// The files of the extensions.
const GREETING: &str = "usr/share/site/greeting";
const SETTING: &str = "etc/site/setting";

pub(crate) fn tests() -> Vec<Test> {
    tests![extensions_in_force_stay_so]
}

async fn extensions_in_force_stay_so(scratch: Scratch) -> Outcome {
    let extended = Extended::boot(&scratch).await?;
    chapters![
        both_are_in_force(&extended),
        a_confext_without_a_place_leaves_the_one_before(&extended),
        machined_dies_and_lays_nothing_again(&extended),
        nothing_keeps_the_disk_from_being_unmounted(&extended),
        both_are_in_force(&extended),
    ]
    .await
}

/// A node with a sysext, a confext, and a container that can kill machined.
struct Extended {
    node: Node,
    client: Instarctl,
    _registry: Registry,
}

impl Extended {
    async fn boot(scratch: &Scratch) -> anyhow::Result<Self> {
        let registry = registry(scratch)?;
        let host = registry.host_for_guest();
        let plan = Node::plan(scratch, &ImageUnderTest::first()?).blank_disk()?;
        let plan = plan.forward(GREETER_PORT);
        let plan = plan.configure(move |config| extended(config, &host));
        let node = plan.boot_until_ready(PATIENCE).await?;
        Ok(Self {
            client: Instarctl::of(&node, scratch)?,
            node,
            _registry: registry,
        })
    }

    async fn files_are_there(&self) -> Outcome {
        ensure!(self.node.read(&format!("/{GREETING}")).await? == "hello");
        ensure!(self.node.read(&format!("/{SETTING}")).await? == "loud");
        Ok(())
    }

    /// Says why the next confext is not in force.
    async fn says_why(&self) -> Outcome {
        let words = ["get", "conditions", "Degraded", "-o", "json"];
        let said = self.client.run(&words).await?;
        for part in ["ExtensionNotInForce", "/etc/ssl cannot be a file"] {
            ensure!(said.output.contains(part), "{said:?}");
        }
        Ok(())
    }

    /// The names of the overlays over /usr in the table of mounts.
    async fn overlays(&self) -> anyhow::Result<Vec<String>> {
        let said = self.client.run(&["mounts"]).await?;
        let words = said.output.split_whitespace();
        let names = words.filter(|word| word.starts_with("extensions-"));
        Ok(names.map(str::to_owned).collect())
    }
}

fn registry(scratch: &Scratch) -> anyhow::Result<Registry> {
    let registry = Registry::start(scratch)?;
    push_greeter(&registry)?;
    let push = |name: &str, tag: &str, release: &str, files: &[(&str, &[u8])]| {
        let release = format!("{release}/extension-release.d/extension-release.{name}");
        let fits = b"ID=instar\nSYSEXT_LEVEL=1.0\nCONFEXT_LEVEL=1.0\n".as_slice();
        let files = [files, &[(&release, fits)]].concat();
        let image = OciImage::starting(&[]).files(&files)?;
        let pushed = image.push(&registry, &format!("extensions/{name}"), tag);
        pushed.map(drop)
    };
    push("site", "v1", "usr/lib", &[(GREETING, b"hello")])?;
    push("settings", "v1", "etc", &[(SETTING, b"loud")])?;
    // The system has a directory of this name.
    let next: [(&str, &[u8]); 2] = [(SETTING, b"quiet"), ("etc/ssl", b"a file")];
    push("settings", "v2", "etc", &next)?;
    Ok(registry)
}

fn document(host: &str, name: &str, tag: &str) -> String {
    format!(
        "apiVersion: instar.dev/v1alpha1\nkind: ExtensionConfig\nname: {name}\ntarget: os\nimage: {host}/extensions/{name}:{tag}\n"
    )
}

fn extended(config: MachineConfig, host: &str) -> MachineConfig {
    let config = config.install_disk("/dev/vda").registry(host);
    let config = config.document(&document(host, "site", "v1"));
    let config = config.document(&document(host, "settings", "v1"));
    let image = format!("{host}/greeter:v1");
    config.greeter_at(GREETER, &image, GREETER_PORT, WITH_CGROUPS)
}

async fn both_are_in_force(extended: &Extended) -> Outcome {
    let look = async || {
        extended.files_are_there().await?;
        let names = extended.overlays().await?;
        ensure!(names.len() == 1, "{names:?}");
        Ok(())
    };
    let node = &extended.node;
    node.wait_until("the extensions are in force", PATIENCE, look)
        .await
}

async fn a_confext_without_a_place_leaves_the_one_before(extended: &Extended) -> Outcome {
    let (node, next) = (&extended.node, "extensions/settings:v2");
    let yaml = node.config().replace("extensions/settings:v1", next);
    ensure!(yaml.contains(next), "{yaml}");
    node.apply_as(node.identity(), yaml).await?;
    let is_refused = async || extended.says_why().await;
    node.wait_until("the next one is refused", PATIENCE, is_refused)
        .await?;
    extended.files_are_there().await
}

async fn machined_dies_and_lays_nothing_again(extended: &Extended) -> Outcome {
    let node = &extended.node;
    let (mark, before) = (node.vm().console_mark()?, extended.overlays().await?);
    let kill = "/write/cgroup/generation.1/machined/cgroup.kill?1";
    Greeter::at(node, GREETER_PORT)?.get(kill)?;
    let again = "starting machined again";
    node.vm().wait_for_line_after(mark, again, PATIENCE)?;
    node.wait_for_api(PATIENCE).await?;
    // The confext is there as soon as the API is, and the overlay is the same one.
    extended.files_are_there().await?;
    // It has looked at its extensions again. It is not ready, as it lacks one that its config names.
    let is_refused = async || extended.says_why().await;
    node.wait_until("the next one is refused again", PATIENCE, is_refused)
        .await?;
    extended.files_are_there().await?;
    let after = extended.overlays().await?;
    ensure!(before == after, "{before:?} became {after:?}");
    Ok(())
}

async fn nothing_keeps_the_disk_from_being_unmounted(extended: &Extended) -> Outcome {
    let node = &extended.node;
    let said = extended.client.run(&["reboot"]).await?;
    ensure!(said.code == Some(0), "{said:?}");
    let console = node.vm().console();
    for bad in ["the disk is left to", "extensions stay over /usr"] {
        ensure!(!console.contains(bad), "{console}");
    }
    Ok(())
}
