//! A machine with a blank disk and nothing else: iPXE starts it, and it installs itself.

use anyhow::{Context as _, ensure};
use instar_api::machine::lifecycle_service_client::LifecycleServiceClient;
use instar_api::machine::lifecycle_service_install_progress::Response;
use instar_api::machine::{
    InstallArtifactsSource, InstallDestination, LifecycleServiceInstallRequest,
};
use instar_qemu::VmSpec;
use instar_tests::{
    HttpServer, Identity, ImageUnderTest, Instarctl, MachineConfig, Node, Outcome, Registry,
    Scratch, Test, tests, uefi,
};
use tonic::{Code, Status};

use crate::PATIENCE;
use crate::installed::INSTALLER;

pub(crate) fn tests() -> Vec<Test> {
    tests![
        a_machine_installs_itself,
        a_machine_in_memory_is_installed_by_a_call
    ]
}

async fn a_machine_installs_itself(scratch: Scratch) -> Outcome {
    let image = ImageUnderTest::first()?;
    let registry = Registry::start(&scratch)?;
    registry.push_layout(&image.installer(), INSTALLER, image.version())?;
    let identity = Identity::administrator()?;
    let config = MachineConfig::new(&identity)
        .hostname("rack-7")
        .registry(&registry.host_for_guest())
        .install(
            "/dev/vda",
            &registry.image_for_guest(&format!("{INSTALLER}:v0.1.0")),
        );
    let web = HttpServer::start()?;
    web.serve("/machine.yaml", config.to_yaml());

    let node = start_over_the_network(&scratch, identity, &web.url_for_guest("/machine.yaml"))?;
    node.wait_until_installed("v0.1.0", PATIENCE).await?;
    let arguments = node.read("/proc/cmdline").await?;
    ensure!(
        !arguments.contains("instar.config"),
        "it was not started from its disk: {arguments}"
    );
    let hostname = node.hostname().await?;
    ensure!(hostname == "rack-7", "it is called {hostname}");
    let fetched = web.requests();
    ensure!(
        fetched == ["/machine.yaml"],
        "an installed machine asks nobody for its config: {fetched:?}"
    );
    Ok(())
}

/// A machine with a blank disk, started by iPXE with a config at `url`.
fn start_over_the_network(
    scratch: &Scratch,
    identity: Identity,
    url: &str,
) -> anyhow::Result<Node> {
    // What an administrator keeps beside the folder: a script of their own that names the config.
    let folder = scratch.join("pxe");
    std::fs::create_dir(&folder)?;
    for file in std::fs::read_dir(ImageUnderTest::first()?.network_folder())? {
        let file = file?;
        std::fs::copy(file.path(), folder.join(file.file_name()))?;
    }
    std::fs::write(
        folder.join("autoexec.ipxe"),
        format!("#!ipxe\ndhcp\nset instar-arguments instar.config={url}\nchain boot.ipxe\n"),
    )?;
    let spec = VmSpec::uefi(uefi()?)
        .network_boot(folder, "snponly.efi")
        .order_of_firmware();
    Node::plan_from(scratch, spec)
        .blank_disk()?
        .without_config(identity)
        .start()
}

async fn a_machine_in_memory_is_installed_by_a_call(scratch: Scratch) -> Outcome {
    let image = ImageUnderTest::first()?;
    let registry = Registry::start(&scratch)?;
    registry.push_layout(&image.installer(), INSTALLER, image.version())?;
    let identity = Identity::administrator()?;
    let config = MachineConfig::new(&identity)
        .registry(&registry.host_for_guest())
        .install_disk("/dev/vda");
    let web = HttpServer::start()?;
    web.serve("/machine.yaml", config.to_yaml());
    let node = start_over_the_network(&scratch, identity, &web.url_for_guest("/machine.yaml"))?;
    node.wait_for_api(PATIENCE).await?;
    node.wait_until_ready(PATIENCE).await?;

    let good = registry.image_for_guest(&format!("{INSTALLER}:v0.1.0"));
    let refused = install(&node, &good, "/dev/vdb").await.err();
    let refused = refused.context("it is written to another disk")?;
    ensure!(
        refused.code() == Code::FailedPrecondition && refused.message().contains("/dev/vda"),
        "{refused}"
    );
    let missing = registry.image_for_guest(&format!("{INSTALLER}:none"));
    let told = install(&node, &missing, "").await?;
    ensure!(told.exit_code == Some(7), "{told:?}");
    let told = install(&node, &good, "/dev/vda").await?;
    println!("{}", told.lines);
    ensure!(
        told.exit_code == Some(0) && told.lines.contains("is installed; the next boot starts it"),
        "{told:?}"
    );
    let again = install(&node, &good, "").await.err();
    let again = again.context("it is installed twice")?;
    ensure!(again.code() == Code::AlreadyExists, "{again}");

    let client = Instarctl::of(&node, &scratch)?;
    let said = client.run(&["reboot", "--mode", "powercycle"]).await?;
    ensure!(said.code == Some(0), "{said:?}");
    node.wait_until_ready(PATIENCE).await?;
    let arguments = node.read("/proc/cmdline").await?;
    ensure!(
        !arguments.contains("instar.config"),
        "it was not started from its disk: {arguments}"
    );
    Ok(())
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
    let request = LifecycleServiceInstallRequest {
        source: Some(InstallArtifactsSource {
            image_name: image.to_owned(),
        }),
        destination: Some(InstallDestination {
            disk: disk.to_owned(),
        }),
        ..LifecycleServiceInstallRequest::default()
    };
    let mut answers = LifecycleServiceClient::new(channel)
        .install(request)
        .await?
        .into_inner();
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
