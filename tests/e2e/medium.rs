//! Installations without a registry: the running version is copied from its medium.

use anyhow::ensure;
use instar_esp::{State, Volume as _, description, paths};
use instar_qemu::{Bus, DiskFormat, Drive, VmSpec, WriteFault, create_blank_disk};
use instar_tests::{
    BY_OUR_BOOT_ENTRY, EspImage, Identity, ImageUnderTest, Instarctl, Node, NodePlan, Outcome,
    Scratch, Test, chapters, tests, uefi,
};

use crate::PATIENCE;

pub(crate) fn tests() -> Vec<Test> {
    tests![
        a_config_without_an_image_installs_what_the_cd_carries,
        an_argument_installs_what_the_cd_carries_without_a_config,
        a_disk_that_fails_is_told_of_and_another_start_installs,
        a_stick_installs_with_a_kernel_that_reads_sticks,
        a_stick_that_the_kernel_cannot_read_is_told_of,
    ]
}

/// A document that installs the running version on the blank disk.
const INSTALL: &str = "apiVersion: v1alpha1\nkind: UnattendedInstallConfig\nreboot: true\nprovisioning:\n  diskSelector:\n    match: disk.dev_path == \"/dev/vda\"\n";
const CD: &str = "/dev/sr0";
/// A sector in the middle of the first UKI: the partition begins at 1 MiB, the UKI has 19.
const IN_THE_UKI: u64 = (8 << 20) / 512;

/// Plans a machine with the ISO in its drive and a blank disk beside it.
fn with_cd(scratch: &Scratch) -> anyhow::Result<NodePlan> {
    let iso = Drive::raw(ImageUnderTest::first()?.iso()).on(Bus::Cd);
    Ok(Node::plan_from(scratch, VmSpec::uefi(uefi()?))
        .blank_disk()?
        .spec(|spec| spec.drive(iso)))
}

/// Waits until the machine has installed itself from this device and was started from its disk.
fn installs_itself_from(device: &str, node: &Node) -> Outcome {
    node.wait_for_line(&format!("installing the version on {device}"), PATIENCE)?;
    node.wait_for_line("installed; the machine reboots into it", PATIENCE)?;
    let mark = node.vm().console_mark()?;
    node.vm()
        .wait_for_line_after(mark, BY_OUR_BOOT_ENTRY, PATIENCE)?;
    node.vm()
        .wait_for_line_after(mark, "v0.1.0 as generation 1", PATIENCE)?;
    Ok(())
}

/// Checks that the disk has the medium's content: the version, blessed and whole, the loader, and keys for a machine in
/// setup mode.
fn is_on_disk(scratch: &Scratch, image: &ImageUnderTest) -> Outcome {
    let esp = EspImage::of_disk(&scratch.join("node.disk0.img"));
    let state = State::read(&esp)?;
    let entry = state.next_boot();
    ensure!(
        entry.is_some_and(|entry| entry.name.to_string() == "instar-1-v0.1.0.conf"),
        "{state:?}"
    );
    let uki = esp.read("EFI/instar/a.efi")?;
    ensure!(uki == std::fs::read(image.uki())?, "another UKI");
    let loader = esp.read(paths::LOADER)?;
    ensure!(loader == std::fs::read(image.loader())?, "another loader");
    ensure!(esp.list(paths::KEYS)?.len() == 3, "no keys");
    let described = description(&esp)?;
    ensure!(described.is_some(), "nothing is known of its image");
    Ok(())
}

async fn a_config_without_an_image_installs_what_the_cd_carries(scratch: Scratch) -> Outcome {
    let node = with_cd(&scratch)?
        .configure(|config| config.document(INSTALL))
        .start()?;
    installs_itself_from(CD, &node)?;
    node.wait_for_api(PATIENCE).await?;
    node.wait_until_ready(PATIENCE).await?;
    node.end();
    is_on_disk(&scratch, &ImageUnderTest::first()?)
}

/// The config reaches the installed machine later.
async fn an_argument_installs_what_the_cd_carries_without_a_config(scratch: Scratch) -> Outcome {
    // As for a user who cannot change the medium: systemd's stub takes further arguments from the firmware's tables.
    let arguments =
        "type=11,value=io.systemd.stub.kernel-cmdline-extra=instar.install.disk=/dev/vda";
    let node = with_cd(&scratch)?
        .spec(|spec| spec.extra_argument("-smbios").extra_argument(arguments))
        .without_config(Identity::administrator()?)
        .start()?;
    installs_itself_from(CD, &node)?;
    let mark = node.vm().console_mark()?;
    node.vm()
        .wait_for_line_after(mark, "no machine config: maintenance mode", PATIENCE)?;
    node.end();
    is_on_disk(&scratch, &ImageUnderTest::first()?)
}

/// The machine goes on from the CD, reports its disk's fault, and installs itself at the next start, when the disk
/// works.
async fn a_disk_that_fails_is_told_of_and_another_start_installs(scratch: Scratch) -> Outcome {
    let node = with_cd_and_breakable_disk(&scratch)?.start()?;
    node.vm()
        .fail_write(0, &WriteFault::BadSector(IN_THE_UKI))?;
    chapters![the_failure_is_told(&node, &scratch)].await?;
    let node = node.power_cycle().await?;
    installs_itself_from(CD, &node)?;
    node.wait_for_api(PATIENCE).await?;
    node.wait_until_ready(PATIENCE).await?;
    node.end();
    is_on_disk(&scratch, &ImageUnderTest::first()?)
}

fn with_cd_and_breakable_disk(scratch: &Scratch) -> anyhow::Result<NodePlan> {
    let disk = scratch.join("node.disk0.img");
    create_blank_disk(&disk, DiskFormat::Raw, 1 << 30)?;
    let iso = Drive::raw(ImageUnderTest::first()?.iso()).on(Bus::Cd);
    let spec = VmSpec::uefi(uefi()?)
        .drive(Drive::raw(&disk).breakable())
        .drive(iso);
    Ok(Node::plan_from(scratch, spec).configure(|config| config.document(INSTALL)))
}

/// The failure is on the console, and in the API's answers.
async fn the_failure_is_told(node: &Node, scratch: &Scratch) -> Outcome {
    let said = node.wait_for_line("is not installed: ", PATIENCE)?;
    ensure!(said.contains("I/O error"), "{said}");
    node.wait_for_api(PATIENCE).await?;
    let client = Instarctl::of(node, scratch)?;
    node.wait_until("it says so to who asks", PATIENCE, async || {
        let said = client.run(&["get", "diagnostics", "-o", "yaml"]).await?;
        ensure!(
            said.output.contains("is not installed") && said.output.contains("I/O error"),
            "{said:?}"
        );
        Ok(())
    })
    .await
}

async fn a_stick_installs_with_a_kernel_that_reads_sticks(scratch: Scratch) -> Outcome {
    let image = ImageUnderTest::for_servers()?;
    let node = with_stick(&scratch, &image)?.start()?;
    installs_itself_from("/dev/sda", &node)?;
    node.wait_for_api(PATIENCE).await?;
    node.wait_until_ready(PATIENCE).await?;
    node.end();
    is_on_disk(&scratch, &image)
}

/// Debian's kernel for clouds has no drivers for USB: with the ISO on a stick the node runs from memory, and reports
/// why.
async fn a_stick_that_the_kernel_cannot_read_is_told_of(scratch: Scratch) -> Outcome {
    let node = with_stick(&scratch, &ImageUnderTest::first()?)?.start()?;
    node.wait_for_line(
        "no disk or CD that this kernel has drivers for carries v0.1.0",
        PATIENCE,
    )?;
    node.wait_for_api(PATIENCE).await?;
    node.wait_until_ready(PATIENCE).await
}

/// Plans a machine with the ISO on a stick, a blank disk beside it, and an argument to be installed there.
fn with_stick(scratch: &Scratch, image: &ImageUnderTest) -> anyhow::Result<NodePlan> {
    let mut stick = Drive::raw(image.iso()).on(Bus::Usb);
    stick.snapshot = true;
    Ok(Node::plan_from(scratch, VmSpec::uefi(uefi()?))
        .blank_disk()?
        .spec(|spec| spec.drive(stick))
        .configure(|config| config.document(INSTALL)))
}
