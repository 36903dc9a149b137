//! A machine with only a blank disk: iPXE starts it, and it installs itself.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use instar_api::machine::lifecycle_service_client::LifecycleServiceClient;
use instar_api::machine::lifecycle_service_install_progress::Response;
use instar_api::machine::{
    InstallArtifactsSource, InstallDestination, LifecycleServiceInstallRequest,
};
use instar_qemu::VmSpec;
use instar_tests::{
    HttpServer, Identity, ImageUnderTest, Instarctl, MachineConfig, Node, OciImage, Outcome,
    Registry, Scratch, Test, chapters, test_keys, tests, uefi,
};
use tonic::{Code, Status};

use crate::PATIENCE;
use crate::installed::INSTALLER;
use crate::upgrade_trust::{SIGNATURE, trusting};

/// The tag of the installer without its signature.
const UNSIGNED: &str = "unsigned";
/// A tag of a version that no image of the test has.
const WRONG_TAG: &str = "v0.3.0";

pub(crate) fn tests() -> Vec<Test> {
    tests![
        a_machine_installs_itself,
        a_machine_in_memory_is_installed_by_a_call
    ]
}

async fn a_machine_installs_itself(scratch: Scratch) -> Outcome {
    let registry = registry_with_installer(&scratch)?;
    let image = registry.image_for_guest(&format!("{INSTALLER}:v0.1.0"));
    let web = HttpServer::start()?;
    let node = start_over_the_network(&scratch, &web, |config| {
        let config = config.hostname("rack-7");
        let config = config.registry(&registry.host_for_guest());
        config.install("/dev/vda", &image)
    })?;
    node.wait_until_installed("v0.1.0", PATIENCE).await?;
    chapters![
        the_machine_was_started_from_its_disk(&node),
        the_machine_has_its_config_on_its_disk(&node, &web),
    ]
    .await
}

fn registry_with_installer(scratch: &Scratch) -> Result<Registry> {
    let image = ImageUnderTest::first()?;
    let registry = Registry::start(scratch)?;
    registry.push_layout(&image.installer(), INSTALLER, image.version())?;
    Ok(registry)
}

async fn the_machine_was_started_from_its_disk(node: &Node) -> Outcome {
    let arguments = node.read("/proc/cmdline").await?;
    ensure!(
        !arguments.contains("instar.config"),
        "it was not started from its disk: {arguments}"
    );
    Ok(())
}

async fn the_machine_has_its_config_on_its_disk(node: &Node, web: &HttpServer) -> Outcome {
    let hostname = node.hostname().await?;
    ensure!(hostname == "rack-7", "it is called {hostname}");
    let fetched = web.requests();
    ensure!(
        fetched == ["/machine.yaml"],
        "an installed machine asks nobody for its config: {fetched:?}"
    );
    Ok(())
}

/// Plans a machine with a blank disk, started by iPXE with a config on this server.
fn start_over_the_network(
    scratch: &Scratch,
    web: &HttpServer,
    configured: impl FnOnce(MachineConfig) -> MachineConfig,
) -> Result<Node> {
    let identity = Identity::administrator()?;
    let config = configured(MachineConfig::new(&identity));
    web.serve("/machine.yaml", config.to_yaml());
    let folder = network_folder(scratch, &web.url_for_guest("/machine.yaml"))?;
    let spec = VmSpec::uefi(uefi()?)
        .network_boot(folder, "snponly.efi")
        .order_of_firmware();
    Node::plan_from(scratch, spec)
        .blank_disk()?
        .without_config(identity)
        .start()
}

/// Makes the folder of an administrator: the release's files, and a script that names the config.
fn network_folder(scratch: &Scratch, config: &str) -> Result<PathBuf> {
    let folder = scratch.join("pxe");
    fs::create_dir(&folder)?;
    for file in fs::read_dir(ImageUnderTest::first()?.network_folder())? {
        let file = file?;
        fs::copy(file.path(), folder.join(file.file_name()))?;
    }
    let script =
        format!("#!ipxe\ndhcp\nset instar-arguments instar.config={config}\nchain boot.ipxe\n");
    fs::write(folder.join("autoexec.ipxe"), script)?;
    Ok(folder)
}

async fn a_machine_in_memory_is_installed_by_a_call(scratch: Scratch) -> Outcome {
    let registry = registry_with_installer(&scratch)?;
    push_doubtful_installers(&registry)?;
    let image = |tag: &str| registry.image_for_guest(&format!("{INSTALLER}:{tag}"));
    let web = HttpServer::start()?;
    let node = start_in_memory(&scratch, &web, &registry)?;
    chapters![
        no_other_disk_than_the_configs_is_taken(&node, &image("v0.1.0")),
        an_image_that_is_not_there_is_told_by_an_exit_code(&node, &image("none")),
        what_an_upgrade_would_refuse_is_not_installed(&node, &image(UNSIGNED), &image(WRONG_TAG)),
        an_image_of_the_store_needs_no_registry(&node, &scratch, &registry, &image("v0.1.0")),
        an_image_is_installed_once(&node, &image("v0.1.0")),
        a_reboot_starts_what_was_installed(&node, &scratch),
    ]
    .await
}

/// Starts a machine whose config names a disk and no image, and the builder's key.
fn start_in_memory(scratch: &Scratch, web: &HttpServer, registry: &Registry) -> Result<Node> {
    let builder = fs::read_to_string(test_keys()?.join("db.crt"))?;
    start_over_the_network(scratch, web, |config| {
        let config = config.registry(&registry.host_for_guest());
        config
            .install_disk("/dev/vda")
            .document(&trusting(&[builder]))
    })
}

/// Pushes the installer without its signature, and behind the tag of another version.
fn push_doubtful_installers(registry: &Registry) -> Outcome {
    let installer = || OciImage::read(&ImageUnderTest::first()?.installer());
    let unsigned = installer()?.without_label(SIGNATURE);
    unsigned.push(registry, INSTALLER, UNSIGNED)?;
    installer()?.push(registry, INSTALLER, WRONG_TAG)?;
    Ok(())
}

async fn no_other_disk_than_the_configs_is_taken(node: &Node, image: &str) -> Outcome {
    node.wait_for_api(PATIENCE).await?;
    node.wait_until_ready(PATIENCE).await?;
    let refused = install(node, image, "/dev/vdb").await.err();
    let refused = refused.context("it is written to another disk")?;
    ensure!(refused.code() == Code::FailedPrecondition, "{refused}");
    ensure!(refused.message().contains("/dev/vda"), "{refused}");
    Ok(())
}

async fn an_image_that_is_not_there_is_told_by_an_exit_code(node: &Node, image: &str) -> Outcome {
    let told = install(node, image, "").await?;
    ensure!(told.exit_code == Some(7), "{told:?}");
    Ok(())
}

async fn what_an_upgrade_would_refuse_is_not_installed(
    node: &Node,
    unsigned: &str,
    wrong_tag: &str,
) -> Outcome {
    for (image, words) in [
        (unsigned, "UpgradeTrustConfig demands a signature"),
        (wrong_tag, "the tag v0.3.0 says version 0.3.0"),
    ] {
        let told = install(node, image, "").await?;
        ensure!(told.exit_code == Some(7), "{told:?}");
        ensure!(told.lines.contains(words), "{told:?}");
    }
    Ok(())
}

/// From here on the registry takes connections, and says nothing.
async fn an_image_of_the_store_needs_no_registry(
    node: &Node,
    scratch: &Scratch,
    registry: &Registry,
    image: &str,
) -> Outcome {
    let client = Instarctl::of(node, scratch)?;
    let said = client.run(&["image", "pull", image]).await?;
    ensure!(said.code == Some(0), "{said:?}");
    registry.freeze()
}

async fn an_image_is_installed_once(node: &Node, image: &str) -> Outcome {
    let told = install(node, image, "/dev/vda").await?;
    println!("{}", told.lines);
    ensure!(told.exit_code == Some(0), "{told:?}");
    let words = "is installed; the next boot starts it";
    ensure!(told.lines.contains(words), "{told:?}");
    let again = install(node, image, "").await.err();
    let again = again.context("it is installed twice")?;
    ensure!(again.code() == Code::AlreadyExists, "{again}");
    Ok(())
}

async fn a_reboot_starts_what_was_installed(node: &Node, scratch: &Scratch) -> Outcome {
    let client = Instarctl::of(node, scratch)?;
    let said = client.run(&["reboot", "--mode", "powercycle"]).await?;
    ensure!(said.code == Some(0), "{said:?}");
    node.wait_until_ready(PATIENCE).await?;
    the_machine_was_started_from_its_disk(node).await
}

/// The answers to a call of Install.
#[derive(Debug, Default)]
struct Told {
    lines: String,
    exit_code: Option<i32>,
}

async fn install(node: &Node, image: &str, disk: &str) -> Result<Told, Status> {
    let channel = node.channel().await;
    let channel = channel.map_err(|error| Status::unknown(format!("{error:#}")))?;
    let mut lifecycle = LifecycleServiceClient::new(channel);
    let answers = lifecycle.install(request(image, disk)).await?;
    let mut answers = answers.into_inner();
    let mut told = Told::default();
    while let Some(answer) = answers.message().await? {
        match answer.progress.and_then(|progress| progress.response) {
            Some(Response::Message(line)) => told.lines.push_str(&line),
            Some(Response::ExitCode(code)) => told.exit_code = Some(code),
            None => {}
        }
    }
    Ok(told)
}

fn request(image: &str, disk: &str) -> LifecycleServiceInstallRequest {
    LifecycleServiceInstallRequest {
        source: Some(InstallArtifactsSource {
            image_name: image.to_owned(),
        }),
        destination: Some(InstallDestination {
            disk: disk.to_owned(),
        }),
        ..LifecycleServiceInstallRequest::default()
    }
}
