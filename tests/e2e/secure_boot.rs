//! Secure Boot with keys of one's own: signed programs start, unsigned or changed ones do not, and a machine whose new
//! version is refused starts the version before.

use std::fs;
use std::io::{Cursor, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use instar_api::machine::RebootRequest;
use instar_esp::boot_order::Partition;
use instar_esp::{
    Asset, DEFAULT_SLOTS, FileDigest, NewVersion, Slot, State, Volume, add, paths, perform,
};
use instar_qemu::{Drive, Vm, VmSpec};
use instar_tests::{
    BY_OUR_BOOT_ENTRY, EspImage, ImageUnderTest, Instarctl, Node, Outcome, Registry, Scratch, Test,
    UefiVariables, chapters, secure_uefi, test_keys, tests,
};

use crate::PATIENCE;
use crate::installed::INSTALLER;
use crate::loader::{OLD_ONE_STAYS, newer, with_loader};

/// The kernel's message when its firmware checks signatures.
const SECURE: &str = "Kernel is locked down from EFI Secure Boot";

pub(crate) fn tests() -> Vec<Test> {
    tests![
        a_machine_in_setup_mode_takes_the_keys_and_starts,
        a_uki_without_signature_is_refused,
        a_changed_uki_is_refused,
        a_loader_without_signature_is_refused,
        a_version_that_is_refused_gives_way_to_the_one_before_it,
        without_boot_entries_each_try_of_a_refused_version_takes_a_power_cycle,
        an_upgrade_keeps_to_what_the_firmware_lets_through,
    ]
}

/// Copies a disk with the image, so that the test can change it.
fn own_disk(scratch: &Scratch) -> Result<PathBuf> {
    let disk = scratch.join("disk.img");
    ImageUnderTest::first()?.put_on_disk(&disk, 1 << 30)?;
    Ok(disk)
}

/// Plans a machine with the image's keys.
fn enrolled(scratch: &Scratch, disk: PathBuf) -> Result<VmSpec> {
    let uefi = secure_uefi()?;
    let variables = UefiVariables::of(&uefi, scratch)?
        .enrol(&test_keys()?)
        .write()?;
    Ok(VmSpec::uefi(uefi.variables(variables)).drive(Drive::raw(disk)))
}

async fn a_machine_in_setup_mode_takes_the_keys_and_starts(scratch: Scratch) -> Outcome {
    let spec = VmSpec::uefi(secure_uefi()?).drive(Drive::raw(own_disk(&scratch)?));
    let node = Node::plan_from(&scratch, spec).boot().await?;
    chapters![
        the_keys_are_enrolled_and_in_force(&node),
        no_kernel_is_started_past_the_firmware(&node, &scratch),
    ]
    .await?;
    node.wait_until_ready(PATIENCE).await
}

async fn the_keys_are_enrolled_and_in_force(node: &Node) -> Outcome {
    let console = node.vm().console();
    let enrolled = "Custom Secure Boot keys successfully enrolled";
    ensure!(console.contains(enrolled), "{console}");
    ensure!(console.contains(SECURE), "{console}");
    Ok(())
}

/// The kernel has Debian's signature, which is not by one of these keys.
async fn no_kernel_is_started_past_the_firmware(node: &Node, scratch: &Scratch) -> Outcome {
    node.wait_until_ready(PATIENCE).await?;
    let client = Instarctl::of(node, scratch)?;
    let said = client.run(&["reboot", "--mode", "kexec"]).await?;
    ensure!(said.code != Some(0), "{said:?}");
    ensure!(said.complaint.contains("under Secure Boot"), "{said:?}");
    Ok(())
}

/// The firmware's message about a program that no key of db has signed.
const REFUSED: &str = "Access denied";

/// The loader reports that its UKI was refused, and no kernel starts.
fn is_refused(scratch: &Scratch, spec: &VmSpec, words: &str) -> Outcome {
    let vm = Vm::start(spec, &scratch.join("vm"))?;
    let refused = vm.wait_for_line(words, PATIENCE)?;
    // A kernel would start within a second.
    let started = vm.wait_for_line_after(refused.end, "Linux version", Duration::from_secs(5));
    ensure!(started.is_err(), "a kernel starts: {}", vm.evidence());
    Ok(())
}

async fn a_uki_without_signature_is_refused(scratch: Scratch) -> Outcome {
    let disk = own_disk(&scratch)?;
    let mut uki = fs::read(ImageUnderTest::first()?.uki())?;
    remove_signature(&mut uki)?;
    EspImage::of_disk(&disk).overwrite(&Slot::FIRST.uki_path(), &uki)?;
    is_refused(&scratch, &enrolled(&scratch, disk)?, REFUSED)
}

/// One bit in the root filesystem is changed.
async fn a_changed_uki_is_refused(scratch: Scratch) -> Outcome {
    let disk = own_disk(&scratch)?;
    let mut uki = fs::read(ImageUnderTest::first()?.uki())?;
    let at = uki.len() - (1 << 20);
    uki[at] ^= 1;
    EspImage::of_disk(&disk).overwrite(&Slot::FIRST.uki_path(), &uki)?;
    is_refused(&scratch, &enrolled(&scratch, disk)?, REFUSED)
}

async fn a_loader_without_signature_is_refused(scratch: Scratch) -> Outcome {
    let disk = own_disk(&scratch)?;
    let mut loader = fs::read(ImageUnderTest::first()?.loader())?;
    remove_signature(&mut loader)?;
    EspImage::of_disk(&disk).overwrite(paths::LOADER, &loader)?;
    is_refused(&scratch, &enrolled(&scratch, disk)?, "Access Denied")
}

/// Three tries, each of which ends with the firmware's refusal and leads to the firmware's next entry; the fourth start
/// of the loader takes the version before.
async fn a_version_that_is_refused_gives_way_to_the_one_before_it(scratch: Scratch) -> Outcome {
    let (disk, esp) = with_an_unsigned_version(&scratch)?;
    has_boot_order(&esp, ["instar-2-v0.2.0+3.conf", "instar-1-v0.1.0.conf"])?;
    let spec = with_boot_entries(&scratch, disk)?;
    let node = Node::plan_from(&scratch, spec).boot().await?;
    chapters![
        the_unsigned_version_was_refused_three_times(&node),
        the_unsigned_version_has_no_tries_left(&node, &esp),
    ]
    .await
}

fn has_boot_order(esp: &EspImage, expected: [&str; 2]) -> Outcome {
    let state = State::read(esp)?;
    let order = state.boot_order().into_iter();
    let names: Vec<String> = order.map(|entry| entry.name.to_string()).collect();
    ensure!(names == expected, "{names:?}");
    Ok(())
}

/// Plans a machine with the image's keys, whose firmware has its entries for the boot loader.
fn with_boot_entries(scratch: &Scratch, disk: PathBuf) -> Result<VmSpec> {
    let uefi = secure_uefi()?;
    let variables = UefiVariables::of(&uefi, scratch)?
        .enrol(&test_keys()?)
        .boot_order(&esp_of(&disk)?, scratch)?
        .write()?;
    Ok(VmSpec::uefi(uefi.variables(variables)).drive(Drive::raw(disk)))
}

async fn the_unsigned_version_was_refused_three_times(node: &Node) -> Outcome {
    ensure!(node.version().await?.tag == "v0.1.0");
    // A ready node has finished its changes of the entries.
    node.wait_until_ready(PATIENCE).await?;
    let console = node.vm().console();
    ensure!(console.matches(REFUSED).count() == 3, "{console}");
    Ok(())
}

async fn the_unsigned_version_has_no_tries_left(node: &Node, esp: &EspImage) -> Outcome {
    node.vm().quit()?;
    has_boot_order(esp, ["instar-1-v0.1.0.conf", "instar-2-v0.2.0+0-3.conf"])?;
    ensure!(esp.list(paths::ENTRIES)?.len() == 2);
    Ok(())
}

/// Firmware that has lost its variables (an empty battery, another board) tries the disk once, and then shows its
/// setup: every power cycle is a try, and the fourth one starts the version before. From then on the entries are there
/// again.
async fn without_boot_entries_each_try_of_a_refused_version_takes_a_power_cycle(
    scratch: Scratch,
) -> Outcome {
    let (disk, _) = with_an_unsigned_version(&scratch)?;
    let spec = enrolled(&scratch, disk)?;
    let folder = scratch.join("node");
    for _ in 0..3 {
        let vm = Vm::start(&spec, &folder)?;
        vm.wait_for_line(REFUSED, PATIENCE)?;
        vm.cut_power();
    }
    let node = Node::plan_from(&scratch, spec).boot().await?;
    ensure!(node.version().await?.tag == "v0.1.0");
    chapters![the_boot_entries_are_there_again(&node)].await
}

async fn the_boot_entries_are_there_again(node: &Node) -> Outcome {
    node.wait_until_ready(PATIENCE).await?;
    let mut machine = node.machine().await?;
    machine.reboot(RebootRequest::default()).await?;
    node.wait_for_line(BY_OUR_BOOT_ENTRY, PATIENCE)?;
    Ok(())
}

/// No kernel starts past the firmware, and no loader with another signature than its content's.
async fn an_upgrade_keeps_to_what_the_firmware_lets_through(scratch: Scratch) -> Outcome {
    let registry = registry_with_upgrades(&scratch)?;
    let host = registry.host_for_guest();
    let plan = Node::plan_from(&scratch, enrolled(&scratch, own_disk(&scratch)?)?)
        .configure(move |config| config.registry(&host).install_disk("/dev/vda"));
    let node = plan.boot().await?;
    node.wait_until_ready(PATIENCE).await?;
    let client = Instarctl::of(&node, &scratch)?;
    let image = |tag: &str| registry.image_for_guest(&format!("{INSTALLER}:{tag}"));
    chapters![
        a_kexec_becomes_a_reboot_through_the_firmware(&node, &client, &image("v0.2.0")),
        a_loader_that_is_refused_leaves_the_old_one(&node, &client, &image("loader")),
        the_firmware_refused_one_program(&node),
    ]
    .await
}

/// A registry with v0.2.0, and with v0.1.0 whose loader is newer.
fn registry_with_upgrades(scratch: &Scratch) -> Result<Registry> {
    let registry = Registry::start(scratch)?;
    let (first, second) = (ImageUnderTest::first()?, ImageUnderTest::second()?);
    registry.push_layout(&second.installer(), INSTALLER, second.version())?;
    with_loader(&first, &newer(&first)?)?.push(&registry, INSTALLER, "loader")?;
    Ok(registry)
}

async fn a_kexec_becomes_a_reboot_through_the_firmware(
    node: &Node,
    client: &Instarctl,
    image: &str,
) -> Outcome {
    let words = "the machine reboots through the firmware: nothing was loaded";
    upgrade(
        node,
        client,
        ["--image", image, "--reboot-mode", "kexec"],
        words,
    )
    .await?;
    ensure!(node.version().await?.tag == "v0.2.0");
    Ok(())
}

async fn a_loader_that_is_refused_leaves_the_old_one(
    node: &Node,
    client: &Instarctl,
    image: &str,
) -> Outcome {
    let how = ["--image", image, "--reboot-mode", "powercycle"];
    upgrade(node, client, how, OLD_ONE_STAYS).await?;
    ensure!(node.version().await?.tag == "v0.1.0");
    Ok(())
}

/// Upgrades, and waits for these words on the console.
async fn upgrade(node: &Node, client: &Instarctl, how: [&str; 4], words: &str) -> Outcome {
    let mark = node.vm().console_mark()?;
    let said = client.run(&[&["upgrade"][..], &how].concat()).await?;
    ensure!(said.code == Some(0), "{said:?}");
    node.vm().wait_for_line_after(mark, words, PATIENCE)?;
    node.vm().wait_for_line_after(mark, SECURE, PATIENCE)?;
    node.wait_until_ready(PATIENCE).await
}

async fn the_firmware_refused_one_program(node: &Node) -> Outcome {
    let console = node.vm().console();
    ensure!(
        console.matches("Access Denied").count() == 1,
        "the other loader was not refused, or something else was: {console}"
    );
    Ok(())
}

/// Makes a disk with v0.1.0 and a new version without a signature, which firmware with keys refuses.
fn with_an_unsigned_version(scratch: &Scratch) -> Result<(PathBuf, EspImage)> {
    let disk = own_disk(scratch)?;
    let mut esp = EspImage::of_disk(&disk);
    let mut uki = fs::read(ImageUnderTest::second()?.uki())?;
    remove_signature(&mut uki)?;
    let new = NewVersion {
        version: "v0.2.0".parse()?,
        uki: FileDigest::of(&uki),
    };
    let plan = add(&State::read(&esp)?, &new, None, DEFAULT_SLOTS)?;
    perform(&plan, &mut esp, |asset| {
        ensure_uki(asset)?;
        Ok(Box::new(Cursor::new(uki.clone())) as Box<dyn Read>)
    })?;
    Ok((disk, esp))
}

/// Reads a disk's first partition from its GPT (UEFI specification 2.10, 5.3): the entries begin at the third sector.
fn esp_of(disk: &Path) -> Result<Partition> {
    let mut entry = [0; 128];
    fs::File::open(disk)?.read_exact_at(&mut entry, 2 * 512)?;
    let number =
        |at: usize| -> Result<u64> { Ok(u64::from_le_bytes(entry[at..at + 8].try_into()?)) };
    let (first, last) = (number(32)?, number(40)?);
    Ok(Partition {
        number: 1,
        first_block: first,
        blocks: last - first + 1,
        guid: entry[16..32].try_into()?,
    })
}

fn ensure_uki(asset: Asset) -> std::io::Result<()> {
    match asset {
        Asset::Uki => Ok(()),
        Asset::Loader => Err(std::io::Error::other(
            "an upgrade does not write the loader",
        )),
    }
}

/// Cuts the certificate table off (UEFI specification 2.10, 32.2): the program is then as before it was signed.
fn remove_signature(program: &mut Vec<u8>) -> Result<()> {
    let number = |at: usize| -> Result<usize> {
        let bytes = program.get(at..at + 4).context("no program")?;
        Ok(u32::from_le_bytes(bytes.try_into()?) as usize)
    };
    let entry = number(0x3C)? + 24 + 112 + 4 * 8;
    let table = number(entry)?;
    ensure!(table > 0, "it is not signed");
    program.truncate(table);
    program[entry..entry + 8].fill(0);
    Ok(())
}
