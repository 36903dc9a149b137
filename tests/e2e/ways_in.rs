//! Every way to start an image, with the real firmware: from power-on to an API that answers.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use instar_api::machine::RebootRequest;
use instar_qemu::{Bus, Drive, Uefi, VmSpec};
use instar_tests::{
    BY_OUR_BOOT_ENTRY, HttpServer, ImageUnderTest, Node, Outcome, Scratch, Test, UefiVariables,
    chapters, image_program, tests, uefi,
};

use crate::PATIENCE;

pub(crate) fn tests() -> Vec<Test> {
    tests![
        a_disk_image_boots_by_uefi,
        an_iso_as_cd_boots_by_uefi,
        an_iso_as_cd_boots_by_bios,
        an_iso_on_a_stick_boots_by_uefi,
        an_iso_on_a_stick_boots_by_bios,
        ipxe_boots_a_node_by_bios,
        ipxe_boots_a_node_by_uefi,
        pxe_boots_a_node_by_uefi,
        http_boots_a_node_by_uefi,
        media_are_the_same_bytes_each_time,
    ]
}

/// The firmware that has to have started the machine.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Firmware {
    Bios,
    Uefi,
}

/// Starts a machine with this only source of a boot, and checks how it came up.
async fn comes_up(scratch: &Scratch, spec: VmSpec, by: Firmware) -> Result<Node> {
    came_up(Node::plan_from(scratch, spec).start()?, by).await
}

async fn came_up(node: Node, by: Firmware) -> Result<Node> {
    let version = node.wait_for_api(PATIENCE).await?;
    ensure!(version.tag == "v0.1.0", "it says {version:?}");
    // The kernel has this file only with UEFI.
    let efi = node.read("/sys/firmware/efi/fw_platform_size").await;
    match by {
        Firmware::Uefi => ensure!(efi?.trim() == "64"),
        Firmware::Bios => ensure!(efi.is_err(), "the firmware is UEFI: {efi:?}"),
    }
    let arguments = node.read("/proc/cmdline").await?;
    ensure!(
        arguments.contains("console=ttyS0") && arguments.contains("transparent_hugepage=never"),
        "{arguments}"
    );
    Ok(node)
}

fn with_uefi() -> Result<VmSpec> {
    Ok(VmSpec::uefi(uefi()?))
}

/// The disk is larger than the image: the node makes its partitions in the rest, and keeps its config there.
async fn a_disk_image_boots_by_uefi(scratch: Scratch) -> Outcome {
    let disk = scratch.join("disk.qcow2");
    copy_disk_image(&disk)?;
    let spec = with_uefi()?.drive(Drive::qcow2(&disk));
    let plan = Node::plan_from(&scratch, spec.clone());
    let node = plan.configure(|config| config.install_disk("/dev/vda"));
    let node = came_up(node.start()?, Firmware::Uefi).await?;
    chapters![makes_var_in_the_rest(&node)].await?;
    let plan = Node::plan_from(&scratch, spec).name("again");
    let node = plan.without_config(node.end()).boot().await?;
    chapters![
        knows_its_config_and_its_var(&node),
        the_firmware_has_entries_from_the_next_boot_on(&node),
    ]
    .await
}

/// Copies the disk image and grows it to 2 GiB.
fn copy_disk_image(disk: &Path) -> Result<()> {
    let image = ImageUnderTest::first()?;
    let size = std::fs::metadata(image.disk())?.len();
    ensure!(size <= 160 << 20, "{size} bytes");
    std::fs::copy(image.disk_qcow2(), disk)?;
    grow_qcow2(disk, "2G")
}

async fn makes_var_in_the_rest(node: &Node) -> Outcome {
    node.wait_for_line("/var is the partition /dev/vda3 (1.8 GiB, new)", PATIENCE)?;
    node.wait_until_ready(PATIENCE).await
}

async fn knows_its_config_and_its_var(node: &Node) -> Outcome {
    node.wait_for_line("machine config: from STATE", PATIENCE)?;
    node.wait_for_line(
        "/var is the partition /dev/vda3 (1.8 GiB, reused)",
        PATIENCE,
    )?;
    node.wait_until_ready(PATIENCE).await
}

/// This machine's firmware has no variables of the machine before: it found the loader by its search of every disk.
/// From now on it has entries of its own, as after an installation.
async fn the_firmware_has_entries_from_the_next_boot_on(node: &Node) -> Outcome {
    ensure!(!node.vm().console().contains(BY_OUR_BOOT_ENTRY));
    let reboot = RebootRequest::default();
    node.machine().await?.reboot(reboot).await?;
    node.wait_for_line(BY_OUR_BOOT_ENTRY, PATIENCE)?;
    node.wait_until_ready(PATIENCE).await
}

fn grow_qcow2(disk: &Path, size: &str) -> Result<()> {
    let output = Command::new("qemu-img")
        .arg("resize")
        .arg(disk)
        .arg(size)
        .output()?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "qemu-img resize: {complaint}");
    Ok(())
}

fn iso(bus: Bus) -> Result<Drive> {
    let mut iso = Drive::raw(ImageUnderTest::first()?.iso()).on(bus);
    iso.snapshot = bus == Bus::Usb;
    Ok(iso)
}

async fn an_iso_as_cd_boots_by_uefi(scratch: Scratch) -> Outcome {
    let spec = with_uefi()?.drive(iso(Bus::Cd)?);
    comes_up(&scratch, spec, Firmware::Uefi).await?;
    Ok(())
}

async fn an_iso_as_cd_boots_by_bios(scratch: Scratch) -> Outcome {
    let spec = VmSpec::bios().drive(iso(Bus::Cd)?);
    comes_up(&scratch, spec, Firmware::Bios).await?;
    Ok(())
}

async fn an_iso_on_a_stick_boots_by_uefi(scratch: Scratch) -> Outcome {
    let spec = with_uefi()?.drive(iso(Bus::Usb)?);
    comes_up(&scratch, spec, Firmware::Uefi).await?;
    Ok(())
}

async fn an_iso_on_a_stick_boots_by_bios(scratch: Scratch) -> Outcome {
    let spec = VmSpec::bios().drive(iso(Bus::Usb)?);
    comes_up(&scratch, spec, Firmware::Bios).await?;
    Ok(())
}

/// The card's ROM gets the script by HTTP, and the files named in it. A script before it adds arguments.
async fn ipxe_boots_a_node_by_bios(scratch: Scratch) -> Outcome {
    let server = HttpServer::start()?;
    let folder = ImageUnderTest::first()?.network_folder();
    for name in ["boot.ipxe", "vmlinuz", "initramfs"] {
        let content = std::fs::read(folder.join(name))?;
        server.serve(&format!("/instar/{name}"), content);
    }
    server.serve("/mine.ipxe", MY_SCRIPT);
    let spec = VmSpec::bios().network_boot_url(server.url_for_guest("/mine.ipxe"));
    let node = comes_up(&scratch, spec, Firmware::Bios).await?;
    let arguments = node.read("/proc/cmdline").await?;
    ensure!(arguments.contains("instar.watchdog=off"), "{arguments}");
    let asked = server.requests();
    ensure!(asked.contains(&"/instar/initramfs".to_owned()), "{asked:?}");
    Ok(())
}

const MY_SCRIPT: &str =
    "#!ipxe\nset instar-arguments instar.watchdog=off\nchain instar/boot.ipxe\n";

/// The firmware gets iPXE by TFTP, and iPXE gets its script and the rest.
async fn ipxe_boots_a_node_by_uefi(scratch: Scratch) -> Outcome {
    let folder = ImageUnderTest::first()?.network_folder();
    let spec = with_uefi()?.network_boot(folder, "snponly.efi");
    comes_up(&scratch, spec, Firmware::Uefi).await?;
    Ok(())
}

/// The firmware gets the UKI by TFTP.
async fn pxe_boots_a_node_by_uefi(scratch: Scratch) -> Outcome {
    let folder = ImageUnderTest::first()?.network_folder();
    let spec = with_uefi()?.network_boot(folder, "instar.efi");
    comes_up(&scratch, spec, Firmware::Uefi).await?;
    Ok(())
}

/// The firmware gets the UKI by HTTP.
async fn http_boots_a_node_by_uefi(scratch: Scratch) -> Outcome {
    let server = HttpServer::start()?;
    server.serve(
        "/instar.efi",
        std::fs::read(ImageUnderTest::first()?.uki())?,
    );
    let plain: Uefi = uefi()?;
    let variables = UefiVariables::of(&plain, &scratch)?
        .boot_from_url(&server.url_for_guest("/instar.efi"))
        .write()?;
    let spec = VmSpec::uefi(plain.variables(variables));
    comes_up(&scratch, spec, Firmware::Uefi).await?;
    let asked = server.requests();
    ensure!(asked.contains(&"/instar.efi".to_owned()), "{asked:?}");
    Ok(())
}

async fn media_are_the_same_bytes_each_time(scratch: Scratch) -> Outcome {
    let image = ImageUnderTest::first()?;
    for name in PARTS {
        std::fs::copy(image.folder().join(name), scratch.join(name))?;
    }
    let keys = instar_tests::test_keys()?;
    image_program(&["media", "--enrol"], &[&keys, scratch.path()])?;
    for name in MEDIA {
        are_the_same(&image.folder().join(name), &scratch.join(name))?;
    }
    lists_what_is_in_them(&image)
}

fn are_the_same(first: &Path, second: &Path) -> Outcome {
    ensure!(
        std::fs::read(first)? == std::fs::read(second)?,
        "{} and {} differ",
        first.display(),
        second.display()
    );
    Ok(())
}

/// The sources of media.
const PARTS: [&str; 5] = [
    "manifest.json",
    "instar.efi",
    "systemd-bootx64.efi",
    "vmlinuz",
    "initramfs",
];

const MEDIA: [&str; 8] = [
    "disk.raw",
    "disk.qcow2",
    "instar.iso",
    "pxe/boot.ipxe",
    "pxe/autoexec.ipxe",
    "pxe/snponly.efi",
    "pxe/undionly.kpxe",
    "media.spdx.json",
];

/// Every foreign program that starts a machine is in one of the two lists, with its version.
fn lists_what_is_in_them(image: &ImageUnderTest) -> Outcome {
    for (list, package) in [
        ("media.spdx.json", "grub-pc-bin"),
        ("media.spdx.json", "ipxe"),
        ("sbom.spdx.json", "systemd-boot-efi"),
    ] {
        let version = version_in(&image.folder().join(list), package)?;
        ensure!(
            version.is_some_and(|version| !version.is_empty()),
            "{list} does not say which {package}"
        );
    }
    Ok(())
}

/// Returns the version of a package in a list.
fn version_in(list: &Path, package: &str) -> Result<Option<String>> {
    let document: serde_json::Value = serde_json::from_slice(&std::fs::read(list)?)?;
    let listed = document["packages"].as_array();
    let mut listed = listed.context("a list without packages")?.iter();
    let found = listed.find(|listed| listed["name"] == package);
    let version = found.and_then(|found| found["versionInfo"].as_str());
    Ok(version.map(str::to_owned))
}
