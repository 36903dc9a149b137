//! A machine with a blank disk and nothing else: iPXE starts it, and it installs itself.

use anyhow::ensure;
use instar_qemu::VmSpec;
use instar_tests::{
    HttpServer, Identity, ImageUnderTest, MachineConfig, Node, Outcome, Registry, Scratch, Test,
    tests, uefi,
};

use crate::PATIENCE;
use crate::installed::INSTALLER;

pub(crate) fn tests() -> Vec<Test> {
    tests![a_machine_installs_itself]
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

    // What an administrator keeps beside the folder: a script of their own that names the config.
    let folder = scratch.join("pxe");
    std::fs::create_dir(&folder)?;
    for file in std::fs::read_dir(image.network_folder())? {
        let file = file?;
        std::fs::copy(file.path(), folder.join(file.file_name()))?;
    }
    std::fs::write(
        folder.join("autoexec.ipxe"),
        format!(
            "#!ipxe\ndhcp\nset instar-arguments instar.config={}\nchain boot.ipxe\n",
            web.url_for_guest("/machine.yaml")
        ),
    )?;
    let spec = VmSpec::uefi(uefi()?)
        .network_boot(folder, "snponly.efi")
        .order_of_firmware();
    let node = Node::plan_from(&scratch, spec)
        .blank_disk()?
        .without_config(identity)
        .start()?;
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
