//! A disk that fails while it is written to: an upgrade says so, and what runs goes on, boots again, and can be upgraded later.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use instar_esp::{FileDigest, State, Volume as _};
use instar_qemu::{Bus, Drive, Vm, VmSpec, WriteFailure, WriteFault};
use instar_tests::{
    EspImage, Fat, ImageUnderTest, Instarctl, Node, Outcome, Registry, Scratch, ServedDisk, Test,
    tests, uefi,
};
use serde_json::{Value, json};

use crate::PATIENCE;

const INSTALLER: &str = "instar/installer";
/// Room for both versions, and for an installer's image in /var.
const DISK_BYTES: u64 = 512 << 20;

pub(crate) fn tests() -> Vec<Test> {
    tests![
        in_an_upgrade_leave_the_version_that_runs,
        at_any_write_of_an_upgrade_leave_a_version_that_boots,
        for_want_of_room_leave_a_version_that_boots,
        halfway_through_a_write_leave_a_version_that_boots,
    ]
}

/// Where an upgrade's writes fail.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// So many bytes into the new UKI.
    Uki(u64),
    /// The FAT's entry of what is so many bytes into the new UKI.
    Table(u64),
    /// The folder of the slots.
    Slots,
    /// The folder of the entries.
    Entries,
}

/// How they do.
#[derive(Debug, Clone, Copy)]
enum Trouble {
    BadSector(Place),
    Torn(Place),
}

const TROUBLES: [Trouble; 6] = [
    Trouble::BadSector(Place::Uki(4 << 20)),
    Trouble::Torn(Place::Uki(4 << 20)),
    Trouble::Torn(Place::Uki((9 << 20) + 1024)),
    Trouble::BadSector(Place::Table(12 << 20)),
    Trouble::BadSector(Place::Slots),
    Trouble::BadSector(Place::Entries),
];

impl Trouble {
    /// As the disk is now.
    fn fault(self, disk: &Path) -> Result<WriteFault> {
        Ok(match self {
            Self::BadSector(place) => WriteFault::BadSector(place.sector(&Fat::read(disk)?)?),
            Self::Torn(place) => WriteFault::Torn(place.sector(&Fat::read(disk)?)?),
        })
    }
}

impl Place {
    fn sector(self, fat: &Fat) -> Result<u64> {
        Ok(match self {
            Self::Uki(bytes) => fat.sector_of(fat.next_free(bytes)?),
            Self::Table(bytes) => fat.table_sector_of(fat.next_free(bytes)?),
            Self::Slots => fat.sector_with(b"A       EFI").context("no slot a")?,
            Self::Entries => fat.sector_with(b"INSTAR~1CON").context("no entry")?,
        })
    }
}

async fn in_an_upgrade_leave_the_version_that_runs(scratch: Scratch) -> Outcome {
    let registry = Registry::start(&scratch)?;
    let (first, second) = (ImageUnderTest::first()?, ImageUnderTest::second()?);
    registry.push_layout(&second.installer(), INSTALLER, second.version())?;
    let disk = scratch.join("disk.img");
    first.put_on_disk(&disk, DISK_BYTES)?;

    let host = registry.host_for_guest();
    let spec = VmSpec::uefi(uefi()?).drive(Drive::raw(&disk).breakable());
    let node = Node::plan_from(&scratch, spec)
        .configure(move |config| config.registry(&host).install_disk("/dev/vda"))
        .boot()
        .await?;
    node.wait_until_ready(PATIENCE).await?;
    let client = Instarctl::of(&node, &scratch)?;
    let image = registry.image_for_guest(&format!("{INSTALLER}:{}", second.version()));
    let upgrade = ["upgrade", "--image", &image, "--reboot-mode", "powercycle"];
    let kernel = node.kernel_boot_id().await?;
    for trouble in TROUBLES {
        node.vm().fail_write(0, &trouble.fault(&disk)?)?;
        let said = client.run(&upgrade).await?;
        let mut words = said.complaint.lines();
        let why = words.find(|line| line.contains("I/O error"));
        println!("{trouble:?}: {}", why.unwrap_or_default());
        ensure!(said.code != Some(0), "{trouble:?}: it succeeded");
        ensure!(
            said.complaint.contains("I/O error"),
            "{trouble:?}: {said:?}"
        );
        node.vm().fail_write(0, &WriteFault::None)?;
        ensure!(node.kernel_boot_id().await? == kernel, "it rebooted");
        node.wait_until_ready(PATIENCE).await?;
        boots(&disk, &first).with_context(|| format!("{trouble:?}"))?;
    }
    let node = node.power_cycle().await?;
    node.wait_until_ready(PATIENCE).await?;
    ensure!(node.version().await?.tag == first.version());
    // With a disk that works again, until the new version is to be blessed.
    let client = Instarctl::of(&node, &scratch)?;
    let said = client
        .run(&["upgrade", "--image", &image, "--stage"])
        .await?;
    ensure!(said.code == Some(0), "the upgrade afterwards: {said:?}");
    let before = node.vm().console().len();
    let reboot = ["reboot", "--mode", "powercycle"];
    let meanwhile = async {
        // The loader has counted this start.
        node.wait_until("it is started", PATIENCE, async || {
            let console = node.vm().console();
            let since = console.get(before..).context("a shorter console")?;
            ensure!(since.contains("EFI stub"), "the loader is not done");
            Ok(())
        })
        .await?;
        let trouble = Trouble::BadSector(Place::Entries);
        node.vm().fail_write(0, &trouble.fault(&disk)?)?;
        node.wait_until("it tells that it tries again", PATIENCE, async || {
            let said = client.run(&["get", "machinestatus", "-o", "yaml"]).await?;
            let is_told = said.output.contains("ready: false")
                && said.output.contains("name: boot entry")
                && node.vm().console().contains("is still not blessed");
            ensure!(is_told, "{said:?}");
            print!("{}", said.output);
            Ok(())
        })
        .await?;
        anyhow::Ok(node.vm().fail_write(0, &WriteFault::None)?)
    };
    let (said, told) = tokio::join!(client.run(&reboot), meanwhile);
    told?;
    let said = said?;
    ensure!(said.code == Some(0), "{said:?}");
    ensure!(node.version().await?.tag == second.version());
    let state = State::read(&EspImage::of_disk(&disk))?;
    let next = state.next_boot().context("nothing boots")?;
    ensure!(
        next.name.is_blessed() && next.name.version.to_string() == second.version(),
        "{} boots next",
        next.name
    );
    Ok(())
}

/// What the loader would start is the whole UKI of this version.
fn boots(disk: &Path, version: &ImageUnderTest) -> Result<()> {
    let esp = EspImage::of_disk(disk);
    let state = State::read(&esp)?;
    let next = state.next_boot().context("nothing boots")?;
    ensure!(
        next.name.version.to_string() == version.version(),
        "{} would be booted",
        next.name
    );
    let found = FileDigest::of(&esp.read(&next.slot.uki_path())?);
    let whole = FileDigest::of(&std::fs::read(version.uki())?);
    ensure!(found == whole, "its UKI is {found}, expected {whole}");
    Ok(())
}

/// Which of an upgrade's writes fail, each in an upgrade of its own: how many, `all` of them, or `FIRST-LAST`.
const WRITES: &str = "INSTAR_WRITES";
/// Where nothing else is said.
const USUAL_WRITES: u64 = 3;
/// All writes take hours; each upgrade is waited for by [`PATIENCE`].
const LIFETIME: Duration = Duration::from_secs(24 * 3600);
/// What refuses an upgrade because of a write that failed: itself, the filesystem that gave up, or the version that found it so.
const REASONS: [&str; 4] = [
    "I/O error",
    "No space left on device",
    "Read-only file system",
    "was given up",
];
/// An upgrade that ends when its version waits for the next start.
const STAGED: [&str; 1] = ["--stage"];
/// One that goes on to that.
const AT_ONCE: [&str; 2] = ["--reboot-mode", "powercycle"];
/// Each so many that were staged are started, too.
const STARTED: usize = 10;
/// What the kernel says of a filesystem that takes no more writes, until it is mounted anew.
const GIVEN_UP: &str = "EXT4-fs error";

async fn at_any_write_of_an_upgrade_leave_a_version_that_boots(scratch: Scratch) -> Outcome {
    one_by_one(scratch, Defect::Broken).await
}

async fn for_want_of_room_leave_a_version_that_boots(scratch: Scratch) -> Outcome {
    one_by_one(scratch, Defect::Full).await
}

async fn halfway_through_a_write_leave_a_version_that_boots(scratch: Scratch) -> Outcome {
    one_by_one(scratch, Defect::Tearing).await
}

/// What is the matter with a disk.
#[derive(Debug, Clone, Copy)]
enum Defect {
    /// Nothing of a write is written. A SCSI disk would be asked to try again, and virtio-blk's is not.
    Broken,
    /// There is no room. A virtio disk has no word for that.
    Full,
    /// Half of a write is written.
    Tearing,
}

/// A disk of which one write fails.
enum FailingDisk {
    OfQemu(Bus, WriteFailure),
    Tearing(ServedDisk),
}

impl FailingDisk {
    fn of(file: &Path, defect: Defect) -> Result<Self> {
        Ok(match defect {
            Defect::Broken => Self::OfQemu(Bus::Virtio, WriteFailure::Io),
            Defect::Full => Self::OfQemu(Bus::Scsi, WriteFailure::NoRoom),
            Defect::Tearing => Self::Tearing(ServedDisk::serve(file)?),
        })
    }

    fn drive(&self, file: &Path) -> Drive {
        match self {
            Self::OfQemu(bus, _) => Drive::raw(file).on(*bus).breakable(),
            Self::Tearing(disk) => Drive::raw(file).served(disk.port()),
        }
    }

    /// Where the node finds it.
    fn device(&self) -> &'static str {
        match self {
            Self::OfQemu(Bus::Scsi, _) => "/dev/sda",
            _ => "/dev/vda",
        }
    }

    /// Has the write of this number from now on fail, from 1; with none it is as if it had never been asked to.
    fn fail(&self, vm: &Vm, number: Option<u64>) -> Outcome {
        match self {
            Self::OfQemu(_, failure) => {
                let nth = |number| anyhow::Ok(WriteFault::Nth(u32::try_from(number)?, *failure));
                vm.fail_write(0, &number.map_or(Ok(WriteFault::None), nth)?)?;
            }
            Self::Tearing(disk) => disk.tear(number),
        }
        Ok(())
    }
}

/// One write of an upgrade fails, somewhere from the first of the image in /var to the last of the new version's start. What comes
/// before that start is the same in an upgrade that is staged, which is over sooner.
async fn one_by_one(scratch: Scratch, defect: Defect) -> Outcome {
    let registry = Registry::start(&scratch)?;
    let images = [ImageUnderTest::first()?, ImageUnderTest::second()?];
    for image in &images {
        registry.push_layout(&image.installer(), INSTALLER, image.version())?;
    }
    let disk = scratch.join("disk.img");
    images[0].put_on_disk(&disk, DISK_BYTES)?;
    let host = registry.host_for_guest();
    let failing = FailingDisk::of(&disk, defect)?;
    let device = failing.device();
    let spec = VmSpec::uefi(uefi()?)
        .drive(failing.drive(&disk))
        .deadline(LIFETIME);
    let mut node = Node::plan_from(&scratch, spec)
        .configure(move |config| config.registry(&host).install_disk(device))
        .boot()
        .await?;
    node.wait_until_ready(PATIENCE).await?;
    let upgrade = async |node: &Node, to: &ImageUnderTest, how: &[&str]| {
        let image = registry.image_for_guest(&format!("{INSTALLER}:{}", to.version()));
        let client = Instarctl::of(node, &scratch)?;
        client
            .run(&[&["upgrade", "--force", "--image", &image], how].concat())
            .await
    };

    // Undisturbed, to count.
    let start = writes(&node)?;
    let said = upgrade(&node, &images[1], &STAGED).await?;
    ensure!(said.code == Some(0), "{said:?}");
    let before_the_start = writes(&node)? - start;
    let start = writes(&node)?;
    let said = upgrade(&node, &images[1], &AT_ONCE).await?;
    ensure!(said.code == Some(0), "{said:?}");
    node.wait_until_ready(PATIENCE).await?;
    let all = writes(&node)? - start;
    println!("{all} writes, {before_the_start} of them before the new version starts");
    let wanted = which_writes(all)?;

    let (mut runs, mut waits, mut refused, mut failed_in_all, mut stood) = (1, false, 0, 0, 0);
    let (mut number, mut has_just_failed) = (0, false);
    while let Some(&write) = wanted.get(number) {
        let how = if write <= before_the_start {
            &STAGED[..]
        } else {
            &AT_ONCE
        };
        let name = format!("write {write} of {all}");
        let (said_before, before) = (node.vm().console().len(), failures(&node)?);
        failing.fail(node.vm(), Some(write))?;
        let upgraded = upgrade(&node, &images[1 - runs], how);
        let (said, resets) = reset_at_the_prompt(&node, said_before, upgraded).await?;
        let said = said?;
        stood += resets;
        let failed = failures(&node)? > before;
        failing.fail(node.vm(), None)?;
        let succeeded = said.code == Some(0);
        if !succeeded {
            refused += 1;
            let mut lines = said.complaint.lines();
            let why = lines.find(|line| REASONS.iter().any(|reason| line.contains(reason)));
            println!(
                "{name}: {}",
                why.with_context(|| format!("{name}: {said:?}"))?
            );
        }
        // The kernel tells of a write in the background when somebody asks next: that may be the next upgrade, before its own.
        let is_told_late = has_just_failed && !failed && !succeeded;
        ensure!(failed || succeeded || is_told_late, "{name}: {said:?}");
        if succeeded && how == AT_ONCE {
            runs = 1 - runs;
            waits = false;
        }
        let now = node.version().await?.tag;
        ensure!(now == images[runs].version(), "{name}: {now} runs");
        // What waited before may be gone when the next one could not take its place.
        let staged = succeeded && how == STAGED;
        waits = staged || (waits && boots(&disk, &images[runs]).is_err());
        let next = if waits { 1 - runs } else { runs };
        boots(&disk, &images[next]).with_context(|| name.clone())?;
        let console = node.vm().console();
        let since = console.get(said_before..).context("a shorter console")?;
        if since.contains(GIVEN_UP) || (waits && number % STARTED == STARTED - 1) {
            node = node.power_cycle().await?;
            (runs, waits) = (next, false);
        }
        node.wait_until_ready(PATIENCE).await?;
        let now = node.version().await?.tag;
        ensure!(now == images[runs].version(), "{name}: {now} runs then");
        has_just_failed = failed;
        failed_in_all += u64::from(failed);
        if !is_told_late {
            number += 1;
        }
    }
    if waits {
        node = node.power_cycle().await?;
        node.wait_until_ready(PATIENCE).await?;
        ensure!(node.version().await?.tag == images[1 - runs].version());
    }
    println!(
        "{failed_in_all} of {all} writes failed, one in each of as many upgrades ({} came to their end before it): {refused} upgrades were refused, the others did without; {stood} times the machine had to be reset at the firmware's prompt",
        wanted.len() as u64 - failed_in_all
    );
    ensure!(refused > 0, "no upgrade noticed");
    Ok(())
}

/// By their numbers.
fn which_writes(all: u64) -> Result<Vec<u64>> {
    let wanted = std::env::var(WRITES).unwrap_or_else(|_| USUAL_WRITES.to_string());
    if wanted == "all" {
        return Ok((1..=all).collect());
    }
    if let Some((first, last)) = wanted.split_once('-') {
        let (first, last): (u64, u64) = (first.parse()?, last.parse()?);
        return Ok((first..=last.min(all)).collect());
    }
    let many = wanted.parse::<u64>().context(WRITES)?.min(all);
    Ok((1..=many).map(|number| number * all / many).collect())
}

/// Resets a machine that has come to the firmware's prompt, as a person would, for as long as the work takes; how often that was.
/// Where the loader cannot write that it tries a version, EDK II's driver for FAT reads nothing more until the next reset.
async fn reset_at_the_prompt<T>(
    node: &Node,
    said_before: usize,
    work: impl Future<Output = T>,
) -> Result<(T, usize)> {
    const PROMPT: &str = "UEFI Interactive Shell";
    let mut resets = 0;
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return Ok((done, resets)),
            () = tokio::time::sleep(Duration::from_secs(1)) => {}
        }
        let console = node.vm().console();
        let since = console.get(said_before..).context("a shorter console")?;
        if since.matches(PROMPT).count() > resets {
            resets += 1;
            node.vm().qmp().execute("system_reset", json!({}))?;
        }
    }
}

/// How often the node's disk was written to so far.
fn writes(node: &Node) -> Result<u64> {
    count(node, "wr_operations")
}

/// How many writes have failed.
fn failures(node: &Node) -> Result<u64> {
    count(node, "failed_wr_operations")
}

fn count(node: &Node, what: &str) -> Result<u64> {
    let all = node.vm().qmp().execute("query-blockstats", json!({}))?;
    let of_disk = |entry: &Value| {
        entry["qdev"]
            .as_str()?
            .contains("disk0")
            .then(|| entry["stats"][what].as_u64())?
    };
    all.as_array()
        .and_then(|entries| entries.iter().find_map(of_disk))
        .with_context(|| format!("no {what} of disk0 in {all}"))
}
